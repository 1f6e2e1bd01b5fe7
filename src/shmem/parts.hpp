// What a Heap is made of.
#pragma once

#include <bitset>
#include <map>

#include "shmem/memory.hpp"

namespace imbrex::shmem {

struct Allocation {
  std::byte* raw;  ///< as the memory gave it
  std::size_t bytes;
};

struct Heap::Parts {
  Parts(World& its, const HeapOptions& options);

  Memory& memory() const { return data ? *data : *control; }
  void expect_pe(int pe) const;
  /// Whether loads and stores of this host, or copies of its GPU, reach the PE.
  bool is_near(int pe) const;
  /// A wait of this host ended early: throws why.
  [[noreturn]] void throw_failure();
  /// The place of `own` on a PE, as this one reaches it. Throws Error(invalid_input) for what the heap does not hold.
  std::byte* there(const void* own, std::size_t bytes, int pe) const;

  World& world;
  int exceptions;                   ///< in flight when the heap was made
  std::unique_ptr<Memory> control;  ///< of hosts: their teams, and the data where there are no GPUs
  std::unique_ptr<Memory> data;     ///< on GPUs
  std::map<std::byte*, Allocation> blocks;
  std::bitset<TeamStates::teams> teams;  ///< that this PE is a member of
};

}  // namespace imbrex::shmem
