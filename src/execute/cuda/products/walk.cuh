// How the roles of a thread block go through its tasks.
#pragma once

#include "execute/cuda/tables/table.hpp"
#include "imbrex/device/ordering.hpp"

namespace imbrex::cuda {

/// Writes down a task's times, for timelines; by one of the threads that do the part.
struct TaskClock {
  TaskTimes* times;

  __device__ __forceinline__ void stamp(std::uint64_t TaskTimes::*part) const {
    if (times != nullptr) times->*part = device::now_ns();
  }
  __device__ __forceinline__ void begin(std::uint32_t group = 0) const {
    if (times == nullptr) return;
    asm volatile("mov.u32 %0, %smid;" : "=r"(times->sm));
    times->group = group;
    times->begin = device::now_ns();
  }
  /// Where a tile's product and stores are not told apart.
  __device__ __forceinline__ void done() const {
    if (times != nullptr) times->multiplied = times->end = device::now_ns();
  }
};

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
  __device__ __forceinline__ TaskClock clock() const {
    return {table.times == nullptr ? nullptr : table.times + (index * Cluster + lane)};
  }
  __device__ __forceinline__ void next() {
    index += step;
    if (index < end) return;
    ++queue;
    enter();
  }
  /// Whether another entry of the same queue follows.
  __device__ __forceinline__ bool more() const { return index + step < end; }
};

}  // namespace imbrex::cuda
