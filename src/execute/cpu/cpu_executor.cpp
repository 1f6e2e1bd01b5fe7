// Runs plans on the world's processes or threads.
#include <utility>

#include "base/blas.hpp"
#include "execute/cpu/heap_place.hpp"
#include "execute/cpu/rank_run.hpp"
#include "execute/terms.hpp"
#include "plan/task_stream.hpp"
#include "runtime/one_process.hpp"

namespace imbrex {
namespace {

class CpuExecution final : public Execution {
 public:
  /// Sets up this rank's part alone. It runs after the ranks have agreed and all have come so far.
  CpuExecution(World& world, std::shared_ptr<const Plan> plan, const CpuOptions& options)
      : run_(world, std::move(plan), options), place_(world), epoch_(options.testing.first_epoch) {
    run_.lie_at(place_.allocate(run_.layout().bytes()));
    run_.memory().start_counters(epoch_);
  }

  /// The ranks have agreed.
  void open() { place_.open(); }

  CodecReport codec_report() override { return run_.quantized(); }

  Report run(const Addresses& operands) override {
    Report report = run_.run(operands, epoch_, {});
    ++epoch_;
    return report;
  }

 private:
  execute::RankRun run_;
  execute::HeapPlace place_;
  std::uint64_t epoch_;
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(World& world, const CpuOptions& options) : world_(world), options_(execute::validated(options)) {
    base::reserve_blas(options_.workers);
  }

  // The agreement is also the barrier before the first post: after it, all counters are set.
  std::unique_ptr<Execution> prepare_tasks(const TaskMaker& make) override {
    std::unique_ptr<CpuExecution> execution;
    runtime::agree(world_, [&] {
      const auto tasks = make();
      execution = std::make_unique<CpuExecution>(world_, tasks->whole(), options_);
      return execute::terms_of(*tasks).add("first_epoch", options_.testing.first_epoch);
    });
    execution->open();
    return execution;
  }

 private:
  World& world_;
  CpuOptions options_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(World& world, const CpuOptions& options) {
  runtime::expect_one_host(world, "an executor");
  return std::make_unique<CpuExecutor>(world, options);
}

}  // namespace imbrex
