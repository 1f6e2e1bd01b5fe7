#include "embedding/reader.hpp"

namespace imbrex::test {
namespace {

__global__ void read_slice(const Reader r) {
  __shared__ bool met;
  std::uint64_t epoch = 0;
  if (threadIdx.x == 0) {
    epoch = device::read_epoch(r.group);
    const std::uint32_t expected = (static_cast<std::uint32_t>(epoch) + 1) * r.posts;
    met = device::wait_for(r.group, r.done + blockIdx.x, expected, [&](device::Fault& fault, std::uint32_t seen) {
      fault.place[0] = blockIdx.x, fault.expected = expected, fault.seen = seen, fault.epoch = epoch;
    });
    device::pause_for_tests(r.group, epoch, blockIdx.x);
  }
  __syncthreads();
  const std::uint64_t begin = std::uint64_t{blockIdx.x} * r.slice_rows * r.row_bytes;
  const std::uint64_t all = std::uint64_t{r.rows} * r.row_bytes;
  const std::uint64_t end = begin + std::uint64_t{r.slice_rows} * r.row_bytes;
  for (std::uint64_t i = begin + threadIdx.x; met && i < (end < all ? end : all); i += blockDim.x) {
    if (__ldcv(reinterpret_cast<const unsigned char*>(r.part) + i) != static_cast<unsigned char>(r.wanted[i]))
      atomicAdd(r.faults, 1ull);
    r.part[i] = std::byte{0x5a};  // what columns of no table hold
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (std::uint32_t s = 0; met && s < r.ranks; ++s) device::post_add(r.group, r.entered[s], 1);
  device::advance_epoch(r.group, epoch);
}

}  // namespace

cudaError_t launch_reader(const Reader& reader, cudaStream_t stream) {
  read_slice<<<reader.group.readers, 128, 0, stream>>>(reader);
  return cudaPeekAtLastError();
}

}  // namespace imbrex::test
