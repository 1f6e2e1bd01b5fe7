#include "runtime/cuda/device.hpp"

#include "runtime/cuda/check.hpp"

namespace imbrex::runtime {

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

int select_device(World& world) {
  const int count = device_count(), device = world.rank();
  if (count < world.size())
    throw Error(ErrorCode::runtime_failure,
                fmt::format("{} ranks need a GPU each, and this process sees {}", world.size(), count));
  IMBREX_CUDA_TRY(cudaSetDevice(device));
  IMBREX_CUDA_TRY(cudaFree(nullptr));
  for (int peer = 0; peer < world.size(); ++peer) {
    if (peer == device) continue;
    int reaches = 0, atomics = 0;
    IMBREX_CUDA_TRY(cudaDeviceCanAccessPeer(&reaches, device, peer));
    IMBREX_CUDA_TRY(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer));
    if (reaches == 0 || atomics == 0)
      throw Error(
          ErrorCode::runtime_failure,
          fmt::format("GPU {} {} GPU {}: the CUDA executor needs peer access with native atomics between all GPUs",
                      device, reaches == 0 ? "cannot reach the memory of" : "has no native atomics on", peer));
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      IMBREX_CUDA_TRY(status);
  }
  world.barrier();
  return device;
}

}  // namespace imbrex::runtime
