// A kernel of one source for GPUs and CPUs. On a GPU it is what it always was; on the CPU a block is one host thread,
// whose groups have size 1, so kernels loop by `group.size()`.
//
//     IMBREX_KERNEL ring(imbrex::shmem::Handle handle, int* box) { ... }
//     imbrex::shmem::launch(heap, {.blocks = 4, .threads = 128}, ring, heap.handle(), box);
//
// Kernels of one name must not be compiled both as CUDA and as C++ into one program: an unnamed namespace keeps them
// apart.
#pragma once

#include <cstdint>

#include "imbrex/device/ordering.hpp"

#if defined(__CUDACC__)
#define IMBREX_KERNEL __global__ void
#else
#define IMBREX_KERNEL inline void
#endif

namespace imbrex::shmem {

#if !defined(__CUDA_ARCH__)
/// Which block of how many the calling host thread is.
struct HostBlock {
  std::uint32_t index = 0, count = 1;
};
inline thread_local HostBlock host_block;
#endif

/// The number of the calling thread's block, in the grid's order: x first.
IMBREX_DEVICE std::uint32_t block_index() {
#if defined(__CUDA_ARCH__)
  // NOTE: volatile, as in Block.
  std::uint32_t x, y, z;
  asm volatile("mov.u32 %0, %%ctaid.x;\n\tmov.u32 %1, %%ctaid.y;\n\tmov.u32 %2, %%ctaid.z;"
               : "=r"(x), "=r"(y), "=r"(z));
  return x + gridDim.x * (y + gridDim.y * z);
#else
  return host_block.index;
#endif
}

IMBREX_DEVICE std::uint32_t block_count() {
#if defined(__CUDA_ARCH__)
  return gridDim.x * gridDim.y * gridDim.z;
#else
  return host_block.count;
#endif
}

}  // namespace imbrex::shmem
