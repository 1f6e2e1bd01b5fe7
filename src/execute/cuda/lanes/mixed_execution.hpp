// Plans with library queues beside tiles on one rank's GPU: Imbrex' kernel on the caller's stream, a stream of higher
// priority for each library lane, forked from it where the epoch begins and joined to it at its end. What joins the
// lanes within the epoch is planned by lanes/lane_plan.hpp. Workspaces and counters are the kernel's, in the heap.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "execute/cuda/lanes/cuda_execution.hpp"
#include "execute/cuda/lanes/joint.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/libraries/library_steps.hpp"
#include "execute/cuda/libraries/shared_libraries.hpp"
#include "execute/cuda/times/step_times.hpp"

namespace imbrex::cuda {

class MixedExecution final : public StreamExecution {
 public:
  /// Collective. `kernel` was made with as many readers beside its own as the lanes have joints.
  MixedExecution(std::shared_ptr<SharedLibraries> libraries, LanePlan lanes, std::unique_ptr<CudaExecution> kernel,
                 const CudaOptions& options);
  ~MixedExecution() override;

  void look() noexcept override;
  cudaStream_t stream() const override { return kernel_->stream(); }
  std::string_view kernel_name() const override { return kernel_->kernel_name(); }
  CodecReport codec_report() override;

 private:
  using Clock = std::chrono::steady_clock;

  // Delegated to, so that the destructor runs where the rest of a constructor throws.
  MixedExecution(const CudaOptions& options, std::shared_ptr<SharedLibraries>&& libraries, LanePlan&& lanes,
                 std::unique_ptr<CudaExecution>&& kernel);

  void launch(const Addresses& operands, cudaStream_t main, Call call) override;
  void await(cudaStream_t stream) override;
  void expect_sound() override;
  std::vector<Span> spans() override;

  void make_streams();
  void make_joints();
  void run_first();
  void launch_lanes(const Addresses& operands);
  void expect_captures() const;
  void finish_oldest();
  template <typename Query>
  void await_within(Query&& query, double limit);
  std::string name_of_step(std::size_t step) const;
  bool busy() const;
  void end(const std::string& message) noexcept;
  [[noreturn]] void give_up(const std::string& message);

  std::shared_ptr<SharedLibraries> libraries_;
  World& world_;
  CudaOptions options_;
  LanePlan lanes_;
  std::unique_ptr<CudaExecution> kernel_;
  std::unique_ptr<LibrarySteps> steps_;
  std::unique_ptr<StepTimes> times_;  // where a timeline is wanted
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> ended_;   // by step; null where nobody waits for it
  std::vector<cudaEvent_t> joined_;  // by stream
  cudaEvent_t forked_ = nullptr;
  std::vector<cudaEvent_t> done_;  // of the epochs that are queued, in turn
  std::uint64_t queued_ = 0, finished_ = 0;
  std::vector<JointArgs> joints_;
  RawMemory joint_tables_;
  std::unique_ptr<LaneRecord, HostFree> record_;
  std::uint64_t seen_ = 0;  // of the record, since when
  Clock::time_point since_{};
  bool dead_ = false, stuck_ = false;
};

}  // namespace imbrex::cuda
