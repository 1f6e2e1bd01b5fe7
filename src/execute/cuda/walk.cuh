// How the roles of a thread block go through its tasks, and fetch ahead what they will read of them.
#pragma once

#include "execute/cuda/table.hpp"

namespace imbrex::cuda {

/// Tasks of this thread block, in order.
template <int Cluster>
struct Walk {
  const TableView& table;
  std::uint32_t lane, worker, queue, index, end, step;

  __device__ __forceinline__ Walk(const TableView& view, std::uint32_t block_in_cluster)
      : table(view), lane(block_in_cluster), worker(blockIdx.x / Cluster), queue(0) {
    enter();
  }
  __device__ __forceinline__ void enter() {
    for (; queue < table.queue_count; ++queue) {
      const QueueSpan& q = table.queues[queue];
      if (worker < q.first_worker || worker >= q.first_worker + q.workers) continue;
      index = q.first + worker - q.first_worker;
      end = q.first + q.count;
      step = q.workers;
      if (index < end) return;
    }
  }
  __device__ __forceinline__ bool valid() const { return queue < table.queue_count; }
  __device__ __forceinline__ const TaskEntry* entry() const { return table.tasks + (index * Cluster + lane); }
  __device__ __forceinline__ void next() {
    index += step;
    if (index < end) return;
    ++queue;
    enter();
  }
  /// The entry after this one, if it is of the same queue.
  __device__ __forceinline__ const TaskEntry* following() const {
    return index + step < end ? entry() + step * Cluster : nullptr;
  }
};

/// Brings what the other roles will read of an entry into the first-level cache, where each of the reads would
/// otherwise cost the multiplying warps the better part of a microsecond.
struct Lookahead {
  uint4 places;  // waits, regions, posts, number of waits
  std::uint32_t counts = 0;

  __device__ __forceinline__ void begin(const TaskEntry* entry) {
    counts = 0;
    if (entry == nullptr) return;
    static_assert(offsetof(TaskEntry, waits) == 32 && offsetof(TaskEntry, adds) == 48);
    const auto* bytes = reinterpret_cast<const std::byte*>(entry);
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(places.x), "=r"(places.y), "=r"(places.z), "=r"(places.w)
                 : "l"(bytes + 32));
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(counts) : "l"(bytes + 48));
  }
  __device__ __forceinline__ void end(const TableView& table) const {
    if (counts == 0) return;
    touch(table.waits + places.x);
    touch(table.posts + places.z);
    const auto* first = reinterpret_cast<const std::byte*>(table.regions + places.y);
    const std::uint32_t bytes = ((counts & 0xffffu) + (counts >> 16)) * sizeof(RegionEntry);
    for (std::uint32_t at = 0; at < bytes; at += 128) touch(first + at);
    touch(first + bytes - 16);
  }
  __device__ __forceinline__ static void touch(const void* address) {
    [[maybe_unused]] std::uint32_t unused;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(unused) : "l"(address));
  }
};

}  // namespace imbrex::cuda
