#include "apps/nic/memory_keys.hpp"

#include "apps/common/check.hpp"

namespace imbrex::shmem::mlx5 {

void MemoryKeys::add(std::uint32_t key, std::byte* at, std::uint64_t bytes) {
  apps::expect(find(key, 0, 0) == nullptr, "memory key {:#x} is taken", key);
  regions_.push_back({key, at, bytes});
}

std::byte* MemoryKeys::find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const {
  for (const Region& region : regions_)
    if (region.key == key && address <= region.bytes && bytes <= region.bytes - address) return region.at + address;
  return nullptr;
}

}  // namespace imbrex::shmem::mlx5
