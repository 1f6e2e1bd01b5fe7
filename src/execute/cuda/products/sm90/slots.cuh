// How the slots that a tile adds come through the stages of the main loop of the GEMM for Hopper.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "execute/cuda/products/sm90/config.cuh"
#include "execute/cuda/products/walk.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {

/// Returns once a stage may be loaded, which the producer of B takes for both.
template <typename Shared, typename State>
__device__ __forceinline__ void await_stage(Shared& shared, const State& state) {
  shared.pipeline.empty_barrier_[state.index()].wait(state.phase());
}

/// What frees stages, by all threads that share a tile: CUTLASS' pipeline.
template <typename Pipeline>
struct PipelineRelease {
  Pipeline& pipeline;

  template <typename Shared>
  __device__ __forceinline__ PipelineRelease(Pipeline& its, Shared&) : pipeline(its) {}
  __device__ __forceinline__ void free(const typename Pipeline::PipelineState& state) const {
    pipeline.consumer_release(state);
  }
};

/// Waits and releases in one register instead of two: one thread of a warpgroup tells each block of the cluster; where
/// a block loads alone, all threads tell it.
template <typename Pipeline, int Cluster>
struct StageRelease {
  std::uint32_t first;  ///< the first stage's barrier in the block that this thread tells; 0: it tells none

  template <typename Shared>
  __device__ __forceinline__ StageRelease(Pipeline&, Shared& shared)
      : first(cute::cast_smem_ptr_to_uint(&shared.pipeline.empty_barrier_[0])) {
    if constexpr (Cluster > 1) {
      const std::uint32_t block = threadIdx.x % 128;
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(first) : "r"(first), "r"(block % Cluster));
      if (block >= Cluster) first = 0;
    }
  }
  __device__ __forceinline__ void free(int stage) const {
    const std::uint32_t barrier = first + 8 * static_cast<std::uint32_t>(stage);
    if constexpr (Cluster == 1)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    else
      asm volatile(
          "{\n.reg .pred tells;\nsetp.ne.u32 tells, %0, 0;\n"
          "@tells mbarrier.arrive.shared::cluster.b64 _, [%1];\n}" ::"r"(first),
          "r"(barrier)
          : "memory");
  }
  __device__ __forceinline__ void free(const typename Pipeline::PipelineState& state) const { free(state.index()); }
};

/// They follow a tile's last slices of K: all in flight at once, and none of them in the multiplying warps' registers
/// before it is added. `Shared` has the stages of A and B, and their barriers.
template <typename Config, typename Pipeline, typename Shared>
struct Sm90Slots {
  using State = typename Pipeline::PipelineState;
  using Tile = typename Config::Tile;
  static constexpr int plane_bytes = 16 * Config::group_threads;
  static constexpr int a_planes = Config::tile_m * Config::row_bytes / plane_bytes;  ///< of a stage, in A's part
  static constexpr int planes = a_planes + Config::tile_n * Config::row_bytes / plane_bytes;
  // In ping-pong, a group awaits all of a tile's slots while it holds the stage of the last slice.
  static_assert(Config::sharing == Sharing::k || !Config::pingpong ||
                (slot_stages(Tile::units, planes, 1).count < Config::stages &&
                 slot_stages(Tile::units, planes, 3).count < Config::stages));

  /// By the producer of A.
  __device__ __forceinline__ static void load(const GemmArgs& args, const Epoch& epoch, TaskEntry& task,
                                              const TaskClock& clock, Shared& shared, Pipeline& pipeline,
                                              State& state) {
    if (task.adds == 0) {  // the mate has slots
      // NOTE: each stage is waited for, though none is loaded: a wait two rounds behind would see the parity of the one
      // before, and pass.
      for (std::uint32_t i = 0; i < task.slot_stages; ++i, ++state) await_stage(shared, state);
      return;
    }
    constexpr int most = 3;  // slots that come this way
    const std::byte* slots[most];
#pragma unroll
    for (int s = 0; s < most; ++s)
      slots[s] = s < task.adds ? first_of(args.table.regions[task.regions + s], nullptr, epoch.copy) : nullptr;
    clock.stamp(&TaskTimes::add_wait);
    if (!wait_for_all(args.protocol, epoch, task, args.table.waits, task.load_waits, task.epilogue_waits))
      leave_out_stores(task);
    clock.stamp(&TaskTimes::add_met);
    device::fence_before_bulk_loads();
    const std::uint32_t at_once = slot_stages(Tile::units, planes, task.adds).units;
    for (std::uint32_t unit = 0; unit < Tile::units; unit += at_once, ++state) {
      const int count = static_cast<int>(min(at_once, Tile::units - unit));
      await_stage(shared, state);
#pragma unroll
      for (int slot = 0; slot < most; ++slot) {
        if (slot >= task.adds) break;
        const std::byte* from = slots[slot] + unit * plane_bytes;
        const int first = slot * static_cast<int>(at_once);
        const int in_a = max(0, min(count, a_planes - first));  // a stage's two parts lie apart
        if (in_a > 0) load_planes(shared, pipeline, state, from, first, in_a);
        if (in_a < count) load_planes(shared, pipeline, state, from + in_a * plane_bytes, first + in_a, count - in_a);
      }
    }
  }

  /// By the producer of B, which takes their stages: how many bytes come in each, instead of `slice_bytes`.
  __device__ __forceinline__ static void expect(const TaskEntry& task, Shared& shared, Pipeline& pipeline, State& state,
                                                std::uint32_t slice_bytes) {
    using cutlass::arch::ClusterTransactionBarrier;
    const std::uint32_t at_once = task.adds > 0 ? slot_stages(Tile::units, planes, task.adds).units : 0;
    for (std::uint32_t stage = 0; stage < task.slot_stages; ++stage, ++state) {
      const std::uint32_t units = min(at_once, Tile::units - stage * at_once);
      const std::uint32_t bytes = task.adds * units * plane_bytes;
      if (bytes > slice_bytes) {
        // Before the barrier can take what comes for all there is.
        await_stage(shared, state);
        ClusterTransactionBarrier::expect_transaction(pipeline.producer_get_barrier(state), bytes - slice_bytes);
      }
      pipeline.producer_acquire(state);  // which expects a slice's
      if (bytes < slice_bytes)
        ClusterTransactionBarrier::complete_transaction(pipeline.producer_get_barrier(state),
                                                        Config::cluster > 1 ? cute::block_rank_in_cluster() : 0,
                                                        slice_bytes - bytes);
    }
  }

  /// Returns once a tile's slots lie in their stages. `state`: the first of these.
  __device__ __forceinline__ static void await(const TaskEntry& task, Pipeline& pipeline, State state) {
    for (std::uint32_t i = 0; i < task.slot_stages; ++i, ++state) pipeline.consumer_wait(state);
  }

  /// By the threads that share the tile.
  template <typename Release>
  __device__ __forceinline__ static void add(const TaskEntry& task, Shared& shared, Pipeline& pipeline, State& state,
                                             const Release& release, float (&acc)[Config::registers],
                                             std::uint32_t thread, int group) {
    const auto enter = [&] {
      pipeline.consumer_wait(state);
      const std::uint32_t stage = state.index();
      return [&shared, stage, thread](int plane) {
        return load_shared(cute::cast_smem_ptr_to_uint(plane_at(shared, stage, plane)) + thread * 16);
      };
    };
    const auto leave = [&] {
      device::fence_shared_for_bulk();
      if constexpr (Config::cluster > 1) Config::group_sync(group);  // one thread releases for all of a warpgroup
      release.free(state);
      ++state;
    };
    if (task.adds == 3)
      Tile::template add_slots<3, planes>(acc, task.own, enter, leave);
    else if (task.adds == 1)
      Tile::template add_slots<1, planes>(acc, task.own, enter, leave);
    else  // the mate has slots
      for (std::uint32_t i = 0; i < task.slot_stages; ++i) enter(), leave();
  }

 private:
  /// Where a stage's plane lies.
  __device__ __forceinline__ static std::byte* plane_at(Shared& shared, std::uint32_t stage, int plane) {
    auto* a = reinterpret_cast<std::byte*>(shared.tensors.smem_A.data()) + stage * (a_planes * plane_bytes);
    auto* b = reinterpret_cast<std::byte*>(shared.tensors.smem_B.data()) + stage * ((planes - a_planes) * plane_bytes);
    return plane < a_planes ? a + plane * plane_bytes : b + (plane - a_planes) * plane_bytes;
  }

  __device__ __forceinline__ static void load_planes(Shared& shared, Pipeline& pipeline, const State& state,
                                                     const std::byte* from, int first, int count) {
    cute::SM90_BULK_COPY_G2S::copy(from, pipeline.producer_get_barrier(state), plane_at(shared, state.index(), first),
                                   count * plane_bytes);
  }
};

}  // namespace imbrex::cuda
