#include "apps/nic/memory_keys.hpp"

#include "apps/common/check.hpp"

namespace imbrex::shmem::mlx5 {

void MemoryKeys::add(std::uint32_t key, std::byte* at, std::uint64_t bytes, std::uint64_t first) {
  IMBREX_EXPECTS(find(key, first, 0) == nullptr, "memory key {:#x} is taken", key);
  regions_.push_back({key, at, bytes, first});
}

std::byte* MemoryKeys::find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const {
  for (const Region& region : regions_)
    if (const std::uint64_t offset = address - region.first;
        region.key == key && address >= region.first && offset <= region.bytes && bytes <= region.bytes - offset)
      return region.at + offset;
  return nullptr;
}

}  // namespace imbrex::shmem::mlx5
