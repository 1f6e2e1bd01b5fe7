// The solve's kernels for GPUs.
#include <algorithm>

#include "apps/sparse/launches.hpp"

namespace imbrex::apps::sparse {
namespace {

constexpr std::uint32_t block_warps = 8;

void fail(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw Error(ErrorCode::runtime_failure, std::string(call) + " failed: " + cudaGetErrorString(status));
}

std::shared_ptr<void> place(shmem::Heap& heap, const void* bytes, std::size_t count) {
  fail(cudaSetDevice(heap.gpu()), "cudaSetDevice");
  void* made = nullptr;
  fail(cudaMalloc(&made, count), "cudaMalloc");
  std::shared_ptr<void> memory(made, [](void* p) { cudaFree(p); });
  fail(cudaMemcpy(made, bytes, count, cudaMemcpyHostToDevice), "cudaMemcpy");
  // A copy from pageable memory may return before its last part has arrived.
  fail(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return memory;
}

template <typename T>
std::uint32_t most_blocks(shmem::Heap& heap, std::uint32_t columns, bool by_ring) {
  fail(cudaSetDevice(heap.gpu()), "cudaSetDevice");
  const auto of = [&](const void* kernel) {
    int blocks = 0;
    fail(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block_warps * 32, 0),
         "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks;
  };
  const auto least = [&]<std::uint32_t width>() {
    if (by_ring) return of(reinterpret_cast<const void*>(&solve_in_kernel<T, width, shmem::Ring>));
    return std::min(of(reinterpret_cast<const void*>(&solve_in_kernel<T, width, shmem::LoadStore>)),
                    of(reinterpret_cast<const void*>(&solve_step<T, width, shmem::LoadStore>)));
  };
  const int each =
      columns == one_column ? least.template operator()<one_column>() : least.template operator()<several_columns>();
  return static_cast<std::uint32_t>(each * heap.multiprocessors());
}

}  // namespace

template <typename T>
const Launches<T>& gpu_launches() {
  static const Launches<T> launches = launches_here<T, block_warps>(most_blocks<T>, place);
  return launches;
}
template const Launches<float>& gpu_launches<float>();
template const Launches<double>& gpu_launches<double>();

}  // namespace imbrex::apps::sparse
