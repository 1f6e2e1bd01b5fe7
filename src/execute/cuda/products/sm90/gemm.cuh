// One persistent, warp-specialised GEMM for Hopper that reads what to do from a table: two producer warps wait for
// flags and load operands, two consumer warpgroups multiply, add what peers sent and store to where the table says, and
// signalling warps post to the signals that the table names. The blocks of a cluster share columns of B, or the K of
// every tile. CUTLASS supplies the main loop; the kernel layer is ours (its schedules follow those of CUTLASS'
// ping-pong and cooperative kernels).
#pragma once

#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/cutlass.h>
#include <cutlass/cluster_launch.hpp>
#include <cutlass/gemm/collective/builders/sm90_gmma_builder.inl>
#include <cutlass/gemm/collective/collective_builder_decl.hpp>
#include <cutlass/gemm/collective/collective_mma_decl.hpp>
#include <cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp>
#include <cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized_fp8.hpp>
#include <cutlass/pipeline/pipeline.hpp>

#include "execute/cuda/products/fragment.cuh"
#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/products/sm90/config.cuh"
#include "execute/cuda/products/sm90/promoted.cuh"
#include "execute/cuda/products/sm90/slots.cuh"
#include "execute/cuda/products/sm90/sums.cuh"
#include "execute/cuda/products/sm90/task_ring.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {

template <typename Config>
struct Sm90Gemm {
  using Element = typename Config::Element;
  static constexpr int tile_k = Config::tile_k;
  static constexpr bool fp8 = Config::type == Type::e4m3;
  using TileShapeMNK = cute::Shape<cute::Int<Config::tile_m>, cute::Int<Config::tile_n>, cute::Int<tile_k>>;
  static constexpr bool shares_k = Config::sharing == Sharing::k;
  using Cluster = cute::Shape<cute::Int<Config::cluster>, cute::_1, cute::_1>;
  /// Blocks that load B together.
  using Multicast = cute::conditional_t<shares_k, cute::Shape<cute::_1, cute::_1, cute::_1>, Cluster>;
  using Schedule = cute::conditional_t<Config::pingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                       cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  static constexpr bool b_by_columns = Config::b_layout == Layout::column_major;
  using LayoutB = cute::conditional_t<b_by_columns, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  static constexpr int aligned = 16 / sizeof(Element);
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor, aligned, Element,
      LayoutB, aligned, float, TileShapeMNK, Multicast, cutlass::gemm::collective::StageCount<Config::stages>,
      Schedule>::CollectiveOp;
  using Pipeline = typename Mainloop::MainloopPipeline;
  using State = typename Mainloop::PipelineState;
  using TiledMma = typename Mainloop::TiledMma;
  using Order = cutlass::OrderedSequenceBarrier<1, 2>;

  static constexpr int threads = 384;
  static constexpr int group_threads = Config::group_threads, registers = Config::registers;
  using Tile = typename Config::Tile;
  using Rows = typename Config::Rows;

  /// Threads: the producer of A, the warps that multiply, and the signalling warps.
  static constexpr int readers = 1 + 32 * (Config::consumer_warps + 2);
  using Ring = TaskRing<readers>;
  using Reader = TaskReader<Config::cluster, readers>;

  using Sums = cute::conditional_t<shares_k, Sm90Sums<Config>, NoSums>;

  struct Params {
    typename Mainloop::Params mainloop;
    cute::TmaDescriptor a[2][2];           ///< by source and copy
    cute::TmaDescriptor b[most_products];  ///< after the last one, the first one's again
    GemmArgs args;
    std::uint32_t workers;
  };

  struct SharedStorage {
    alignas(128) typename Mainloop::TensorStorage tensors;
    alignas(128) std::byte rows[Config::consumer_warps][Rows::bytes];
    alignas(16) typename Mainloop::PipelineStorage pipeline;
    alignas(16) typename Order::SharedStorage order;
    alignas(16) typename Sums::Storage sums;
    Ring ring;
    alignas(8) std::uint64_t epoch;
    cutlass::arch::ClusterBarrier epoch_read;
  };

  static_assert(sizeof(SharedStorage) <= 227 * 1024);

  using Slots = Sm90Slots<Config, Pipeline, SharedStorage>;
  using Promoted = cute::conditional_t<fp8, Sm90Promoted<Config, Mainloop>, NoPromotion>;
  using Release = cute::conditional_t<fp8, StageRelease<Pipeline, Config::cluster>, PipelineRelease<Pipeline>>;

  __device__ __forceinline__ static bool multiplies(TaskKind kind) {
    return kind == TaskKind::tile || kind == TaskKind::peer_cta;
  }

  /// Blocks that split K within a cluster prefetch no slots: with the other block's sums, registers would not suffice.
  __device__ __forceinline__ static std::uint32_t slot_stages_of(const TaskEntry& task) {
    return shares_k ? 0 : task.slot_stages;
  }

  /// What a thread of the block has read and tells the others.
  __device__ __forceinline__ static Epoch this_epoch(const GemmArgs& args, const SharedStorage& shared) {
    shared.epoch_read.wait(0);
    keep_order();
    return epoch_of(args.protocol, shared.epoch);
  }
  /// That thread, once.
  __device__ __forceinline__ static void tell_epoch(const GemmArgs& args, SharedStorage& shared) {
    const std::uint64_t number = device::read_epoch(args.protocol);
    Epoch epoch = epoch_of(args.protocol, number);
    if (device::given_up(args.protocol, false)) epoch.fail();
    shared.epoch = epoch.number;
    keep_order();
    shared.epoch_read.arrive();
    advance_epoch(args.protocol, number);
  }

  /// By a producer that gave up. What both blocks of a cluster sum up, the first one stores: it hears of it.
  __device__ __forceinline__ static void fail(TaskEntry& task, SharedStorage& shared, std::uint32_t block_in_cluster) {
    if constexpr (shares_k)
      if (block_in_cluster != 0) Sums::fail(shared.sums);
    leave_out_stores(task);
  }

  /// Which part of its tile's B a block loads, for all that share it.
  __device__ __forceinline__ static std::uint32_t part_of_b(std::uint32_t block_in_cluster) {
    return shares_k ? 0 : block_in_cluster;
  }

  /// The coordinates of what a task loads of A and of B, slice by slice of K.
  __device__ __forceinline__ static auto slices(const Params& params, const TaskEntry& task,
                                                std::uint32_t block_in_cluster) {
    using namespace cute;
    using X = Underscore;
    const int n = static_cast<int>(params.args.n[task.output]), k = static_cast<int>(params.args.k);
    const int row = static_cast<int>(task.a_row), col = static_cast<int>(task.b_col);
    const int k_begin = static_cast<int>(task.k_begin);
    // The descriptor masks rows beyond any source.
    Tensor mA = params.mainloop.tma_load_a.get_tma_tensor(make_shape(Int<Config::tile_m>{}, k, 1));
    Tensor mB = params.mainloop.tma_load_b.get_tma_tensor(make_shape(n, k, 1));
    Tensor gA = local_tile(domain_offset(make_coord(row, k_begin, 0), mA), TileShapeMNK{}, make_coord(0, _, _),
                           Step<_1, X, _1>{})(_, _, _, 0);
    Tensor gB = local_tile(domain_offset(make_coord(col, k_begin, 0), mB), TileShapeMNK{}, make_coord(_, 0, _),
                           Step<X, _1, _1>{})(_, _, _, 0);
    return make_tuple(params.mainloop.tma_load_a.get_slice(0).partition_S(gA),
                      params.mainloop.tma_load_b.get_slice(part_of_b(block_in_cluster)).partition_S(gB));
  }

  // Two producers, a thread each: one alone issues loads for small tiles more slowly than memory serves them. That of B
  // waits for nothing but stages, takes them, and says how many bytes come; that of A waits for what the table names.

  __device__ __forceinline__ static void load_b(const Params& params, SharedStorage& shared, Pipeline& pipeline,
                                                std::uint32_t block_in_cluster) {
    using namespace cute;
    State state = cutlass::make_producer_start_state<Pipeline>();
    Tensor sB = make_tensor(make_smem_ptr(shared.tensors.smem_B.data()), typename Mainloop::SmemLayoutB{});
    Tensor tBsB = params.mainloop.tma_load_b.get_slice(part_of_b(block_in_cluster)).partition_D(sB);
    constexpr std::uint16_t everyone = (1u << cute::size(Multicast{})) - 1;
    // NOTE: tables are older than the stream's previous kernel, so the first task comes while that ends.
    TaskPrefetcher<Config::cluster, readers> prefetcher(shared.ring, params.args.table, block_in_cluster);
    prefetcher.fetch();
    device::wait_for_stream();
    for (Reader tasks(shared.ring, params.args.table, block_in_cluster); tasks.valid(); tasks.next()) {
      prefetcher.fetch();
      const TaskEntry& task = tasks.await();
      if (!multiplies(task.kind)) continue;
      Tensor tBgB = get<1>(slices(params, task, block_in_cluster));
      const cute::TmaDescriptor* descriptor = params.b + task.output;
      const int k_tiles = slices_of(task, tile_k);
      for (int kt = 0; kt < k_tiles; ++kt, ++state) {
        pipeline.producer_acquire(state);
        copy(params.mainloop.tma_load_b.with(descriptor, *pipeline.producer_get_barrier(state), everyone),
             tBgB(_, _, _, kt), tBsB(_, _, _, state.index()));
      }
      if (slot_stages_of(task) > 0) Slots::expect(task, shared, pipeline, state, params.mainloop.tma_transaction_bytes);
    }
    pipeline.producer_tail(state);
  }

  __device__ __forceinline__ static void load_a(const Params& params, SharedStorage& shared, Pipeline& pipeline,
                                                std::uint32_t block_in_cluster) {
    using namespace cute;
    const GemmArgs& args = params.args;
    State state = cutlass::make_producer_start_state<Pipeline>();
    Tensor sA = make_tensor(make_smem_ptr(shared.tensors.smem_A.data()), typename Mainloop::SmemLayoutA{});
    Tensor tAsA = params.mainloop.tma_load_a.get_slice(0).partition_D(sA);
    Epoch epoch{};
    bool knows_epoch = false;
    device::wait_for_stream();
    for (Reader tasks(shared.ring, args.table, block_in_cluster); tasks.valid(); tasks.free(), tasks.next()) {
      TaskEntry& task = tasks.await();
      if (!multiplies(task.kind)) continue;
      Tensor tAgA = get<0>(slices(params, task, block_in_cluster));
      // Rows of the caller's own A need no epoch, which takes a round trip to L2 to get.
      if (!knows_epoch && (task.load_waits > 0 || task.a_source != 0 || slot_stages_of(task) > 0)) {
        epoch = this_epoch(args, shared);
        knows_epoch = true;
      }
      const cute::TmaDescriptor* descriptor = &params.a[0][0] + (task.a_source * 2 + epoch.copy);
      const std::uint32_t load_waits = task.load_waits;
      const WaitEntry* waits = args.table.waits + task.waits;
      std::uint32_t waited = 0;
      // The next wait's column, so that a tile without slices polls nothing between its loads.
      std::uint32_t next_wait = load_waits > 0 ? waits[0].k_begin : ~0u;
      const int k_tiles = slices_of(task, tile_k);
      for (int kt = 0; kt < k_tiles; ++kt, ++state) {
        if (next_wait < static_cast<std::uint32_t>((kt + 1) * tile_k)) {
          if (waited == 0) tasks.clock().stamp(&TaskTimes::load_wait);
          while (next_wait < static_cast<std::uint32_t>((kt + 1) * tile_k)) {
            if (!wait_for(args.protocol, epoch, task, waits[waited])) fail(task, shared, block_in_cluster);
            ++waited;
            next_wait = waited < load_waits ? waits[waited].k_begin : ~0u;
          }
          device::fence_before_bulk_loads();
          tasks.clock().stamp(&TaskTimes::load_met);
        }
        await_stage(shared, state);
        copy(params.mainloop.tma_load_a.with(descriptor, *pipeline.producer_get_barrier(state), std::uint16_t{0}),
             tAgA(_, _, _, kt), tAsA(_, _, _, state.index()));
      }
      if (slot_stages_of(task) > 0) Slots::load(args, epoch, task, tasks.clock(), shared, pipeline, state);
    }
  }

  /// After the product and the sums: waits, stores, posts. Called by the threads that share the tile. `time`: what the
  /// other group's next product will take, in nanoseconds, beside which stores to peers need not hurry; 0: there is
  /// none.
  template <typename Accumulators>
  __device__ __forceinline__ static void finish(const GemmArgs& args, const Epoch& epoch, TaskEntry& task,
                                                const Reader& tasks, Accumulators& acc, SharedStorage& shared,
                                                std::uint32_t thread, int group, int signaller, std::uint32_t time) {
    // NOTE: found anew for each stamp, the clock takes no registers in between, of which e4m3 has none to spare.
    const RegionEntry* regions = args.table.regions + task.regions;
    if (thread == 0) device::pause_for_tests(args.protocol, epoch.number, task.task);
    const bool staged = task.adds > 0 && slot_stages_of(task) > 0;  // the producer waits for the slots, and loads them
    if (task.epilogue_waits > 0 && !staged) {
      if (thread == 0) {
        tasks.clock().stamp(&TaskTimes::add_wait);
        if (!wait_for_all(args.protocol, epoch, task, args.table.waits, task.load_waits, task.epilogue_waits))
          leave_out_stores(task);
        tasks.clock().stamp(&TaskTimes::add_met);
      }
      Config::group_sync(group);
    }
    if (task.adds > 0 && !staged) Tile::add_any(acc, task, regions, epoch.copy, thread);
    if (task.bias != 0)
      Tile::add_bias(acc, static_cast<const std::uint16_t*>(args.bias[task.output]) + task.b_col,
                     static_cast<std::uint32_t>(args.n[task.output]) - task.b_col, thread);
    const std::uint32_t stores = epoch.late() ? 0 : task.stores;
    Pace pace;
    if (time > 0 && stores > 0 && task.post_count > 0) {
      // NOTE: the limit keeps ranks from slowing each other down: a product's time may hold waits for a peer's stores.
      const std::uint32_t units = stores * Tile::units;
      pace = Pace::over(min(time / 4 * 3, units * args.unit_ns), units);
    }
    const RegionEntry* others = regions + task.adds + 1;
    void* out = args.out[task.output];
    if (task.wide_stores != 0 && reinterpret_cast<std::uint64_t>(out) % 16 == 0)
      Rows::store(acc, task, others, stores, out, epoch.copy, thread, shared.rows[threadIdx.x / 32 - 4], pace);
    else
      for (std::uint32_t s = 0; s < stores; ++s) {
        const RegionEntry& to = store_of(task, others, s);
        Tile::store(acc, to, first_of(to, out, epoch.copy), thread, pace);
      }
    if (thread == 0) tasks.clock().stamp(&TaskTimes::end);
    hand_to_signaller(task, signaller);
  }

  /// The group goes on to its next task while the signalling warp's fence waits for the stores to arrive.
  __device__ __forceinline__ static void hand_to_signaller(const TaskEntry& task, int signaller) {
    if (task.post_count == 0) return;
    signaller_sync(free_barrier(signaller));
    signaller_arrive(full_barrier(signaller));
  }

  // Named barriers: 1 and 2 of the groups; then each signalling warp's `full` (the task is stored) and `free` (it is
  // posted).
  __device__ __forceinline__ static int full_barrier(int signaller) { return 3 + signaller; }
  __device__ __forceinline__ static int free_barrier(int signaller) { return 5 + signaller; }
  __device__ __forceinline__ static void signaller_sync(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(group_threads + 32) : "memory");
  }
  __device__ __forceinline__ static void signaller_arrive(int barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(group_threads + 32) : "memory");
  }

  /// Two warps, for the block's tasks in turn: wait until one is stored, fence, post. A fence for stores to a peer
  /// takes up to some ten microseconds, in which the group would multiply nothing.
  __device__ __forceinline__ static void post(const Params& params, SharedStorage& shared, int signaller,
                                              std::uint32_t block_in_cluster) {
    const GemmArgs& args = params.args;
    const Epoch epoch = this_epoch(args, shared);
    for (Reader tasks(shared.ring, args.table, block_in_cluster); tasks.valid(); tasks.next()) {
      const TaskEntry& task = tasks.await();
      const bool mine = tasks.turn() % 2 == static_cast<std::uint32_t>(signaller) && task.kind == TaskKind::tile;
      const Posts posts = posts_of(task, args.table.posts);
      tasks.free();
      if (!mine || posts.count == 0) continue;
      signaller_arrive(free_barrier(signaller));
      signaller_sync(full_barrier(signaller));
      if (threadIdx.x % 32 == 0) post_all(args.protocol, epoch, posts);
      __syncwarp();
    }
  }

  /// A signal, transfer or reduction.
  __device__ __forceinline__ static void serve(const GemmArgs& args, const Epoch& epoch, TaskEntry& task,
                                               const TaskClock& clock, std::uint32_t thread, int group) {
    bool met = !epoch.late();
    if (thread == 0) {
      device::pause_for_tests(args.protocol, epoch.number, task.task);
      if (task.load_waits > 0) {
        clock.stamp(&TaskTimes::load_wait);
        met = wait_for_all(args.protocol, epoch, task, args.table.waits, 0, task.load_waits) && met;
        clock.stamp(&TaskTimes::load_met);
      }
      clock.begin(static_cast<std::uint32_t>(group));
      if (!met) leave_out(task);
    }
    Config::group_sync(group);
    const bool moves = task.kind == TaskKind::transfer;
    if (moves)
      move(task, args.table.regions, args.a[0][0], args.a_scale[0][0], args.out[task.output], epoch.copy, thread,
           group_threads);
    if (task.kind == TaskKind::reduction)
      reduce(task, args.table.regions, args.bias[task.output], args.out[task.output], epoch.copy, thread,
             group_threads);
    if (moves || task.kind == TaskKind::reduction) Config::group_sync(group);
    if (thread == 0) {
      clock.stamp(&TaskTimes::end);
      if (met && task.post_count > 0) post_all(args.protocol, epoch, posts_of(task, args.table.posts));
    }
    // NOTE: a fence also waits for stores that the block issues meanwhile: the next slice's would hold up this one's
    // flag.
    if (moves) Config::group_sync(group);
  }

  __device__ __forceinline__ static void consume(const Params& params, SharedStorage& shared, Pipeline& pipeline,
                                                 Order& order, int warpgroup, std::uint32_t block_in_cluster) {
    using namespace cute;
    const GemmArgs& args = params.args;
    device::wait_for_stream();
    const Epoch epoch = this_epoch(args, shared);
    const int group = Config::pingpong ? warpgroup : 0;
    const std::uint32_t thread = Config::pingpong ? threadIdx.x % 128 : threadIdx.x - 128;
    if constexpr (shares_k)
      if (block_in_cluster == 0 && threadIdx.x == 128) Sums::begin(shared.sums);
    const Release release(pipeline, shared);
    std::uint32_t next_tile = 0;
    Mainloop mainloop;
    TiledMma tiled_mma;
    State state;
    for (Reader tasks(shared.ring, args.table, block_in_cluster); tasks.valid(); tasks.free(), tasks.next()) {
      TaskEntry& task = tasks.await();
      const int signaller = static_cast<int>(tasks.turn() % 2);  // in ping-pong, the group too
      const int k_tiles = slices_of(task, tile_k);
      const std::uint32_t tile = next_tile;  // its number among the block's
      if (multiplies(task.kind)) ++next_tile;
      if (Config::pingpong && signaller != warpgroup) {
        if (multiplies(task.kind)) state.advance(k_tiles + slot_stages_of(task));
        continue;
      }
      if constexpr (Config::pingpong) order.wait();
      const std::uint32_t begin = Pace::now();
      if (!multiplies(task.kind)) {
        if constexpr (Config::pingpong) order.arrive();
        if (task.kind != TaskKind::none) serve(args, epoch, task, tasks.clock(), thread, group);
        continue;
      }
      if (thread == 0) tasks.clock().begin(static_cast<std::uint32_t>(group));
      auto accumulators = partition_fragment_C(tiled_mma, take<0, 2>(TileShapeMNK{}));
      static_assert(decltype(size(accumulators))::value == registers);
      auto& acc = *reinterpret_cast<float(*)[registers]>(accumulators.data());
      [[maybe_unused]] Promoted promoted;
      if constexpr (fp8) {
        clear(accumulators);
        promoted.multiply(shared, state, release, acc, k_tiles, thread);
      } else {
        mainloop.mma(pipeline, state, accumulators, k_tiles, static_cast<int>(thread), shared.tensors, params.mainloop);
      }
      State slots = state;
      if constexpr (!fp8) slots.advance(k_tiles);
      if constexpr (Config::pingpong) {
        // NOTE: the other group must not come to a stage while slots are still to arrive there: barriers tell rounds
        // apart by parity only, so it would take the round before the slots for its own, and release theirs.
        if (slot_stages_of(task) > 0) Slots::await(task, pipeline, slots);
        order.arrive();
      }
      if constexpr (fp8)
        promoted.end(slots, release, acc);
      else
        mainloop.mma_tail(pipeline, state, k_tiles);
      if (thread == 0) tasks.clock().stamp(&TaskTimes::multiplied);
      state = slots;
      const std::uint32_t time = Config::pingpong && tasks.more() ? Pace::now() - begin : 0;
      if constexpr (shares_k) {
        if (task.kind == TaskKind::peer_cta) {
          Sums::send(acc, shared.sums, tile, thread);
          continue;
        }
        if (Sums::add(acc, shared.sums, tile, thread, group)) leave_out_stores(task);
      }
      if constexpr (fp8)
        if (args.b_scale != nullptr && task.kind == TaskKind::tile)
          Tile::scale(acc, scales_of(args, task, epoch.copy), args.row_scales != 0, task.rows,
                      static_cast<std::uint32_t>(args.n[0]) - task.b_col, thread);
      if (slot_stages_of(task) > 0) Slots::add(task, shared, pipeline, state, release, acc, thread, group);
      if (task.kind == TaskKind::tile) {
        finish(args, epoch, task, tasks, acc, shared, thread, group, signaller, time);
      }
    }
    if constexpr (shares_k) Sums::end();
  }

  __device__ __forceinline__ static void run(const Params& params, char* memory) {
    using namespace cute;
    auto& shared = *reinterpret_cast<SharedStorage*>(memory);
    const int warpgroup = cutlass::canonical_warp_group_idx();  // 0 produces
    const int warp = cutlass::canonical_warp_idx_sync();
    const std::uint32_t block_in_cluster = Config::cluster > 1 ? cute::block_rank_in_cluster() : 0;

    if (warp == 0 && cute::elect_one_sync()) {
      for (int i = 0; i < 4; ++i) cute::prefetch_tma_descriptor(&params.a[0][0] + i);
      for (const cute::TmaDescriptor& b : params.b) cute::prefetch_tma_descriptor(&b);
    }
    typename Pipeline::Params pipeline_params;
    pipeline_params.role = warpgroup == 0 ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
    pipeline_params.is_leader = threadIdx.x % 128 == 0;
    pipeline_params.num_consumers = group_threads;
    pipeline_params.num_producers = 1;
    pipeline_params.transaction_bytes = params.mainloop.tma_transaction_bytes;
    Pipeline pipeline(shared.pipeline, pipeline_params, Cluster{});
    typename Order::Params order_params;
    order_params.group_id = warpgroup - 1;
    order_params.group_size = 128;
    Order order(shared.order, order_params);
    if (threadIdx.x == 32) {
      shared.epoch_read.init(1);
      shared.ring.init();
      if constexpr (shares_k) Sums::init(shared.sums);
      cutlass::arch::fence_barrier_init();
    }
    if constexpr (Config::cluster > 1) {
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }
    if (warpgroup == 0) {
      cutlass::arch::warpgroup_reg_dealloc<56>();
      if (warp == 0 && cute::elect_one_sync()) {
        load_b(params, shared, pipeline, block_in_cluster);
      } else if (threadIdx.x == 32) {
        load_a(params, shared, pipeline, block_in_cluster);
      } else if (warp >= 2) {
        device::wait_for_stream();
        if (threadIdx.x == 64) tell_epoch(params.args, shared);
        __syncwarp();
        post(params, shared, warp - 2, block_in_cluster);
      }
    } else {
      cutlass::arch::warpgroup_reg_alloc<224>();
      consume(params, shared, pipeline, order, warpgroup - 1, block_in_cluster);
    }
  }
};

template <typename Config>
__global__ void __launch_bounds__(384, 1) sm90_gemm(const __grid_constant__ typename Sm90Gemm<Config>::Params params) {
  extern __shared__ char memory[];
  Sm90Gemm<Config>::run(params, memory);
}

}  // namespace imbrex::cuda
