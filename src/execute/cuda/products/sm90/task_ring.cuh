// A block's next tasks in shared memory, so that no role waits for L2 between two tasks.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "execute/cuda/products/walk.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {

/// CUTLASS' barriers keep the hardware's order, but let the compiler move what stands around them.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }

/// What the roles of a block share. One thread brings each task while the one before is under way; each of `Readers`
/// threads takes all tasks in order and frees them one by one.
template <int Readers>
struct TaskRing {
  static constexpr int slots = 4;
  alignas(128) TaskEntry tasks[slots];
  cutlass::arch::ClusterTransactionBarrier full[slots];
  cutlass::arch::ClusterBarrier free[slots];

  /// By one thread, before any role begins.
  __device__ __forceinline__ void init() {
    for (int i = 0; i < slots; ++i) {
      full[i].init(1);
      free[i].init(Readers);
    }
  }
};

/// How the thread that brings them goes through a block's tasks.
template <int Cluster, int Readers>
class TaskPrefetcher {
 public:
  __device__ __forceinline__ TaskPrefetcher(TaskRing<Readers>& ring, const TableView& table,
                                            std::uint32_t block_in_cluster)
      : ring_(ring), walk_(table, block_in_cluster) {}
  /// The next one, if any.
  __device__ __forceinline__ void fetch() {
    if (!walk_.valid()) return;
    const std::uint32_t slot = turn_ % TaskRing<Readers>::slots;
    ring_.free[slot].wait(turn_ / TaskRing<Readers>::slots % 2 ^ 1);
    device::fence_shared_for_bulk();
    ring_.full[slot].arrive_and_expect_tx(sizeof(TaskEntry));
    cute::SM90_BULK_COPY_G2S::copy(walk_.entry(), reinterpret_cast<std::uint64_t*>(&ring_.full[slot]),
                                   &ring_.tasks[slot], sizeof(TaskEntry));
    walk_.next();
    ++turn_;
  }

 private:
  TaskRing<Readers>& ring_;
  Walk<Cluster> walk_;
  std::uint32_t turn_ = 0;
};

/// How a role goes through a block's tasks.
template <int Cluster, int Readers>
class TaskReader {
 public:
  __device__ __forceinline__ TaskReader(TaskRing<Readers>& ring, const TableView& table, std::uint32_t block_in_cluster)
      : ring_(ring), walk_(table, block_in_cluster) {}
  __device__ __forceinline__ bool valid() const { return walk_.valid(); }
  /// How many there were before this one.
  __device__ __forceinline__ std::uint32_t turn() const { return turn_; }
  __device__ __forceinline__ TaskClock clock() const { return walk_.clock(); }
  /// Whether another one of the same queue follows.
  __device__ __forceinline__ bool more() const { return walk_.more(); }
  /// Waits for this one, which stays until it is freed. It is the block's own: who gives up one of its waits changes
  /// it.
  __device__ __forceinline__ TaskEntry& await() {
    ring_.full[slot()].wait(turn_ / TaskRing<Readers>::slots % 2);
    keep_order();
    return ring_.tasks[slot()];
  }
  /// By a thread that has finished its reads of it. Each frees for itself, even if its whole warp reads: one that freed
  /// for all would need a barrier of the warp before, which ptxas drops where the warp is converged anyway, and
  /// `racecheck` then sees no order between the other lanes' reads and the next task's arrival.
  __device__ __forceinline__ void free() {
    keep_order();
    // NOTE: all threads are, but without a branch ptxas takes more registers, of which the e4m3 kernel has none to
    // spare.
    if (threadIdx.x < blockDim.x) ring_.free[slot()].arrive();
  }
  __device__ __forceinline__ void next() {
    walk_.next();
    ++turn_;
  }

 private:
  __device__ __forceinline__ std::uint32_t slot() const { return turn_ % TaskRing<Readers>::slots; }
  TaskRing<Readers>& ring_;
  Walk<Cluster> walk_;
  std::uint32_t turn_ = 0;
};

}  // namespace imbrex::cuda
