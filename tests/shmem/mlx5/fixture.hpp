// PEs of one host that reach each other by NICs of software only.
#pragma once

#include <functional>

#include "apps/nic/queues.hpp"
#include "apps/nic/software_nic.hpp"

namespace imbrex::shmem::mlx5::test {

/// Everything that can be late, doubled or out of order is, by seed.
inline NicOptions unkind(std::uint64_t seed) {
  return {.seed = seed, .max_delay = 2e-5, .any_order = true, .double_doorbells = true};
}

struct Site {
  World& world;
  Heap& heap;
  Queues& queues;
  SoftwareNic& nic;
};

/// One PE's part: makes the heap, the queues and the NIC, and runs `body`.
inline int at_site(World& world, const HeapOptions& heap_options, const QueueOptions& queue_options,
                   NicOptions nic_options, const std::function<int(Site&)>& body) {
  Heap heap(world, heap_options);
  Queues queues(heap, queue_options);
  nic_options.seed = nic_options.seed * 64 + static_cast<std::uint64_t>(world.rank());
  SoftwareNic nic(queues, nic_options);
  Site site{world, heap, queues, nic};
  const int code = body(site);
  world.barrier();  // peers may still put
  return code;
}

}  // namespace imbrex::shmem::mlx5::test
