#include "execute/cuda/fused/kernel_execution.hpp"

#include <fmt/format.h>

#include <exception>

#include "base/check.hpp"
#include "runtime/cuda/await_stream.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/fault_pool.hpp"
#include "runtime/failure.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::cuda {

KernelExecution::KernelExecution(World& world, StreamCalls& calls, int device, bool records)
    : StreamExecution(calls, records), world_(world), device_(device), exceptions_(std::uncaught_exceptions()) {}

void KernelExecution::end_with_peers() noexcept {
  try {
    calls().drain();
    cudaDeviceSynchronize();
    // Behind an exception, this rank is the first to know that it ends.
    if (std::uncaught_exceptions() == exceptions_) world_.barrier();
  } catch (const std::exception&) {  // the world failed, and no peer reads or writes any more
  }
}

void KernelExecution::await(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  const cudaError_t status = runtime::await_stream(stream, [&] {
    look();
    calls().look();
  });
  if (status != cudaSuccess) {
    dead_ = true;
    runtime::fail(world_, fmt::format("rank {}: the GPU reports: {}", world_.rank(), cudaGetErrorString(status)));
  }
  if (runtime::is_faulty(*fault_) || fault_->abort != 0) throw_fault();
}

// Tells the other ranks of a wait of this one that passed its limit; where the world has failed, ends this rank's
// waits, whose posts may not come.
void KernelExecution::look() noexcept {
  try {
    world_.throw_if_failed();
    if (const int late = runtime::take_late_rank(*fault_); late >= 0)
      runtime::tell_late(world_, {late}, late_name(late));
    if (fault_->state == device::Fault::clear || dead_) return;
    world_.fail(fault_message());
    world_.throw_if_failed();
  } catch (const std::exception&) {
    fault_->abort = 1;
  }
}

void KernelExecution::expect_sound() {
  if (runtime::is_faulty(*fault_)) throw_fault();
  world_.throw_if_failed();
  IMBREX_EXPECTS(!dead_, "this execution failed before");
}

void KernelExecution::throw_fault() {
  dead_ = true;
  if (fault_->state != device::Fault::clear) runtime::fail(world_, fault_message());
  runtime::fail_as_told(world_);
}

}  // namespace imbrex::cuda
