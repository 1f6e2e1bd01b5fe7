#include <cstdlib>
#include <cstring>

#include "imbrex/error.hpp"
#include "shmem/ring/pinned.hpp"
#include "shmem/ring/proxy.hpp"

namespace imbrex::shmem::ring {

std::shared_ptr<std::byte> memory_for(const Heap& heap, std::size_t bytes) {
  if (heap.device() == Device::cuda) return pinned_memory(heap.gpu(), bytes);
  constexpr std::size_t line = 64;
  const std::size_t whole = (bytes + line - 1) / line * line;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(line, whole));
  if (data == nullptr)
    throw Error(ErrorCode::runtime_failure, "no memory for " + std::to_string(bytes) + " bytes of rings");
  std::memset(data, 0, whole);
  return {data, std::free};
}

}  // namespace imbrex::shmem::ring
