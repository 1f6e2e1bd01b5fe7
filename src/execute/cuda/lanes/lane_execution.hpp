// A plan with library queues on one rank's GPU. What an epoch launches is planned by lanes/lane_plan.hpp: Imbrex'
// kernel, where the plan has compute tasks, on the caller's stream, and the lanes' steps on other streams. With a
// kernel, workspaces and counters are the kernel's, in the heap; without one, workspaces are plain memory.
//
// Limits. Without a kernel the host times the epochs that were queued, and those of replays by marks that captured
// epochs make (times/replay_marks.hpp). With a kernel, waits of the kernel and of joints have limits of their own, and
// joints tell the host which collective is under way, in replays too.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "execute/cuda/fused/cuda_execution.hpp"
#include "execute/cuda/lanes/epoch_queue.hpp"
#include "execute/cuda/lanes/joint.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/lanes/lane_streams.hpp"
#include "execute/cuda/libraries/library_steps.hpp"
#include "execute/cuda/libraries/shared_libraries.hpp"
#include "execute/cuda/times/replay_marks.hpp"
#include "execute/cuda/times/step_times.hpp"
#include "execute/cuda/work_on_gpu.hpp"
#include "runtime/late.hpp"

namespace imbrex::cuda {

class LaneExecution final : public StreamExecution {
 public:
  /// What executions that take turns share.
  struct Turn {
    std::shared_ptr<EpochQueue<LaneExecution>> queue;
    std::shared_ptr<SharedRoom> room;
    std::shared_ptr<LaneStreams> streams;
    std::shared_ptr<MarkRoom> marks;
  };

  /// Collective. `kernel`: where the lanes run concurrently with one, made with as many more readers as the lanes have
  /// joints; else null.
  LaneExecution(std::shared_ptr<SharedLibraries> libraries, LanePlan lanes, std::unique_ptr<CudaExecution> kernel,
                const CudaOptions& options);
  /// Not collective: one of several without a kernel that take turns. The libraries lack nothing for the plan, and no
  /// call of the rank is under way.
  LaneExecution(std::shared_ptr<SharedLibraries> libraries, LanePlan lanes, const CudaOptions& options,
                const Turn& turn);
  ~LaneExecution() override;

  /// Whether some graph may hold its calls.
  bool captured() const { return captured_; }

  void look() noexcept override;
  cudaStream_t stream() const override { return kernel_ != nullptr ? kernel_->stream() : own_stream_; }
  std::string_view kernel_name() const override { return kernel_ != nullptr ? kernel_->kernel_name() : library_name; }
  CodecReport codec_report() override;
  std::int64_t take_misfits(Misfits misfits) override;

 private:
  using Clock = std::chrono::steady_clock;

  // Delegated to, so that the destructor, which knows what may be freed, runs where the rest of a constructor throws.
  LaneExecution(const CudaOptions& options, std::shared_ptr<SharedLibraries>&& libraries, LanePlan&& lanes,
                std::unique_ptr<CudaExecution>&& kernel);

  void launch(const Addresses& operands, cudaStream_t main, Call call) override;
  void await(cudaStream_t stream) override;
  void expect_sound() override;
  std::vector<Span> spans() override;

  const Plan& plan() const { return lanes_.libraries; }
  void make_steps();
  void make_streams(std::shared_ptr<LaneStreams> streams);
  void make_marks(std::shared_ptr<MarkRoom> room);
  void make_joints();
  void run_first();
  void load_products(const Addresses& operands, cudaStream_t stream);
  void expect_operands(const Addresses& operands) const;
  void expect_captures() const;
  void launch_epoch(const Addresses& operands, cudaStream_t main, cudaEvent_t begun, Call call);
  void launch_step(std::size_t step, const Addresses& operands, cudaStream_t stream);
  void finish_oldest();
  void finish_epoch();
  void look_at_epochs();
  void look_at_replays();
  void look_at_record();
  // By the rule of waits: `tell` gets ranks that are late, `message` the limit that is passed.
  template <typename Tell, typename Message>
  void judge(runtime::BoundedWait& wait, Tell&& tell, Message&& message);
  runtime::BoundedWait new_wait() const;
  void tell_late(const std::vector<int>& late, std::uint64_t epoch, const Problem& problem);
  // `late` says what was waited for past the limit, in seconds; without a limit `look` alone ends it.
  template <typename Query, typename Late>
  void await_within(Query&& query, std::optional<double> limit, Late&& late);
  std::string name_of_step(std::size_t step) const;
  static std::string late(const std::string& what, double limit);
  std::string late_in(const std::string& what, double limit, std::uint64_t epoch) const;
  std::string late_epoch(double limit) const;
  bool busy() const;
  void end(const std::string& message) noexcept;
  [[noreturn]] void give_up(const std::string& message);

  std::shared_ptr<SharedLibraries> libraries_;
  World& world_;
  CudaOptions options_;
  LanePlan lanes_;
  std::unique_ptr<CudaExecution> kernel_;
  std::unique_ptr<LibrarySteps> steps_;
  std::unique_ptr<StepTimes> times_;  // timelines only
  std::shared_ptr<LaneStreams> streams_;
  cudaStream_t own_stream_ = nullptr;  // lane 0, of work that is not captured
  std::vector<cudaEvent_t> ended_;     // by step; null where no stream waits for it
  std::vector<cudaEvent_t> joined_;    // by stream
  cudaEvent_t forked_ = nullptr;       // where a captured epoch begins
  std::shared_ptr<EpochQueue<LaneExecution>> queue_;
  std::unique_ptr<ReplayMarks> replays_;  // of a plan without a kernel, where other ranks are waited for
  std::vector<JointArgs> joints_;
  RawMemory joint_tables_;
  std::unique_ptr<LaneRecord, HostFree> record_;
  // The record's last step that was seen, how long it may last, and the epochs that it tells of so far.
  std::uint64_t seen_ = 0;
  std::optional<runtime::BoundedWait> record_wait_, replay_wait_;
  std::uint32_t begun_ = 0;
  bool loaded_ = false;  // every product has run once
  bool captured_ = false, dead_ = false, stuck_ = false;
};

}  // namespace imbrex::cuda
