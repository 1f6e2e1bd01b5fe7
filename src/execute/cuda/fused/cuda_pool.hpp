// What plans share that take turns on GPUs, one after another, whatever the order: those of all operators of a world
// that take any M, which have a plan for each (docs/dev/protocols.md). One rank's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "execute/cuda/fused/cuda_execution.hpp"
#include "execute/cuda/fused/table_arena.hpp"
#include "execute/cuda/products/kernel_choice.hpp"
#include "execute/cuda/tables/pool_needs.hpp"
#include "execute/plan_pool.hpp"

namespace imbrex::cuda {

/// Without times.
cudaEvent_t new_event();

/// Clusters of the kernel that run at once on the device, asked once: the first question loads the kernel.
int workers_of(const GemmKernel& kernel, int device);

/// As above, of clusters that leave the world's sms_for_others alone.
int workers_of(const GemmKernel& kernel, int device, const World& world);

class CudaPool : public std::enable_shared_from_this<CudaPool> {
 public:
  /// Collective, of the same needs on every rank except the tables'; the device is selected and idle. Others of its
  /// arguments outlive it. Then all ranks meet before any of them runs a plan.
  CudaPool(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults, int device,
           const PoolNeeds& needs, const CudaOptions& options);
  /// Collective, unless by an exception.
  ~CudaPool();
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;

  /// Hands out an execution of this pool. When its last owner drops it, it stays until its last call is over; where a
  /// graph may hold its calls, until the pool ends.
  std::shared_ptr<Execution> lend(std::unique_ptr<CudaExecution> execution);

  /// Ends executions that were dropped and whose calls are over. Waits for nothing.
  void collect();

  /// What it was made for.
  const PoolNeeds& needs() const { return needs_; }

  /// Collective, the first time for a type; the device is idle: loads the kernels that its plans may run.
  void load_kernels(Type type);
  /// Collective, all ranks idle. Tables of plans have so many bytes, or as many as before if that is more.
  void reserve_tables(std::size_t bytes);
  bool has_kernels(Type type) const { return kernels_.contains(type); }
  std::vector<Type> types() const;

  /// Whether a graph may hold calls of an execution that was dropped.
  bool held_by_graphs() const { return !held_.empty(); }

  // For its executions.
  World& world() const { return world_; }
  runtime::CudaHeap& heap() const { return heap_; }
  StreamCalls& calls() const { return calls_; }
  int device() const { return device_; }
  const CudaOptions& options() const { return options_; }
  const Kernels& kernels(Type type) const { return kernels_.at(type).listed; }
  cudaStream_t stream() const { return stream_.get(); }
  device::Fault* fault() const { return fault_.get(); }
  std::uint64_t& epoch() { return epoch_; }
  double gpu_to_host() const { return to_host_; }
  std::size_t state_offset() const { return state_offset_; }

  /// As PlanPool's, of all but the output, which has room as soon as some plan's peers write it.
  bool has_room(execute::HeapLayout& layout) const;
  std::size_t place(execute::HeapLayout& layout);
  std::size_t offset(std::size_t area) const { return plans_->offset(area); }
  std::byte* take(std::size_t bytes) { return tables_->take(bytes, stream()); }

  /// How the execution takes turns, whose plan lies in `area` and posts so often to this rank's signals.
  PlanTurns join(const CudaExecution& execution, std::size_t area, const std::uint32_t* posts, std::uint32_t signals);
  void leave(const CudaExecution& execution, const std::byte* memory) noexcept;
  /// A call of the execution with that number will run next.
  void note_launch(std::uint32_t number) { last_launched_ = number; }
  const CudaExecution& execution(std::uint32_t number) const { return *members_.at(number); }

  /// Room in the heap for an output that peers write and whose caller's is out of their reach.
  void provide_out();
  std::byte* out() const { return heap_.handle().at(world_.rank(), out_offset_); }

 private:
  // Pieces of the heap.
  struct Taken {
    runtime::CudaHeap& heap;
    std::vector<std::size_t> offsets = {};
    ~Taken() {
      for (const std::size_t offset : offsets) heap.release(offset);
    }
    std::size_t keep(std::size_t offset) { return offsets.emplace_back(offset); }
  };

  struct StreamEnd {
    void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
  };
  struct EventEnd {
    void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
  };
  using OwnStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamEnd>;
  using OwnEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventEnd>;

  void take_beside_heap(runtime::FaultPool& faults);
  void keep_counters(std::size_t area);
  void copy_first(std::size_t bytes);
  void start();
  void drop(std::unique_ptr<CudaExecution> execution);
  std::uint32_t* bases_for(const execute::PlanShare& half, std::uint32_t count);

  World& world_;
  runtime::CudaHeap& heap_;
  StreamCalls& calls_;
  int device_;
  CudaOptions options_;
  std::uint64_t epoch_;
  runtime::FaultPool::Owner fault_;
  // Kernels of one type, and how many clusters of each rank 0's GPU runs at once, by number.
  struct OfType {
    Kernels listed;
    std::vector<int> workers;
  };
  std::map<Type, OfType> kernels_;
  PoolNeeds needs_;
  std::optional<TableArena> tables_;
  double to_host_ = 0;
  Taken taken_;
  std::size_t state_offset_ = 0, out_offset_ = 0, out_bytes_;
  bool has_out_ = false;
  std::optional<execute::PlanPool> plans_;
  std::vector<std::uint32_t*> bases_;  // by area
  EpochPosts* last_ = nullptr;
  std::uint32_t next_number_ = 0, last_launched_ = 0;
  std::map<std::uint32_t, const CudaExecution*> members_;
  OwnStream stream_, after_calls_;
  OwnEvent passed_;
  // Dropped before `passed_` was recorded, and after it; those that graphs hold.
  std::vector<std::unique_ptr<CudaExecution>> passing_, dropped_, held_;
  int exceptions_;  // in flight when the pool was made
};

}  // namespace imbrex::cuda
