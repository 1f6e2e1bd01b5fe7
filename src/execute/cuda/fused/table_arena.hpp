// Device memory for tables that are made while kernels run, which may wait for other ranks: to take memory from the
// driver, or give it back, may wait for them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "runtime/cuda/raw_memory.hpp"
#include "runtime/heap.hpp"

namespace imbrex::cuda {

class TableArena {
 public:
  /// Takes that many bytes from the driver. Nothing waits.
  explicit TableArena(std::size_t bytes);

  /// Takes from the driver what it has less than so many bytes, while no kernel runs that waits for another rank.
  void reserve(std::size_t bytes);

  /// So many bytes, aligned to 256, on the current device. Where nothing is left, it takes more in the order of
  /// `stream`, and waits for that stream alone.
  std::byte* take(std::size_t bytes, cudaStream_t stream);

  /// What take gave, which no kernel reads any more.
  void give_back(const std::byte* memory) noexcept;

 private:
  struct Piece {
    RawMemory memory;
    std::size_t bytes = 0;
    runtime::OffsetAllocator free;
    std::byte* begin() const { return static_cast<std::byte*>(memory.get()); }
  };

  std::vector<Piece> pieces_;
};

}  // namespace imbrex::cuda
