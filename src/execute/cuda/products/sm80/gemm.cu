// The GEMM for GPUs of other generations than Hopper: the same table and protocol, products by the tensor cores
// (mma.sync), operands by asynchronous copies of 16 bytes into swizzled stages of shared memory. CUTLASS supplies the
// main loop. Two blocks to an SM, each a worker: one multiplies while the other stores, or waits.
// Compiled for compute capability 8.0, and to PTX, which the driver translates for later GPUs, Hopper among them.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_mma.hpp>

#include <algorithm>

#include "execute/cuda/products/fragment.cuh"
#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/products/variants.hpp"
#include "execute/cuda/products/walk.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {
namespace {

constexpr int tile_m = 128, tile_n = 128, tile_k = 32, stages = 4, threads = 128, blocks_per_sm = 2;

/// Slices of K for the main loop, in order; before a slice that holds columns which a wait guards, the block waits. The
/// first slice is the short one where K is no multiple of a slice's columns.
struct Slices {
  const GemmArgs& args;
  Epoch& epoch;
  const TaskEntry& task;
  std::uint32_t next;  ///< of the task's waits for loads
  int slice, count;

  __device__ __forceinline__ Slices(const GemmArgs& gemm, Epoch& now, const TaskEntry& tile, int slices)
      : args(gemm), epoch(now), task(tile), next(0), slice(0), count(slices) {
    enter();
  }
  __device__ __forceinline__ int operator*() const { return slice; }
  __device__ __forceinline__ Slices& operator++() {
    ++slice;
    enter();
    return *this;
  }

 private:
  __device__ __forceinline__ const WaitEntry& entry() const { return args.table.waits[task.waits + next]; }
  __device__ __forceinline__ bool guarded() const {
    const int columns =
        static_cast<int>(task.k_end - task.k_begin) - (count - 1 - slice) * tile_k;  // up to the slice's end
    return next < task.load_waits && static_cast<int>(entry().k_begin) < columns;
  }
  __device__ __forceinline__ void enter() {
    if (!guarded()) return;
    for (; guarded(); ++next)
      if (threadIdx.x == 0 && !wait_for(args.protocol, epoch, task, entry())) epoch.fail();
    __syncthreads();
  }
};

/// Where a thread's accumulators lie (Fragment): of a warp, four parts of 16 rows, 32 apart.
struct WarpSquare {
  static constexpr int columns = 64, part_rows = 32;
  __device__ __forceinline__ static std::uint32_t row(std::uint32_t thread) {
    return thread / 32 % 2 * 16 + thread % 32 / 4;
  }
  __device__ __forceinline__ static std::uint32_t col(std::uint32_t thread) { return thread / 64 * 64; }
};

template <Type Narrow, Layout BLayout>
struct Sm80Gemm {
  static constexpr bool b_by_columns = BLayout == Layout::column_major;
  using Element = cute::conditional_t<Narrow == Type::bf16, cutlass::bfloat16_t, cutlass::half_t>;
  using Atom = cute::conditional_t<Narrow == Type::bf16, cute::SM80_16x8x16_F32BF16BF16F32_TN,
                                   cute::SM80_16x8x16_F32F16F16F32_TN>;
  // Two by two warps of 64 columns each, so that a warp stores whole 128 bytes of a row.
  using TiledMma = cute::TiledMMA<
      cute::MMA_Atom<Atom>, cute::Layout<cute::Shape<cute::_2, cute::_2, cute::_1>>,
      cute::Tile<cute::_32,
                 cute::Layout<cute::Shape<cute::_8, cute::_2, cute::_8>, cute::Stride<cute::_1, cute::_64, cute::_8>>,
                 cute::_16>>;
  using Copy = cute::Copy_Atom<cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>, Element>;
  // A row of a stage with K along memory is 64 bytes, one of B by rows 256: the swizzles spread what ldmatrix reads
  // over all banks.
  using CopyA = decltype(cute::make_tiled_copy(
      Copy{}, cute::Layout<cute::Shape<cute::_32, cute::_4>, cute::Stride<cute::_4, cute::_1>>{},
      cute::Layout<cute::Shape<cute::_1, cute::_8>>{}));
  using CopyByRows = decltype(cute::make_tiled_copy(
      Copy{}, cute::Layout<cute::Shape<cute::_16, cute::_8>, cute::Stride<cute::_1, cute::_16>>{},
      cute::Layout<cute::Shape<cute::_8, cute::_1>>{}));
  using CopyB = cute::conditional_t<b_by_columns, CopyA, CopyByRows>;
  using SharedA = decltype(cute::composition(
      cute::Swizzle<2, 3, 3>{}, cute::Layout<cute::Shape<cute::_8, cute::_32>, cute::Stride<cute::_32, cute::_1>>{}));
  using SharedByRows = decltype(cute::composition(
      cute::Swizzle<3, 3, 3>{}, cute::Layout<cute::Shape<cute::_64, cute::_8>, cute::Stride<cute::_1, cute::_64>>{}));
  using SharedB = cute::conditional_t<b_by_columns, SharedA, SharedByRows>;
  using LoadB = cute::conditional_t<b_by_columns, cute::SM75_U32x4_LDSM_N, cute::SM75_U16x8_LDSM_T>;
  using StrideB = cute::conditional_t<b_by_columns, cute::Stride<std::int64_t, cute::_1, std::int64_t>,
                                      cute::Stride<cute::_1, std::int64_t, std::int64_t>>;
  using Mainloop = cutlass::gemm::collective::CollectiveMma<
      cutlass::gemm::MainloopSm80CpAsync<stages>, cute::Shape<cute::Int<tile_m>, cute::Int<tile_n>, cute::Int<tile_k>>,
      Element, cute::Stride<std::int64_t, cute::_1, std::int64_t>, Element, StrideB, TiledMma, CopyA, SharedA,
      cute::Copy_Atom<cute::SM75_U32x4_LDSM_N, Element>, cute::identity, CopyB, SharedB,
      cute::Copy_Atom<LoadB, Element>, cute::identity>;

  // Part of 32 rows p, block of eight columns b, register r of four: at 32 p + 4 b + r.
  using Accumulators = cute::Layout<cute::Shape<cute::Shape<cute::_2, cute::_2>, cute::_4, cute::_8>,
                                    cute::Stride<cute::Stride<cute::_1, cute::_2>, cute::_32, cute::_4>>;

  static constexpr int registers = tile_m * tile_n / threads;
  static constexpr int shared_bytes = static_cast<int>(sizeof(typename Mainloop::SharedStorage));
  using Tile = Fragment<Narrow, tile_n, registers, threads, WarpSquare>;

  /// A tile's columns of B, slice by slice of K.
  __device__ __forceinline__ static auto slices_of_b(const GemmArgs& args, const TaskEntry& task, int k_tiles) {
    using namespace cute;
    const auto* b = static_cast<const Element*>(args.b[task.output]);
    const std::int64_t ldb = args.ldb[task.output];
    const auto shape = make_shape(Int<tile_n>{}, Int<tile_k>{}, k_tiles);
    if constexpr (b_by_columns)
      return make_tensor(make_gmem_ptr(b + task.b_col * ldb + task.k_begin), shape,
                         make_stride(ldb, _1{}, Int<tile_k>{}));
    else
      return make_tensor(make_gmem_ptr(b + task.k_begin * ldb + task.b_col), shape,
                         make_stride(_1{}, ldb, ldb * tile_k));
  }

  /// The product of a tile, in the registers that Fragment expects.
  __device__ __forceinline__ static void multiply(const GemmArgs& args, Epoch& epoch, const TaskEntry& task,
                                                  char* shared, float (&acc)[registers]) {
    using namespace cute;
    const int k_tiles = slices_of(task, tile_k);
    const std::int64_t lda = args.lda[task.a_source];
    const auto* a = static_cast<const Element*>(args.a[task.a_source][epoch.copy]) + task.a_row * lda + task.k_begin;
    Tensor gA = make_tensor(make_gmem_ptr(a), make_shape(Int<tile_m>{}, Int<tile_k>{}, k_tiles),
                            make_stride(lda, _1{}, Int<tile_k>{}));
    Tensor gB = slices_of_b(args, task, k_tiles);
    Tensor accumulators = make_tensor(make_rmem_ptr(&acc[0]), Accumulators{});
    clear(accumulators);
    const auto residue = make_tuple(static_cast<int>(task.rows), static_cast<int>(args.n[task.output] - task.b_col),
                                    static_cast<int>(task.k_end - task.k_begin) - k_tiles * tile_k);
    // NOTE: opaque, so that what follows from it is not kept in registers from tile to tile, of which there are none
    // left.
    int thread = static_cast<int>(threadIdx.x);
    asm volatile("" : "+r"(thread));
    Mainloop{}(accumulators, gA, gB, accumulators, Slices(args, epoch, task, k_tiles), k_tiles, residue, thread,
               shared);
  }

  /// Adds the slots of a tile in their order. Each thread copies its own part of some units of all slots to shared
  /// memory, all in flight at once, and adds from there.
  __device__ __forceinline__ static void add_slots(const GemmArgs& args, const Epoch& epoch, const TaskEntry& task,
                                                   char* shared, float (&acc)[registers]) {
    constexpr int places = shared_bytes / (16 * threads);  // of a thread; a unit in fp32 takes two
    const RegionEntry* slots = args.table.regions + task.regions;
    const int adds = task.adds, at_once = places / (2 * adds);
    if (at_once == 0) return Tile::add_any(acc, task, slots, epoch.copy, threadIdx.x);
    auto* place = reinterpret_cast<uint4*>(shared) + threadIdx.x;
    int first = 0;
#pragma unroll
    for (int unit = 0; unit < Tile::units; ++unit) {
      if (unit == first + at_once || unit == 0) {
        first = unit;
        const int count = min(at_once, Tile::units - first);
        __syncwarp();  // the last units have been read
#pragma unroll 1
        for (int s = 0; s < adds; ++s) {
          const int wide = slots[s].type == Type::fp32 ? 2 : 1;
          const auto* from = reinterpret_cast<const uint4*>(first_of(slots[s], nullptr, epoch.copy)) + threadIdx.x;
#pragma unroll 1
          for (int i = 0; i < count * wide; ++i)
            cute::SM80_CP_ASYNC_CACHEGLOBAL<uint4>::copy(from[(first * wide + i) * threads],
                                                         place[(s * at_once * 2 + i) * threads]);
        }
        cute::cp_async_fence();
        cute::cp_async_wait<0>();
        __syncwarp();
      }
      float sum[8] = {};
#pragma unroll 1
      for (int s = 0; s <= adds; ++s) {
        if (s == task.own) {
#pragma unroll
          for (int e = 0; e < 8; ++e) sum[e] += acc[8 * unit + e];
        }
        if (s == adds) break;
        const uint4* own = place + s * at_once * 2 * threads;
        if (slots[s].type == Type::fp32) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint4 bits = own[(2 * (unit - first) + h) * threads];
            add_four(bits, sum + 4 * h);
          }
        } else {
          add_eight(Narrow, own[(unit - first) * threads], sum);
        }
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) acc[8 * unit + e] = sum[e];
    }
  }

  /// A tile: product, slots, bias, stores.
  __device__ __forceinline__ static void run_tile(const GemmArgs& args, Epoch& epoch, const TaskEntry& task,
                                                  char* shared) {
    float acc[registers];
    multiply(args, epoch, task, shared, acc);
    if (task.epilogue_waits > 0) {
      if (threadIdx.x == 0 &&
          !wait_for_all(args.protocol, epoch, task, args.table.waits, task.load_waits, task.epilogue_waits))
        epoch.fail();
      __syncthreads();
    }
    if (task.adds > 0) add_slots(args, epoch, task, shared, acc);
    if (task.bias != 0)
      Tile::add_bias(acc, static_cast<const std::uint16_t*>(args.bias[task.output]) + task.b_col,
                     static_cast<std::uint32_t>(args.n[task.output]) - task.b_col, threadIdx.x);
    Pace unhurried;
    const std::uint32_t stores = epoch.late() ? 0 : task.stores;
    for (std::uint32_t s = 0; s < stores; ++s) {
      const RegionEntry& r = args.table.regions[task.regions + task.adds + s];
      Tile::store(acc, r, first_of(r, args.out[task.output], epoch.copy), threadIdx.x, unhurried);
    }
  }

  __device__ __forceinline__ static void run(const GemmArgs& args, char* shared) {
    __shared__ Epoch epoch;  // read where it lies: the main loop leaves no registers for it
    if (threadIdx.x == 0) {
      const std::uint64_t number = device::read_epoch(args.protocol);
      epoch = epoch_of(args.protocol, number);
      if (device::given_up(args.protocol, false)) epoch.fail();
      advance_epoch(args.protocol, number);
    }
    __syncthreads();
    for (Walk<1> walk(args.table, 0); walk.valid(); walk.next()) {
      const TaskEntry& task = *walk.entry();
      if (threadIdx.x == 0) {
        device::pause_for_tests(args.protocol, epoch.number, task.task);
        walk.clock().begin();
      }
      // Nor has thread 0 come back from its last post: ldmatrix and mma want whole warps.
      __syncwarp();
      if (task.kind == TaskKind::tile) {
        run_tile(args, epoch, task, shared);
      } else {
        if (threadIdx.x == 0 &&
            !wait_for_all(args.protocol, epoch, task, args.table.waits, 0, task.load_waits + task.epilogue_waits))
          epoch.fail();
        __syncthreads();
        if (task.kind == TaskKind::transfer && !epoch.late())
          move(task, args.table.regions, args.a[0][0], args.a_scale[0][0], args.out[task.output], epoch.copy,
               threadIdx.x, threads);
        if (task.kind == TaskKind::reduction && !epoch.late())
          reduce(task, args.table.regions, args.bias[task.output], args.out[task.output], epoch.copy, threadIdx.x,
                 threads);
      }
      __syncthreads();  // all have stored, and no thread reads the stages any more
      if (threadIdx.x == 0) {
        walk.clock().done();
        if (!epoch.late() && task.post_count > 0) post_all(args.protocol, epoch, posts_of(task, args.table.posts));
      }
    }
  }
};

template <Type Narrow, Layout BLayout>
__global__ void __launch_bounds__(threads, blocks_per_sm) sm80_gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(128) char memory[];
  Sm80Gemm<Narrow, BLayout>::run(args, memory);
}

// As many blocks as run at once: where shared memory is short, one to an SM. They wait for each other, so
// the driver must not give L1 what the second one needs.
template <Type Narrow, Layout BLayout>
int workers() {
  constexpr int shared = Sm80Gemm<Narrow, BLayout>::shared_bytes;
  int device = 0, count = 0, blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaFuncSetAttribute(sm80_gemm<Narrow, BLayout>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) !=
          cudaSuccess ||
      cudaFuncSetAttribute(sm80_gemm<Narrow, BLayout>, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sm80_gemm<Narrow, BLayout>, threads, shared) !=
          cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count * std::min(blocks, blocks_per_sm);
}

// NOTE: without early launch: this kernel has no instruction that waits for the end of the stream's previous one.
template <Type Narrow, Layout BLayout>
cudaError_t launch(const GemmArgs& args, int workers, TensorMaps&, bool, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(workers));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = Sm80Gemm<Narrow, BLayout>::shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, sm80_gemm<Narrow, BLayout>, args);
}

template <Type Narrow, Layout BLayout>
constexpr GemmKernel kernel(const char* name) {
  return {name,
          Narrow,
          {tile_m, tile_n, 1, true, Sm80Gemm<Narrow, BLayout>::Tile::units, 0},
          false,
          true,
          BLayout,
          &workers<Narrow, BLayout>,
          &launch<Narrow, BLayout>};
}

}  // namespace

#define IMBREX_SM80(rows, columns, shared, type)                                                       \
  static_assert(rows == tile_m && columns == tile_n, "this source has tiles of one shape");            \
  namespace {                                                                                          \
  constexpr GemmKernel type##_kernels[] = {                                                            \
      kernel<Type::type, Layout::row_major>(IMBREX_NAME_SM80(rows, columns, shared, type)),            \
      kernel<Type::type, Layout::column_major>(IMBREX_NAME_SM80(rows, columns, shared, type) " nxk")}; \
  }                                                                                                    \
  extern const GemmKernels IMBREX_SYMBOL_SM80(rows, columns, shared, type);                            \
  const GemmKernels IMBREX_SYMBOL_SM80(rows, columns, shared, type)(type##_kernels);
#include "execute/cuda/products/variants.def"

}  // namespace imbrex::cuda
