// A kernel as anybody may write it, on installed headers: ranks pass a token around.
#include "gpu/shmem/token_ring.hpp"

namespace imbrex::test {
namespace {

/// One thread of each rank. In a lap the token goes from rank 0 to the last one and back, and each adds one.
__global__ void pass(const device::Group group, Box* own, std::uint32_t laps) {
  const std::uint64_t epoch = device::read_epoch(group);
  Box* next = device::at_rank(group, own, (group.rank + 1) % group.ranks);
  const std::uint32_t before = static_cast<std::uint32_t>(epoch) * laps;  // visits in earlier epochs
  bool well = !device::given_up(group, false);                            // a call after one that failed stores nothing
  for (std::uint32_t lap = 0; well && lap < laps; ++lap) {
    device::pause_for_tests(group, epoch, lap);
    const std::uint32_t visits = group.rank == 0 ? lap : lap + 1;  // rank 0 begins
    well = device::wait_for(group, &own->came, before + visits, [&](device::Fault& fault, std::uint32_t seen) {
      fault.place[0] = lap;
      fault.expected = visits;
      fault.seen = seen - before;
      fault.epoch = epoch;
    });
    if (!well) break;
    next->token = own->token + 1;
    device::post_add(group, &next->came, 1);
  }
  device::advance_epoch(group, epoch);
}

}  // namespace

cudaError_t pass_token(const device::Group& group, Box* own, std::uint32_t laps, cudaStream_t stream) {
  pass<<<1, 1, 0, stream>>>(group, own, laps);
  return cudaPeekAtLastError();
}

cudaError_t load_pass_token() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, pass);
}

}  // namespace imbrex::test
