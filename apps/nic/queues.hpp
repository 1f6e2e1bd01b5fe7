// A PE's queues over a symmetric heap: rings whose requests are prepared, doorbells, completions, keys.
#pragma once

#include <memory>
#include <vector>

#include "apps/nic/memory_keys.hpp"
#include "apps/nic/transport.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::shmem::mlx5 {

/// The same on every PE.
struct QueueOptions {
  std::uint32_t contexts = 4;        ///< that kernels may have at once; each has queues of its own
  std::uint32_t slots = 64;          ///< of a ring: a power of two from 2 to 32,768
  std::uint32_t largest = 1u << 30;  ///< bytes that one request moves
  std::uint32_t stage_bytes = 4096;  ///< of a context's piece of the heap, 64 or more
  std::uint64_t seed = 1;            ///< for keys
};

/// A queue as its NIC knows it.
struct Port {
  Queue* queue;
  Completion* completion;
  std::uint32_t number;  ///< 24 bits
  std::uint32_t slots;
  std::uint32_t pe;  ///< whom it is connected to
};

class Queues {
 public:
  /// Collective. The heap lies in memory of hosts, outlives it, and from now on is what Context<Mlx5> works on. Throws
  /// Error(invalid_input) on options out of range, Error(runtime_failure) where the heap has no room.
  Queues(Heap& heap, const QueueOptions& options);
  /// Collective: no PE's kernels or NIC use them any more.
  ~Queues();
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  // For the NIC.
  std::vector<Port>& ports() { return ports_; }
  /// Memory here, by local keys, and of each PE, by remote ones.
  const MemoryKeys& here() const { return here_; }
  const MemoryKeys& there(std::uint32_t pe) const { return there_[pe]; }

 private:
  struct Lines;

  Heap& heap_;
  Array<std::uint64_t> scratch_;  // each context's stage, and the results of each queue's atomic operations
  std::unique_ptr<Lines> lines_;
  std::vector<Port> ports_;
  MemoryKeys here_;
  std::vector<MemoryKeys> there_;
  Endpoint endpoint_{};
};

}  // namespace imbrex::shmem::mlx5
