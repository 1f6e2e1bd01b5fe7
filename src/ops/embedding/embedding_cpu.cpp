#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "embedding/update.hpp"
#include "execute/cpu/pooled_plans.hpp"
#include "imbrex/collectives.hpp"
#include "ops/embedding/embedding_backend.hpp"
#include "ops/plans_by_size.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::ops {
namespace {

class CpuEmbedding final : public EmbeddingBackend {
 public:
  CpuEmbedding(World& world, const EmbeddingShape& shape, const Problem& problem, const OperatorOptions& options,
               bool made)
      : world_(world),
        shape_(shape),
        problem_(problem),
        options_(options),
        blocks_(problem),
        pooled_(world, options.cpu,
                [&](const auto& too) {
                  // Plans of fewer rows may take more memory.
                  for (std::int64_t part = problem.m / problem.ranks / 2; made && part > 0; part /= 2)
                    too(plan_of(part * problem.ranks));
                  return options.plan;
                }),
        by_batch_([this](std::int64_t batch) {
          return pooled_.prepare(batch == problem_.m ? pooled_.first() : std::make_shared<const Plan>(plan_of(batch)));
        }) {
    if (!shape.optimizer || world.size() == 1) return;
    const std::int64_t block = problem.m / problem.ranks * blocks_.width();
    exchange_ = std::make_unique<Exchange>(world, ExchangeKind::all_to_all, block, shape.out,
                                           ExchangeOptions{.report = false}, Device::cpu);
  }

  // What one rank does not take, all of them refuse: they have come together anyway.
  const EmbeddingCall& resolve(EmbeddingRules& rules, const Operands& operands, float rate,
                               CudaStream stream) override {
    const EmbeddingCall* call = nullptr;
    runtime::agree(world_, [&] {
      IMBREX_EXPECTS(stream == nullptr, "a stream of CUDA is given, and this operator works on the CPU");
      IMBREX_EXPECTS(std::isfinite(rate), "rate = {}: it must be finite", rate);
      call = &rules.resolve(operands);
      if (call->given.tables.count > 0)
        found_ = embedding::check_bags(call->given.tables, call->given.bags, shape_.misfits);
      return runtime::Terms("a call of an embedding").add("batch", call->given.bags.batch).add("rate", rate);
    });
    return *call;
  }

  bool meets(const EmbeddingCall&) const override { return true; }

  void run(const EmbeddingCall& call, CudaStream) override {
    Addresses addresses;
    addresses.others = {call.matrix};
    addresses.given = &call.given;
    by_batch_.at(call.given.bags.batch).run(addresses);
    ignored_ += std::exchange(found_, 0);
  }

  void update(const EmbeddingCall& call, float rate, CudaStream) override {
    const int ranks = problem_.ranks;
    const std::int64_t rows = call.given.bags.batch / ranks, width = blocks_.width(),
                       element = static_cast<std::int64_t>(size_of(shape_.out)),
                       row_bytes = problem::width_of(problem_.tables) * element;
    const std::int64_t block = rows * width * element;
    sent_.assign(static_cast<std::size_t>(block * ranks), std::byte{0});
    for (int rank = 0; rank < ranks; ++rank)
      for (const problem::Run& run : blocks_.runs(rank))
        for (std::int64_t i = 0; i < rows; ++i)
          std::memcpy(sent_.data() + rank * block + (i * width + run.from) * element,
                      static_cast<const std::byte*>(call.matrix) + i * row_bytes + run.to * element,
                      static_cast<std::size_t>(run.cols * element));
    std::vector<std::byte>& got = exchange_ ? received_ : sent_;
    if (exchange_) {
      got.resize(sent_.size());
      exchange_->run({{"in", View::vector(sent_.data(), shape_.out, rows * width * ranks)},
                      {"out", View::vector(got.data(), shape_.out, rows * width * ranks)}});
    }
    if (call.given.tables.count == 0) return;
    std::vector<void*> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(got.data() + rank * block);
    ignored_ += embedding::update(call.given.tables, call.given.bags, {parts.data(), ranks, shape_.out, width},
                                  {*shape_.optimizer, rate, shape_.epsilon, call.states.data()});
    found_ = 0;
  }

  std::int64_t take_ignored() override { return std::exchange(ignored_, 0); }
  void check() override { world_.throw_if_failed(); }
  void synchronize(CudaStream stream) override {
    IMBREX_EXPECTS(stream == nullptr, "a stream of CUDA is given, and this operator works on the CPU");
    world_.throw_if_failed();
  }
  std::shared_ptr<void> allocate_output(std::size_t bytes) override {
    return {::operator new(bytes), [](void* p) { ::operator delete(p); }};
  }

 private:
  Plan plan_of(std::int64_t batch) const {
    Problem of_batch = problem_;
    of_batch.m = batch;
    return make_plan(of_batch, *options_.strategy, *options_.knobs);
  }

  World& world_;
  const EmbeddingShape shape_;
  const Problem problem_;
  const OperatorOptions options_;
  GradientBlocks blocks_;
  execute::PooledPlans pooled_;
  PlansBySize by_batch_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::byte> sent_, received_;
  std::int64_t found_ = 0, ignored_ = 0;  // by the call that is resolved; since the last report
};

}  // namespace

GradientBlocks::GradientBlocks(const Problem& problem) {
  for (int rank = 0; rank < problem.ranks; ++rank) {
    own_.emplace_back(problem.tables, rank);
    width_ = std::max(width_, own_.back().cols());
  }
}

std::vector<problem::Run> GradientBlocks::runs(int rank) const {
  const problem::OwnShards& own = own_[static_cast<std::size_t>(rank)];
  return own.runs(0, own.count());
}

std::unique_ptr<EmbeddingBackend> make_cpu_embedding(World& world, const EmbeddingShape& shape, const Problem& problem,
                                                     const OperatorOptions& options, bool made) {
  return std::make_unique<CpuEmbedding>(world, shape, problem, options, made);
}

}  // namespace imbrex::ops
