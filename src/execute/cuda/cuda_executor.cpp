#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/check.hpp"
#include "execute/cuda/fused/cuda_execution.hpp"
#include "execute/cuda/fused/cuda_pool.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/lanes/libraries.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/steps/step_execution.hpp"
#include "execute/cuda/world_executor.hpp"
#include "execute/peer_access.hpp"
#include "execute/terms.hpp"
#include "plan/operand_buffers.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/seats.hpp"
#include "runtime/one_process.hpp"

namespace imbrex {
namespace {

class CudaExecutor final : public cuda::WorldExecutor {
 public:
  CudaExecutor(World& world, const CudaOptions& options)
      : world_(world),
        options_(options),
        threads_(runtime::one_process(world)),
        device_(runtime::select_device(world, options.ranks_per_gpu)),
        heap_(world, device_, options.heap_bytes, !execute::has_peer_access(), options.heap_limit),
        calls_(world, device_) {}

  std::unique_ptr<Execution> prepare_tasks(const TaskMaker& make) override {
    std::unique_ptr<plan::TaskStream> tasks;
    std::optional<cuda::Surveyed> surveyed;
    bool in_steps = false;
    runtime::agree(world_, [&] {
      tasks = make();
      const Problem& problem = tasks->frame().problem;
      IMBREX_EXPECTS(problem.ranks == world_.size(), "the plan is for {} ranks, the world has {}", problem.ranks,
                     world_.size());
      if (!execute::has_peer_access()) expect_reachable(*tasks);
      surveyed = cuda::survey(*tasks, world_.rank());
      in_steps = cuda::runs_in_steps(tasks->frame());
      if (in_steps) cuda::expect_steps(tasks->frame());
      return execute::terms_of(*tasks);
    });
    const auto guard = idle();
    if (in_steps)
      return std::make_unique<cuda::StepExecution>(world_, heap_, calls_, faults_, device_, tasks->whole(),
                                                   std::move(surveyed->layout), options_);
    if (cuda::runs_by_libraries(tasks->frame())) {
      start_libraries();
      return prepare_lanes(std::move(tasks), *std::move(surveyed));
    }
    return std::make_unique<cuda::CudaExecution>(world_, heap_, calls_, faults_, device_, std::move(tasks),
                                                 *std::move(surveyed), tables_, options_);
  }

  std::unique_ptr<cuda::PooledPlans> pool(const std::function<std::vector<cuda::PlanToRun>()>& survey,
                                          std::size_t table_bytes, const std::function<void()>& drop) override {
    Type type{};
    cuda::PoolNeeds needs;
    std::vector<cuda::LanePlan> by_libraries;
    std::size_t by_kernels = 0;
    runtime::agree(world_, [&] {
      const std::vector<cuda::PlanToRun> plans = survey();
      type = plans.front().problem.type;
      for (const cuda::PlanToRun& plan : plans) {
        const auto tasks = tasks_of(plan, world_.rank());
        expect_runs(*tasks);
        if (cuda::runs_by_libraries(tasks->frame()))
          by_libraries.push_back(lanes_of(*tasks->whole()));
        else
          needs.add(*tasks, world_.rank(), options_.timeline), ++by_kernels;
      }
      needs.leave_room();
      return execute::terms_of(*tasks_of(plans.front(), world_.rank()))
          .add("plans of libraries", by_libraries.size())
          .add("plans of kernels", by_kernels)
          .add("shared bytes", needs.share.bytes)
          .add("shared counters", needs.share.counters)
          .add("outputs", needs.out_in_heap);
    });
    const auto guard = idle();
    if (by_kernels > 0) {
      if (pool_ == nullptr || !pool_->needs().hold(needs)) replace_pool(needs, drop);
      pool_->load_kernels(type);
      pool_->reserve_tables(table_bytes);
    }
    if (!by_libraries.empty()) {
      start_libraries();
      turns_ = libraries_->take_turns(std::move(by_libraries), options_);
    }
    return std::make_unique<Pooled>(*this);
  }

  std::shared_ptr<void> allocate_output(std::size_t bytes) override {
    runtime::agree(world_, [&] { return runtime::Terms("memory for outputs").add("bytes", bytes); });
    const auto guard = idle();
    const std::size_t offset = heap_.allocate_or_grow(world_, bytes);
    heap_.pin(offset);  // what the caller puts there is the caller's
    calls_.lend_outputs();
    return {heap_.handle().at(world_.rank(), offset), [this, offset](void*) { release(offset); }};
  }

  bool has_captures() override { return calls_.captured(); }

  void await_calls() override {
    await_replays();
    calls_.drain();
  }

  void trim() override {
    const std::lock_guard guard(calls_.lock());
    heap_.trim(world_);
  }

  void restore() override {
    const std::lock_guard guard(calls_.lock());
    heap_.restore(world_);
  }

  void* output_at(std::uint64_t place) const override { return heap_.handle().at(world_.rank(), place - 1); }

 private:
  class Pooled final : public cuda::PooledPlans {
   public:
    explicit Pooled(CudaExecutor& executor) : executor_(executor) {}

    std::string lacks(const cuda::PlanToRun& plan) const override {
      const auto tasks = tasks_of(plan, executor_.world_.rank());
      if (!cuda::runs_by_libraries(tasks->frame())) {
        const auto& pool = executor_.pool_;
        return pool != nullptr && pool->has_kernels(plan.problem.type) ? "" : "memory for plans of strategy fused";
      }
      const auto& turns = executor_.turns_;
      return turns != nullptr ? turns->lacks(*tasks->whole())
                              : "libraries, which no plan needed when they were started";
    }

    std::shared_ptr<Execution> prepare(const cuda::PlanToRun& plan, bool grow) override {
      const std::string lack = lacks(plan);
      IMBREX_EXPECTS(lack.empty(), "its plan needs {}", lack);
      return executor_.prepare_in_turns(plan, grow);
    }

    void expect_stream(CudaStream stream) const override {
      const std::lock_guard guard(executor_.calls_.lock());
      executor_.calls_.expect(static_cast<cudaStream_t>(stream));
    }

    void expect_uncaptured(CudaStream stream, std::int64_t m) const override {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream, &status));
      IMBREX_EXPECTS(status == cudaStreamCaptureStatusNone,
                     "M = {}: the stream is being captured, and this operator keeps no plan for this M; call it once "
                     "with this M before the capture",
                     m);
    }

   private:
    CudaExecutor& executor_;
  };

  static std::unique_ptr<plan::TaskStream> tasks_of(const cuda::PlanToRun& plan, int rank) {
    return plan::make_rank_tasks(plan.problem, plan.candidate.strategy, plan.candidate.knobs, rank);
  }

  void expect_runs(plan::TaskStream& tasks) const {
    const Problem& problem = tasks.frame().problem;
    IMBREX_EXPECTS(problem.ranks == world_.size(), "the plan is for {} ranks, the world has {}", problem.ranks,
                   world_.size());
    const std::string refusal = cuda::refusal_of_turns(tasks.frame());
    IMBREX_EXPECTS(refusal.empty(), "{}", refusal);
    if (!execute::has_peer_access()) expect_reachable(tasks);
  }

  void start_libraries() {
    IMBREX_EXPECTS(options_.ranks_per_gpu == 1 || world_.size() == 1 || !threads_, "{}",
                   cuda::refusal_of_shared_libraries(options_.ranks_per_gpu));
    if (libraries_ == nullptr) libraries_ = cuda::make_libraries(world_, calls_, device_, options_.ranks_per_gpu);
  }

  // Every rank looks at every rank's part, so that all refuse alike.
  cuda::LanePlan lanes_of(const Plan& plan) const {
    cuda::LanePlan lanes;
    for (int rank = 0; rank < world_.size(); ++rank) {
      cuda::LanePlan made = cuda::lane_plan(plan, rank);
      const std::string refusal = cuda::refusal_beside_others(made, world_.options().sms_for_others);
      IMBREX_EXPECTS(refusal.empty(), "{}", refusal);
      if (rank == world_.rank()) lanes = std::move(made);
    }
    return lanes;
  }

  std::unique_ptr<Execution> prepare_lanes(std::unique_ptr<plan::TaskStream> tasks, cuda::Surveyed surveyed) {
    cuda::LanePlan lanes = lanes_of(*tasks->whole());
    if (!lanes.kernel) return libraries_->prepare(std::move(lanes), nullptr, options_);
    const int sms = runtime::sms_of(device_), for_others = world_.options().sms_for_others;
    IMBREX_EXPECTS(lanes.kept_free < sms - for_others,
                   "the plan keeps {} SMs free (kept_free), and GPU {} has {}, {} of them for others (sms_for_others)",
                   lanes.kept_free, device_, sms, for_others);
    const cuda::Beside beside{static_cast<std::uint32_t>(lanes.joints.size()),
                              lanes.behind ? 0 : static_cast<int>(lanes.lanes())};
    auto kernel = std::make_unique<cuda::CudaExecution>(world_, heap_, calls_, faults_, device_, std::move(tasks),
                                                        std::move(surveyed), tables_, options_, beside);
    return libraries_->prepare(std::move(lanes), std::move(kernel), options_);
  }

  // All ranks get it, with the kernels of those types, or the heap is as it was.
  std::shared_ptr<cuda::CudaPool> make_pool(const cuda::PoolNeeds& needs, const std::vector<Type>& types) {
    try {
      auto made = std::make_shared<cuda::CudaPool>(world_, heap_, calls_, faults_, device_, needs, options_);
      for (const Type type : types) made->load_kernels(type);
      return made;
    } catch (const Error&) {
      heap_.give_back(world_);
      throw;
    }
  }

  // Memory for what there was and for `needs`. What the old memory held is prepared anew: calls of it are over, on all
  // ranks. Where graphs may hold some, it stays. Where there is no memory for both, every rank has the error, and what
  // there was.
  void replace_pool(const cuda::PoolNeeds& needs, const std::function<void()>& drop) {
    if (pool_ == nullptr) {
      pool_ = make_pool(needs, {});
      return;
    }
    const cuda::PoolNeeds before = pool_->needs();
    const std::vector<Type> types = pool_->types();
    drop();
    const auto held = runtime::agree(
        world_, [&] { return runtime::Terms("memory of plans that take turns").tell(pool_->held_by_graphs()); });
    std::shared_ptr<cuda::CudaPool> old = std::move(pool_);
    if (std::all_of(held.begin(), held.end(), [](std::int64_t one) { return one == 0; })) old = nullptr;
    heap_.give_back(world_);
    try {
      pool_ = make_pool(before.joined(needs), types);
    } catch (const Error&) {
      pool_ = old != nullptr ? std::move(old) : make_pool(before, types);
      throw;
    }
    if (old != nullptr) outgrown_.push_back(std::move(old));
  }

  // Other ranks may be anywhere in their calls, this rank's kernels under way, and some thread's stream captured.
  std::shared_ptr<Execution> prepare_in_turns(const cuda::PlanToRun& plan, bool grow) {
    auto tasks = tasks_of(plan, world_.rank());
    expect_runs(*tasks);
    const std::lock_guard guard(calls_.lock());
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    const cuda::AsksDuringCaptures asks;
    if (cuda::runs_by_libraries(tasks->frame())) return turns_->prepare(lanes_of(*tasks->whole()));
    cuda::Surveyed surveyed = cuda::survey(*tasks, world_.rank());
    if (!grow && !pool_->has_room(surveyed.layout)) return nullptr;
    const cuda::TileCounts leading = cuda::leading_tiles(*tasks, surveyed.tables, [&] { return tasks_of(plan, 0); });
    pool_->collect();
    return pool_->lend(
        std::make_unique<cuda::CudaExecution>(*pool_, std::move(tasks), std::move(surveyed), leading, tables_));
  }

  static void expect_reachable(plan::TaskStream& tasks) {
    if (const std::string refusal = execute::refusal_without_peer_access(*tasks.whole()); !refusal.empty())
      throw Error(ErrorCode::invalid_input, refusal);
  }

  // Loading kernels, taking memory and starting NCCL want idle GPUs, on all ranks, and memory that was trimmed.
  std::unique_lock<std::recursive_mutex> idle() {
    runtime::calls_of(world_).run_prelude();
    await_replays();
    std::unique_lock guard(calls_.lock());
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    const bool called = calls_.drain();
    if (called || calls_.captured()) world_.barrier();
    return guard;
  }

  // CUDA does not tell when graphs that hold calls run. This is not done under the lock: the watching thread needs it
  // to end them where a rank is lost.
  void await_replays() {
    if (!calls_.captured()) return;
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  }

  void release(std::size_t offset) noexcept {
    cudaSetDevice(device_);
    try {
      calls_.drain();
    } catch (const std::exception&) {  // the world failed, and no peer writes any more
    }
    heap_.release(offset);
  }

  World& world_;
  CudaOptions options_;
  bool threads_;  // ranks are
  int device_;
  runtime::CudaHeap heap_;
  cuda::StreamCalls calls_;
  runtime::FaultPool faults_;
  cuda::TableMemory tables_;                    // between executions that are made
  std::shared_ptr<cuda::Libraries> libraries_;  // made for the first plan that needs them
  // What plans that take turns share, null until one needs it; and what became too small, where graphs may hold calls.
  std::shared_ptr<cuda::CudaPool> pool_;
  std::vector<std::shared_ptr<cuda::CudaPool>> outgrown_;
  std::shared_ptr<cuda::LibraryTurns> turns_;
};

}  // namespace

cuda::QueuedCall::QueuedCall(World& world, int gpu, CudaStream stream)
    : order_(runtime::stream_order_of(world, gpu)), stream_(stream) {
  order_->enter(static_cast<cudaStream_t>(stream));
}

void cuda::QueuedCall::end() { order_->leave(static_cast<cudaStream_t>(stream_)); }

std::unique_ptr<cuda::WorldExecutor> cuda::make_world_executor(World& world, const CudaOptions& given) {
  runtime::expect_one_host(world, "an executor on GPUs");
  CudaOptions options = given;
  options.ranks_per_gpu = runtime::ranks_per_gpu_of(world, given.ranks_per_gpu);
  runtime::agree(world, [&] {
    IMBREX_EXPECTS(options.testing.max_delay >= 0 && options.testing.max_delay <= 1,
                   "max_delay = {} s: it must be from 0 to 1", options.testing.max_delay);
    runtime::Terms terms("an executor on GPUs");
    execute::add(terms, options);
    return terms;
  });
  return std::make_unique<CudaExecutor>(world, options);
}

std::unique_ptr<Executor> make_cuda_executor(World& world, const CudaOptions& options) {
  return cuda::make_world_executor(world, options);
}

}  // namespace imbrex
