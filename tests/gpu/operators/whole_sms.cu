#include "gpu/operators/whole_sms.hpp"

namespace imbrex::test {
namespace {

__device__ unsigned long long now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void __launch_bounds__(128, 1) take_whole_sms(Meeting* meeting, unsigned blocks, unsigned long long limit) {
  if (threadIdx.x != 0) return;
  atomicAdd(&meeting->arrived, 1u);
  const unsigned long long begin = now();
  while (*const_cast<volatile unsigned*>(&meeting->arrived) < blocks) {
    if (now() - begin > limit) {
      atomicAdd(&meeting->left, 1u);
      return;
    }
    __nanosleep(1000);
  }
}

}  // namespace

cudaError_t launch_whole_sms(Meeting* meeting, unsigned blocks, int bytes, unsigned long long limit_ns,
                             cudaStream_t stream) {
  take_whole_sms<<<blocks, 128, static_cast<std::size_t>(bytes), stream>>>(meeting, blocks, limit_ns);
  return cudaPeekAtLastError();
}

// NOTE: an SM has a KiB more than a block may take, and keeps one for each block: none is left for another one.
cudaError_t load_whole_sms(int& bytes) {
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (const cudaError_t status = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      status != cudaSuccess)
    return status;
  return cudaFuncSetAttribute(take_whole_sms, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace imbrex::test
