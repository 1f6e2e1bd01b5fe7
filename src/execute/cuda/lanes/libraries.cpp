#include "execute/cuda/lanes/libraries.hpp"

#include <utility>

#include "execute/cuda/lanes/lane_execution.hpp"

namespace imbrex::cuda {
namespace {

// What plans that take turns are taken to have: they share a queue, whose length is not known when the first is made.
constexpr std::size_t most_steps_in_turns = 32;

class Turns final : public LibraryTurns, public std::enable_shared_from_this<Turns> {
 public:
  Turns(std::shared_ptr<SharedLibraries> libraries, const CudaOptions& options)
      : libraries_(std::move(libraries)), options_(options) {}

  std::string lacks(const Plan& plan) const override { return libraries_->lacks(plan); }

  std::shared_ptr<Execution> prepare(LanePlan lanes) override {
    // Taking and giving back memory, and loading kernels, can wait for what runs, which waits for other ranks.
    libraries_->calls().drain();
    dropped_.clear();
    std::unique_ptr<LaneExecution> made;
    try {
      made = std::make_unique<LaneExecution>(libraries_, std::move(lanes), options_, turn_);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::runtime_failure) libraries_->world().fail(error.what());
      throw;
    }
    return {made.release(), [self = shared_from_this()](Execution* e) {
              self->drop(std::unique_ptr<LaneExecution>(static_cast<LaneExecution*>(e)));
            }};
  }

 private:
  // Its last call may be under way.
  void drop(std::unique_ptr<LaneExecution> execution) {
    const std::lock_guard guard(libraries_->calls().lock());
    (execution->captured() ? held_ : dropped_).push_back(std::move(execution));
  }

  std::shared_ptr<SharedLibraries> libraries_;
  CudaOptions options_;
  LaneExecution::Turn turn_{std::make_shared<EpochQueue<LaneExecution>>(most_steps_in_turns),
                            std::make_shared<SharedRoom>(), std::make_shared<LaneStreams>(true),
                            std::make_shared<MarkRoom>()};
  std::vector<std::unique_ptr<LaneExecution>> dropped_, held_;
};

class PreparingLibraries final : public Libraries {
 public:
  PreparingLibraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu)
      : shared_(std::make_shared<SharedLibraries>(world, calls, device, ranks_per_gpu)) {}

  std::unique_ptr<StreamExecution> prepare(LanePlan lanes, std::unique_ptr<CudaExecution> kernel,
                                           const CudaOptions& options) override {
    try {
      return std::make_unique<LaneExecution>(shared_, std::move(lanes), std::move(kernel), options);
    } catch (const Error& error) {
      // Refusals are alike on all ranks; any other failure the others must learn of.
      if (error.code() == ErrorCode::runtime_failure) shared_->world().fail(error.what());
      throw;
    }
  }

  std::shared_ptr<LibraryTurns> take_turns(std::vector<LanePlan> plans, const CudaOptions& options) override {
    if (turns_ == nullptr) turns_ = std::make_shared<Turns>(shared_, options);
    for (LanePlan& lanes : plans) {
      // Makes the communicators, loads kernels, and lets NCCL connect as it does for such sizes.
      static_cast<void>(prepare(LanePlan(lanes), nullptr, options));
      // Makes the room that they share as large as such plans need: calls take no more of it.
      static_cast<void>(turns_->prepare(std::move(lanes)));
    }
    return turns_;
  }

 private:
  std::shared_ptr<SharedLibraries> shared_;
  std::shared_ptr<Turns> turns_;
};

}  // namespace

std::shared_ptr<Libraries> make_libraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu) {
  return std::make_shared<PreparingLibraries>(world, calls, device, ranks_per_gpu);
}

}  // namespace imbrex::cuda
