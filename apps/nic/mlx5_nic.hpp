// A PE's queues of a real mlx5 NIC: reliable connections to each PE, with completion queues that are collapsed, made by
// the NIC's own commands (DEVX), in memory that kernels reach. libibverbs and libmlx5 are found at run time.
//
// NOTE: it has never run on a NIC. Its tests are the manual's layout of commands, and libraries that stand in for
// libibverbs and libmlx5 (tests/shmem/mlx5): whether a NIC takes these commands has not been seen. A heap on GPUs is
// not allocated with gpuDirectRDMACapable so far, which NICs may ask for; then registering it is the call that fails.
//
// All of it lies in the symmetric heap: rings, doorbell records and completions, hence in a GPU's memory where the heap
// is there, and Context<Mlx5> needs no fence of the system's scope. Memory is registered without relaxed ordering,
// since signals follow data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/nic/mlx5_gpu.hpp"
#include "apps/nic/queue_layout.hpp"

namespace imbrex::shmem::mlx5 {

struct Mlx5Options {
  std::string device = {};     ///< its name, such as "mlx5_0"; empty: the first of mlx5. PEs' may differ
  std::uint8_t port = 1;       ///< of the device
  int gid_index = -1;          ///< of the port; -1: over Ethernet the first of RoCE v2, IPv4's before others; else 0
  double ack_timeout = 0.067;  ///< seconds until what was not acknowledged is sent again, up to 7 times
  // Names by which the libraries are loaded.
  std::string verbs_library = "libibverbs.so.1", mlx5_library = "libmlx5.so.1", cuda_library = "libcuda.so.1";
};

class Mlx5Nic {
 public:
  /// Collective. The heap outlives it, and from now on is what Context<Mlx5> works on. Throws Error(invalid_input) on
  /// options out of range. Where one PE has no NIC, library or header, or a call fails there, all PEs throw
  /// Error(runtime_failure), "no mlx5 NIC: PE 1: ibv_alloc_pd on mlx5_0 failed: ...", and nothing is left of it.
  Mlx5Nic(Heap& heap, const QueueOptions& options, const Mlx5Options& nic = {});
  /// Collective: no PE's kernels use the queues any more.
  ~Mlx5Nic();
  Mlx5Nic(const Mlx5Nic&) = delete;
  Mlx5Nic& operator=(const Mlx5Nic&) = delete;

  const std::string& device() const;
  const std::vector<Port>& ports() const;  ///< pointers are the GPU's where the heap is there
  const RegionKeys& keys() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace imbrex::shmem::mlx5
