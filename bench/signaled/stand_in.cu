// The functions of NCCL that Imbrex finds in it.
#include "signaled/stand_in.hpp"

#include <nccl.h>

#include <cstdint>

struct ncclComm {
  int blocks = 32;
};

namespace {

imbrex::bench::Curve curve;

__device__ __forceinline__ std::uint64_t now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// A block moves its part in steps, none before its time, so that the bytes flow evenly.
__global__ void __launch_bounds__(512) move(const uint4* from, uint4* to, std::uint64_t packets, std::uint64_t ns) {
  const std::uint64_t begin = now_ns();
  const std::uint64_t first = packets * blockIdx.x / gridDim.x, last = packets * (blockIdx.x + 1) / gridDim.x;
  constexpr std::uint64_t step = 4 * 512;
  for (std::uint64_t at = first; at < last; at += step) {
    uint4 held[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (const std::uint64_t q = at + k * 512 + threadIdx.x; q < last) held[k] = __ldcs(from + q);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (const std::uint64_t q = at + k * 512 + threadIdx.x; q < last) __stcs(to + q, held[k]);
    const std::uint64_t share = ns * (at - first + step) / (last - first);
    while (now_ns() - begin < (share < ns ? share : ns)) __nanosleep(50);
    __syncthreads();
  }
  while (now_ns() - begin < ns) __nanosleep(50);
}

std::size_t size_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 2; }

}  // namespace

extern "C" {

void stand_in_set_curve(const imbrex::bench::Curve* given) { curve = *given; }

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "the stand-in refused";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int, ncclConfig_t* config) {
  if (ranks != 1) return ncclInvalidArgument;
  *comm = new ncclComm;
  if (config != nullptr && config->maxCTAs > 0) (*comm)->blocks = config->maxCTAs;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  if (bytes % 16 != 0 || curve.count < 2) return ncclInvalidArgument;
  const auto ns = static_cast<std::uint64_t>(curve.at(static_cast<double>(bytes)) * 1e9);
  move<<<comm->blocks, 512, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / 16, ns);
  return cudaGetLastError() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"
