// What the executions with library collectives of one executor share: cuBLASLt's handle, NCCL's communicators,
// and our own collectives.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/lanes/stream_calls.hpp"
#include "imbrex/plan.hpp"
#include "runtime/cuda/libraries/cublas_lt.hpp"
#include "runtime/cuda/libraries/nccl.hpp"

namespace imbrex::cuda {

class SharedLibraries {
 public:
  /// The device is selected. Throws Error(runtime_failure) naming the library that cannot be loaded.
  SharedLibraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu);
  ~SharedLibraries();
  SharedLibraries(const SharedLibraries&) = delete;
  SharedLibraries& operator=(const SharedLibraries&) = delete;

  World& world() const { return world_; }
  StreamCalls& calls() const { return calls_; }
  int device() const { return device_; }
  cublasLtHandle_t handle() const { return handle_.get(); }

  /// Collective over the world, with the same arguments on every rank: makes the communicators that there are not yet,
  /// whose collectives take no more than `most_sms`, or with 0 as many as NCCL likes.
  /// Throws Error(invalid_input), on every rank, where a rank's environment does not let NCCL be used.
  void make_communicators(const std::set<std::vector<int>>& rank_sets, int most_sms = 0);

  /// The one of a set that this rank belongs to, and that was made.
  runtime::Communicator& communicator(const std::vector<int>& ranks, int most_sms = 0) const {
    return *communicators_.at({most_sms, ranks});
  }

  /// What a collective of the plan needs that is not there, in words; empty if nothing.
  std::string lacks(const Plan& plan) const;

  /// Why sends of the communicators, as in an all-to-all, are not captured, the same on every rank; empty if they are.
  const std::string& why_no_captured_sends() const { return why_no_captures_; }

  /// Collective, the first time: Imbrex' own collectives, of the world.
  CudaCollectives& collectives();

  /// Throws Error(runtime_failure) if a collective failed since.
  void check() const;

  /// Ends what is under way, on this rank. No collective may follow.
  void abort() noexcept;

 private:
  struct HandleDelete {
    void operator()(cublasLtHandle_t handle) const { runtime::cublas_lt().destroy(handle); }
  };

  World& world_;
  StreamCalls& calls_;
  int device_, ranks_per_gpu_;
  std::unique_ptr<cublasLtContext, HandleDelete> handle_;
  std::string why_no_captures_;
  using Key = std::pair<int, std::vector<int>>;  // most SMs; ranks
  std::set<Key> made_;                           // also those that this rank does not belong to
  std::map<Key, std::unique_ptr<runtime::Communicator>> communicators_;
  std::shared_ptr<CudaCollectives> collectives_;  // the world's
};

}  // namespace imbrex::cuda
