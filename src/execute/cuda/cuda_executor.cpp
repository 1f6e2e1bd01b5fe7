#include <fmt/format.h>

#include <mutex>
#include <optional>

#include "base/check.hpp"
#include "execute/cuda/lanes/cuda_execution.hpp"
#include "execute/cuda/lanes/library_execution.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/terms.hpp"
#include "runtime/cuda/device.hpp"

namespace imbrex {
namespace {

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(World& world, const CudaOptions& options)
      : world_(world),
        options_(options),
        device_(runtime::select_device(world, options.ranks_per_gpu)),
        heap_(world, device_, options.heap_bytes),
        calls_(world, device_) {}

  std::unique_ptr<Execution> prepare(const Plan& plan) override {
    return prepare_shared(std::make_shared<const Plan>(plan));
  }

  std::unique_ptr<Execution> prepare_shared(std::shared_ptr<const Plan> plan) override {
    return prepare_tasks(
        plan->problem, [&] { return plan::stored_tasks(plan); }, [&] { return execute::terms_of(*plan); });
  }

  std::unique_ptr<Execution> prepare_made(const Problem& problem, Strategy strategy, const Knobs& knobs) override {
    return prepare_tasks(
        problem, [&] { return plan::make_rank_tasks(problem, strategy, knobs, world_.rank()); },
        [&] { return execute::terms_of(problem, strategy, knobs); });
  }

  std::shared_ptr<void> allocate_output(std::size_t bytes) override {
    runtime::agree(world_, [&] { return runtime::Terms("memory for outputs").add("bytes", bytes); });
    await_replays();
    const std::lock_guard guard(calls_.lock());
    quiesce();
    const std::size_t offset = heap_.allocate_or_grow(world_, bytes);
    return {heap_.handle().at(world_.rank(), offset), [this, offset](void*) { release(offset); }};
  }

 private:
  template <typename Tasks, typename Terms>
  std::unique_ptr<Execution> prepare_tasks(const Problem& problem, Tasks&& tasks_of, Terms&& terms_of) {
    std::unique_ptr<plan::TaskStream> tasks;
    std::optional<cuda::Surveyed> surveyed;
    runtime::agree(world_, [&] {
      IMBREX_EXPECTS(problem.ranks == world_.size(), "the plan is for {} ranks, the world has {}", problem.ranks,
                     world_.size());
      tasks = tasks_of();
      surveyed = cuda::survey(*tasks, world_.rank());
      return terms_of();
    });
    await_replays();
    const std::lock_guard guard(calls_.lock());
    quiesce();
    const bool by_library =
        !options_.kernel.empty() && cuda::library_name.find(options_.kernel) != std::string_view::npos;
    if (cuda::runs_by_libraries(tasks->frame()) || by_library) {
      IMBREX_EXPECTS(options_.ranks_per_gpu == 1, "{} ranks to a GPU: library collectives need a GPU for each rank",
                     options_.ranks_per_gpu);
      if (libraries_ == nullptr) libraries_ = cuda::make_libraries(world_, calls_, device_);
      return libraries_->prepare(*tasks->whole(), options_);
    }
    return std::make_unique<cuda::CudaExecution>(world_, heap_, calls_, faults_, device_, std::move(tasks),
                                                 *std::move(surveyed), tables_, options_);
  }

  // Loading kernels, taking memory and starting NCCL want idle GPUs, on all ranks.
  void quiesce() {
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    const bool called = calls_.drain();
    if (called || calls_.captured()) world_.barrier();
  }

  // Of graphs that hold calls nobody tells when they run. Not under the lock: whoever looks after them needs it to end
  // them where a rank is lost.
  void await_replays() {
    if (!calls_.captured()) return;
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  }

  void release(std::size_t offset) noexcept {
    cudaSetDevice(device_);
    try {
      calls_.drain();
    } catch (const std::exception&) {  // the world failed, and nobody writes any more
    }
    heap_.release(offset);
  }

  World& world_;
  CudaOptions options_;
  int device_;
  runtime::CudaHeap heap_;
  cuda::StreamCalls calls_;
  cuda::FaultPool faults_;
  cuda::TableMemory tables_;                    // between executions that are made
  std::shared_ptr<cuda::Libraries> libraries_;  // made for the first plan that needs them
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(World& world, const CudaOptions& options) {
  runtime::agree(world, [&] {
    IMBREX_EXPECTS(options.max_delay >= 0 && options.max_delay <= 1, "max_delay = {} s: it must be from 0 to 1",
                   options.max_delay);
    runtime::Terms terms("an executor on GPUs");
    execute::add(terms, options);
    return terms;
  });
  return std::make_unique<CudaExecutor>(world, options);
}

}  // namespace imbrex
