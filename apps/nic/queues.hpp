// A PE's queues for a NIC of software, in memory of hosts: rings whose requests are prepared, doorbells, completions,
// keys. Real NICs' are in mlx5_nic.hpp.
#pragma once

#include <memory>
#include <vector>

#include "apps/nic/memory_keys.hpp"
#include "apps/nic/queue_layout.hpp"

namespace imbrex::shmem::mlx5 {

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
  const std::vector<Port>& ports() const { return ports_; }
  /// Memory here, by local keys, and of each PE, by remote ones.
  const MemoryKeys& here() const { return here_; }
  const std::vector<MemoryKeys>& there() const { return there_; }

 private:
  struct Lines;

  Heap& heap_;
  QueueLayout layout_;
  Array<std::uint64_t> scratch_;
  std::unique_ptr<Lines> lines_;
  std::vector<Port> ports_;
  MemoryKeys here_;
  std::vector<MemoryKeys> there_;
  Endpoint endpoint_{};
};

}  // namespace imbrex::shmem::mlx5
