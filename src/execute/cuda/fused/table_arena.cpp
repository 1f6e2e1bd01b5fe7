#include "execute/cuda/fused/table_arena.hpp"

#include <algorithm>

namespace imbrex::cuda {
namespace {

constexpr std::size_t granule = std::size_t{2} << 20;  // the driver gives no less

}  // namespace

TableArena::TableArena(std::size_t bytes) {
  pieces_.push_back({raw_memory(bytes), bytes, runtime::OffsetAllocator(bytes)});
}

void TableArena::reserve(std::size_t bytes) {
  std::size_t all = 0;
  for (const Piece& piece : pieces_) all += piece.bytes;
  if (all >= bytes) return;
  const std::size_t more = (bytes - all + granule - 1) / granule * granule;
  pieces_.push_back({raw_memory(more), more, runtime::OffsetAllocator(more)});
}

std::byte* TableArena::take(std::size_t bytes, cudaStream_t stream) {
  for (Piece& piece : pieces_)
    if (const auto offset = piece.free.allocate(bytes)) return piece.begin() + *offset;
  constexpr std::size_t unit = runtime::OffsetAllocator::alignment;
  const std::size_t more = std::max(pieces_.back().bytes, (bytes + unit - 1) / unit * unit);
  void* p = nullptr;
  IMBREX_CUDA_TRY(cudaMallocAsync(&p, more, stream));
  pieces_.push_back({RawMemory(p), more, runtime::OffsetAllocator(more)});
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  return pieces_.back().begin() + *pieces_.back().free.allocate(bytes);
}

void TableArena::give_back(const std::byte* memory) noexcept {
  for (Piece& piece : pieces_)
    if (memory >= piece.begin() && memory < piece.begin() + piece.bytes)
      piece.free.release(static_cast<std::size_t>(memory - piece.begin()));
}

}  // namespace imbrex::cuda
