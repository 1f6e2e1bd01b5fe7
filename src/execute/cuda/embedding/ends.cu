#include "execute/cuda/embedding/ends.hpp"
#include "runtime/cuda/one_block.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 64;  // a slice each, and a rank

__global__ void __launch_bounds__(threads) enter(const __grid_constant__ EndsArgs a) {
  const std::uint32_t rank = threadIdx.x;
  if (rank >= a.group.ranks || rank == a.group.rank || device::given_up(a.group, false)) return;
  const std::uint64_t epoch = device::read_epoch(a.group);
  device::pause_for_tests(a.group, epoch, 1, rank);
  device::post_add(a.group, device::at_rank(a.group, a.entered + a.group.rank * a.step, rank), 1u);
  device::enter_epoch(a.group, epoch);
}

__global__ void __launch_bounds__(threads) arrive(const __grid_constant__ EndsArgs a) {
  const std::uint64_t read = device::read_epoch(a.group), next = a.advances ? read + 1 : read;
  __syncthreads();
  const std::uint32_t slice = threadIdx.x;
  if (slice < a.slices && a.posts > 0) {
    const std::uint32_t before = static_cast<std::uint32_t>(next - 1) * a.posts;
    device::wait_for(a.group, a.done + slice * a.step, before + a.posts, [&](device::Fault& fault, std::uint32_t seen) {
      fault.kind = static_cast<std::uint32_t>(LookUpFault::arrived);
      fault.place[0] = slice;
      fault.expected = a.posts;
      fault.seen = seen - before;
      fault.epoch = next - 1;
    });
  }
  __syncthreads();
  if (a.advances && threadIdx.x == 0) device::advance_epoch(a.group, read);
}

}  // namespace

cudaError_t launch_enter(const EndsArgs& args, cudaStream_t stream) {
  return launch_one_block(enter, threads, args, stream);
}

cudaError_t launch_arrive(const EndsArgs& args, cudaStream_t stream) {
  return launch_one_block(arrive, threads, args, stream);
}

cudaError_t load_ends() {
  if (const cudaError_t status = load(enter); status != cudaSuccess) return status;
  return load(arrive);
}

}  // namespace imbrex::cuda
