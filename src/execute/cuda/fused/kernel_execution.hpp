// What executions share whose kernels wait for peers: how a wait that passed its limit, here or elsewhere, ends them.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "execute/cuda/lanes/stream_execution.hpp"
#include "imbrex/device/protocol.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

class KernelExecution : public StreamExecution {
 public:
  void look() noexcept final;

 protected:
  KernelExecution(World& world, StreamCalls& calls, int device, bool records);

  void await(cudaStream_t stream) final;
  void expect_sound() final;

  /// Says what the fault that is written down is.
  virtual std::string fault_message() const = 0;
  /// Names the epoch in which the fault tells of a late rank, which is `late`.
  virtual std::string late_name(int late) const = 0;

  /// In a destructor: waits for what was queued here, and for the peers, whose last epochs may reach this rank's
  /// memory.
  void end_with_peers() noexcept;

  World& world_;
  int device_;
  device::Fault* fault_ = nullptr;  // set before anything is queued

 private:
  [[noreturn]] void throw_fault();

  int exceptions_;  // in flight when it was made
  bool dead_ = false;
};

}  // namespace imbrex::cuda
