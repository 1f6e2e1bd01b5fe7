// Runs plans on the world's processes or threads.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/blas.hpp"
#include "base/check.hpp"
#include "base/clock.hpp"
#include "execute/cpu/worker.hpp"
#include "execute/terms.hpp"
#include "plan/task_stream.hpp"

namespace imbrex {
namespace {

class CpuExecution final : public Execution {
 public:
  /// Sets up this rank's part alone. Nobody runs it before the ranks agree, and all have come so far.
  CpuExecution(World& world, std::shared_ptr<const Plan> plan, const CpuOptions& options)
      : world_(world),
        kept_(std::move(plan)),
        plan_(*kept_),
        options_(options),
        layout_(plan_),
        epoch_(options.testing.first_epoch),
        exceptions_(std::uncaught_exceptions()),
        collectives_(execute::collective_groups(plan_)) {
    heap_offset_ = world.heap().allocate(layout_.bytes());
    memory_ = std::make_unique<execute::RankMemory>(plan_, layout_, world.heap().handle(), heap_offset_);
    memory_->start_counters(epoch_);
  }

  /// The ranks have agreed: from here on peers reach this rank's memory.
  void open() { open_ = true; }

  ~CpuExecution() override {
    if (!open_) {
      world_.heap().release(heap_offset_);
      return;
    }
    // Behind an exception, this rank is the first to know that it ends: the peers learn why only after the unwinding.
    // They may read and write its memory until then.
    if (std::uncaught_exceptions() > exceptions_) return;
    // A peer may still read this rank's workspaces of the last epoch.
    try {
      world_.barrier();
    } catch (const std::exception&) {  // the world failed, and nobody reads any more
    }
    world_.heap().release(heap_offset_);
  }

  CodecReport codec_report() override { return coded_; }

  CpuExecution(const CpuExecution&) = delete;
  CpuExecution& operator=(const CpuExecution&) = delete;

  Report run(const Addresses& operands) override {
    execute::expect_given(operands, plan_.problem);
    world_.throw_if_failed();
    const double begin = base::monotonic_seconds();
    memory_->enter(operands, epoch_);
    memory_->stage_inputs();
    hold_back();
    std::vector<std::atomic<std::size_t>> heads(plan_.ranks[static_cast<std::size_t>(world_.rank())].queues.size());
    std::vector<execute::OpenProduct> products(heads.size());
    std::atomic<bool> stop = false;
    execute::RankEpoch shared{plan_, layout_, *memory_, world_, options_, collectives_, heads, products, stop, epoch_};
    std::vector<std::unique_ptr<execute::Worker>> workers;
    for (int i = 0; i < std::max(1, options_.workers); ++i)
      workers.push_back(std::make_unique<execute::Worker>(shared, i));
    run_all(workers, stop);
    memory_->unstage_output();
    ++epoch_;
    // Collectives are worker 0's.
    coded_ = workers.front()->coded();
    Report report{base::monotonic_seconds() - begin, {}};
    for (const auto& worker : workers)
      report.timeline.spans.insert(report.timeline.spans.end(), worker->spans.begin(), worker->spans.end());
    return report;
  }

 private:
  // With injected delays, one rank in turn falls behind by far, so that the others run into the next epochs.
  void hold_back() const {
    if (options_.testing.delays == 0 ||
        std::cmp_not_equal((options_.testing.delays + epoch_) % static_cast<std::uint64_t>(world_.size()),
                           world_.rank()))
      return;
    std::this_thread::sleep_for(std::chrono::duration<double>(4 * options_.testing.max_delay));
  }

  static void run_all(std::vector<std::unique_ptr<execute::Worker>>& workers, std::atomic<bool>& stop) {
    std::vector<std::exception_ptr> failures(workers.size());
    const auto run_one = [&](std::size_t i) {
      try {
        workers[i]->run();
      } catch (...) {
        failures[i] = std::current_exception();
        stop.store(true, std::memory_order_relaxed);
      }
    };
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 1; i < workers.size(); ++i) threads.emplace_back(run_one, i);
      run_one(0);
    }
    for (const auto& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }

  World& world_;
  std::shared_ptr<const Plan> kept_;
  const Plan& plan_;
  CpuOptions options_;
  execute::HeapLayout layout_;
  std::uint64_t epoch_;
  int exceptions_;  // in flight when the execution was made
  std::map<int, std::vector<const Collective*>> collectives_;
  std::size_t heap_offset_ = 0;
  bool open_ = false;
  std::unique_ptr<execute::RankMemory> memory_;
  CodecReport coded_;  // of the last epoch
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(World& world, const CpuOptions& options)
      : world_(world), options_(validated(options)), blas_(options.workers) {}

  // The agreement is also the barrier before which nobody posts: behind it, all counters are set.
  std::unique_ptr<Execution> prepare_tasks(const TaskMaker& make) override {
    std::unique_ptr<CpuExecution> execution;
    runtime::agree(world_, [&] {
      const auto tasks = make();
      const std::shared_ptr<const Plan> plan = tasks->whole();
      IMBREX_EXPECTS(plan->problem.ranks == world_.size(), "the plan is for {} ranks, the world has {}",
                     plan->problem.ranks, world_.size());
      if (const auto finding = check_format(*plan))
        throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", name_of(finding->fault), finding->message));
      execution = std::make_unique<CpuExecution>(world_, plan, options_);
      return execute::terms_of(*tasks).add("first_epoch", options_.testing.first_epoch);
    });
    execution->open();
    return execution;
  }

 private:
  static const CpuOptions& validated(const CpuOptions& options) {
    IMBREX_EXPECTS(options.workers >= 1 && options.workers <= 1024, "workers = {}: it must be from 1 to 1024",
                   options.workers);
    IMBREX_EXPECTS(options.testing.max_delay >= 0 && options.testing.max_delay <= 60,
                   "max_delay = {} s: it must be from 0 to 60", options.testing.max_delay);
    return options;
  }

  World& world_;
  CpuOptions options_;
  base::BlasMemory blas_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(World& world, const CpuOptions& options) {
  return std::make_unique<CpuExecutor>(world, options);
}

}  // namespace imbrex
