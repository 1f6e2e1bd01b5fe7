// The solve's kernels as functions, for code that is not compiled for their device.
#pragma once

#include <memory>

#include "apps/sparse/kernels.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::apps::sparse {

/// Right-hand sides that a warp does at once, by whether there are several.
inline constexpr std::uint32_t one_column = 1, several_columns = 4;

/// `columns` is one of the two above.
struct SolveGrid {
  std::uint32_t blocks, columns;
  CudaStream stream;
};

/// Launches on one kind of device.
template <typename T>
struct Launches {
  /// Warps of a block.
  std::uint32_t warps;
  /// Blocks that this PE's part of the GPU holds at once; 0: any number.
  std::uint32_t (*most_blocks)(shmem::Heap& heap, std::uint32_t columns, bool by_ring);
  void (*in_kernel)(shmem::Heap& heap, const SolveGrid& grid, const SystemArgs<T>& args);
  void (*by_ring)(shmem::Heap& heap, const SolveGrid& grid, const SystemArgs<T>& args);
  void (*step)(shmem::Heap& heap, const SolveGrid& grid, const SystemArgs<T>& args, std::uint64_t epoch,
               std::uint32_t begin, std::uint32_t end);
  /// A copy of so many bytes, more than 0, where the kernels of this heap work.
  std::shared_ptr<void> (*place)(shmem::Heap& heap, const void* bytes, std::size_t count);
};

template <typename T>
const Launches<T>& host_launches();
/// Throws Error(invalid_input) in a build without CUDA.
template <typename T>
const Launches<T>& gpu_launches();

namespace {

template <typename T, std::uint32_t warps, typename Transport>
void launch_in_kernel(shmem::Heap& heap, const SolveGrid& grid, const SystemArgs<T>& args) {
  shmem::launch(heap, {.blocks = grid.blocks, .threads = warps * 32, .stream = grid.stream},
                grid.columns == one_column ? &solve_in_kernel<T, one_column, Transport>
                                           : &solve_in_kernel<T, several_columns, Transport>,
                heap.handle(), args);
}

/// For the source that defines one of the two.
template <typename T, std::uint32_t warps>
Launches<T> launches_here(std::uint32_t (*most_blocks)(shmem::Heap&, std::uint32_t, bool),
                          std::shared_ptr<void> (*place)(shmem::Heap&, const void*, std::size_t)) {
  constexpr std::uint32_t threads = warps * 32;
  return {warps,
          most_blocks,
          launch_in_kernel<T, warps, shmem::LoadStore>,
          launch_in_kernel<T, warps, shmem::Ring>,
          [](shmem::Heap& heap, const SolveGrid& grid, const SystemArgs<T>& args, std::uint64_t epoch,
             std::uint32_t begin, std::uint32_t end) {
            shmem::launch(heap, {.blocks = grid.blocks, .threads = threads, .stream = grid.stream},
                          grid.columns == one_column ? &solve_step<T, one_column, shmem::LoadStore>
                                                     : &solve_step<T, several_columns, shmem::LoadStore>,
                          heap.handle(), args, epoch, begin, end);
          },
          place};
}

}  // namespace
}  // namespace imbrex::apps::sparse
