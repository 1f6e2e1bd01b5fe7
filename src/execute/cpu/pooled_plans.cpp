#include "execute/cpu/pooled_plans.hpp"

#include <optional>
#include <utility>

#include "base/blas.hpp"
#include "execute/cpu/heap_place.hpp"
#include "execute/cpu/rank_run.hpp"
#include "execute/plan_pool.hpp"
#include "execute/terms.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::execute {

struct PooledPlans::State {
  State(World& w, const CpuOptions& o) : world(w), options(validated(o)), place(w) {
    base::reserve_blas(options.workers);
  }

  World& world;
  CpuOptions options;
  HeapPlace place;
  std::shared_ptr<const Plan> first;
  std::optional<PlanPool> pool;
};

namespace {

class PooledExecution final : public Execution {
 public:
  PooledExecution(World& world, PlanPool& pool, std::shared_ptr<const Plan> plan, const CpuOptions& options)
      : pool_(pool), run_(world, std::move(plan), options), area_(pool.place(run_.layout())) {
    run_.lie_at(pool.offset(area_));
    const int rank = world.rank();
    for (int signal = 0; signal < run_.layout().signals(rank); ++signal)
      posts_.push_back(run_.layout().posts(rank, signal));
  }

  Report run(const Addresses& operands) override {
    Report report = run_.run(operands, pool_.epoch(), pool_.counts(area_));
    pool_.leave(area_, posts_);
    return report;
  }

  CodecReport codec_report() override { return run_.quantized(); }

 private:
  PlanPool& pool_;
  RankRun run_;
  std::size_t area_;
  std::vector<std::uint32_t> posts_;  // to this rank's signals, in one epoch
};

}  // namespace

// The agreement is also the barrier before the first post: after it, all counters are set.
PooledPlans::PooledPlans(World& world, const CpuOptions& options, const Survey& survey)
    : state_(std::make_unique<State>(world, options)) {
  State& s = *state_;
  runtime::agree(world, [&] {
    PlanShare share;
    const auto add = [&](const Plan& plan) { share = share.joined(HeapLayout(plan).share()); };
    s.first = survey(add);
    add(*s.first);
    const std::uint64_t first_epoch = s.options.testing.first_epoch;
    s.pool.emplace([&](std::size_t bytes) { return s.place.allocate(bytes); }, share, first_epoch);
    RankMemory::set_counters(world.heap().handle(), s.pool->offset(0), share, s.pool->first_count());
    return terms_of(*plan::stored_tasks(s.first))
        .add("first_epoch", first_epoch)
        .add("shared bytes", share.bytes)
        .add("shared counters", share.counters);
  });
  s.place.open();
}

PooledPlans::~PooledPlans() = default;

std::shared_ptr<const Plan> PooledPlans::first() const { return state_->first; }

std::unique_ptr<Execution> PooledPlans::prepare(std::shared_ptr<const Plan> plan) {
  State& s = *state_;
  return std::make_unique<PooledExecution>(s.world, *s.pool, std::move(plan), s.options);
}

}  // namespace imbrex::execute
