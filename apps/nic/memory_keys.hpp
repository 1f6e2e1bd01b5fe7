// Memory that a NIC may reach, by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace imbrex::shmem::mlx5 {

class MemoryKeys {
 public:
  /// Requests call its first byte by the address `first`.
  void add(std::uint32_t key, std::byte* at, std::uint64_t bytes, std::uint64_t first = 0);

  /// Null where the key is unknown or the bytes do not lie in its region.
  std::byte* find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const;

 private:
  struct Region {
    std::uint32_t key;
    std::byte* at;
    std::uint64_t bytes, first;
  };
  std::vector<Region> regions_;
};

}  // namespace imbrex::shmem::mlx5
