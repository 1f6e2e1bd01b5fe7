// The GEMM for operands that the tensor-core kernels cannot take: the same table and protocol, products in fp32 without
// tensor cores. One thread block is one worker.
#include "base/fp8.hpp"
#include "execute/cuda/products/element.cuh"
#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/products/walk.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {
namespace {

constexpr int block = 64, depth = 16, threads = 256, each = 4;

struct Args {
  GemmArgs gemm;
  Type type;
};

__device__ __forceinline__ float operand(const void* matrix, Type type, std::int64_t at) {
  if (type == Type::e4m3) return codec::from_e4m3_by_integers(__ldcg(static_cast<const unsigned char*>(matrix) + at));
  return load_element(type, static_cast<const std::byte*>(matrix) + at * (type == Type::fp32 ? 4 : 2));
}

// One 64 x 64 part of a tile, four by four a thread; then adds and stores.
__device__ void multiply(const Args& args, const Epoch& epoch, const TaskEntry& task, std::uint32_t row0,
                         std::uint32_t col0, float (&sa)[depth][block + 1], float (&sb)[depth][block]) {
  const GemmArgs& g = args.gemm;
  const void *a = g.a[task.a_source][epoch.copy], *b = g.b[task.output];
  const std::int64_t lda = g.lda[task.a_source], ldb = g.ldb[task.output];
  const std::uint32_t tx = threadIdx.x % 16 * each, ty = threadIdx.x / 16 * each;
  float acc[each][each] = {};
  for (std::int64_t k0 = task.k_begin; k0 < task.k_end; k0 += depth) {
    for (int i = threadIdx.x; i < depth * block; i += threads) {
      const int ka = i % depth, ra = i / depth, kb = i / block, cb = i % block;
      const bool in_a = row0 + ra < task.rows && k0 + ka < task.k_end;
      const bool in_b = col0 + cb < task.cols && k0 + kb < task.k_end;
      sa[ka][ra] =
          in_a ? operand(a, args.type, (static_cast<std::int64_t>(task.a_row) + row0 + ra) * lda + k0 + ka) : 0.0f;
      const std::int64_t row = k0 + kb, col = task.b_col + col0 + cb;
      const std::int64_t at = g.b_by_columns != 0 ? col * ldb + row : row * ldb + col;
      sb[kb][cb] = in_b ? operand(b, args.type, at) : 0.0f;
    }
    __syncthreads();
    for (int kk = 0; kk < depth; ++kk)
#pragma unroll
      for (int i = 0; i < each; ++i)
#pragma unroll
        for (int j = 0; j < each; ++j) acc[i][j] = fmaf(sa[kk][ty + i], sb[kk][tx + j], acc[i][j]);
    __syncthreads();
  }
  const RegionEntry* regions = g.table.regions + task.regions;
#pragma unroll
  for (int i = 0; i < each; ++i)
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const std::uint32_t row = row0 + ty + i, col = col0 + tx + j;
      if (row >= task.rows || col >= task.cols) continue;
      const auto at = [&](const RegionEntry& r, std::uint32_t y, std::uint32_t x) {
        return first_of(r, g.out[task.output], epoch.copy) + y * r.pitch + x * (r.type == Type::fp32 ? 4u : 2u);
      };
      if (g.b_scale != nullptr) {
        const TileScales scales = scales_of(g, task, epoch.copy);
        acc[i][j] = acc[i][j] * __ldcg(scales.a + g.row_scales * row) * __ldcg(scales.b + g.row_scales * col);
      }
      float sum = 0;
      for (std::uint32_t s = 0; s <= task.adds; ++s) {
        if (s == task.own) sum += acc[i][j];
        if (s < task.adds) {
          const RegionEntry& r = regions[s];
          sum += load_element(r.type, at(r, row, col));
        }
      }
      if (task.bias != 0) sum += operand(g.bias[task.output], output_type(args.type), task.b_col + col);
      for (std::uint32_t s = 0; s < task.stores; ++s) {
        const RegionEntry r = regions[task.adds + s];
        if (row - r.row < r.rows && col - r.col < r.cols) store_element(r.type, at(r, row - r.row, col - r.col), sum);
      }
    }
}

__global__ void __launch_bounds__(threads, 1) plain_gemm(const __grid_constant__ Args args) {
  __shared__ float sa[depth][block + 1], sb[depth][block];
  __shared__ std::uint64_t number;
  __shared__ bool failed;  // some wait was given up
  const GemmArgs& g = args.gemm;
  device::wait_for_stream();
  if (threadIdx.x == 0) {
    number = device::read_epoch(g.protocol);
    failed = device::given_up(g.protocol, false);
  }
  __syncthreads();
  const Epoch epoch = epoch_of(g.protocol, number);
  if (threadIdx.x == 0) advance_epoch(g.protocol, number);
  for (std::uint32_t q = 0; q < g.table.queue_count; ++q) {
    const QueueSpan& queue = g.table.queues[q];
    if (blockIdx.x < queue.first_worker || blockIdx.x >= queue.first_worker + queue.workers) continue;
    for (std::uint32_t i = blockIdx.x - queue.first_worker; i < queue.count; i += queue.workers) {
      const TaskEntry task = g.table.tasks[queue.first + i];
      const TaskClock clock{g.table.times == nullptr ? nullptr : g.table.times + (queue.first + i)};
      if (threadIdx.x == 0) {
        device::pause_for_tests(g.protocol, epoch.number, task.task);
        clock.stamp(&TaskTimes::load_wait);
        if (!wait_for_all(g.protocol, epoch, task, g.table.waits, 0, task.load_waits + task.epilogue_waits))
          failed = true;
        clock.stamp(&TaskTimes::load_met);
        clock.begin();
      }
      __syncthreads();
      const bool stores = !failed;
      if (task.kind == TaskKind::tile && stores)
        for (std::uint32_t row = 0; row < task.rows; row += block)
          for (std::uint32_t col = 0; col < task.cols; col += block) multiply(args, epoch, task, row, col, sa, sb);
      if (task.kind == TaskKind::transfer && stores)
        move(task, g.table.regions, g.a[0][0], g.a_scale[0][0], g.out[task.output], epoch.copy, threadIdx.x, threads);
      if (task.kind == TaskKind::reduction && stores)
        reduce(task, g.table.regions, g.bias[task.output], g.out[task.output], epoch.copy, threadIdx.x, threads);
      __syncthreads();
      if (threadIdx.x == 0) {
        clock.done();
        if (stores && task.post_count > 0) post_all(g.protocol, epoch, posts_of(task, g.table.posts));
      }
    }
  }
}

template <Type type>
cudaError_t launch(const GemmArgs& gemm, int workers, TensorMaps&, bool early, cudaStream_t stream) {
  cudaLaunchAttribute attribute = early_launch(early);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(workers));
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, plain_gemm, Args{gemm, type});
}

// NOTE: also loads the kernel. Loading one lazily while a rank's kernel waits for a peer can stop that peer's
// host, and so both.
int workers() {
  int device = 0, count = 0;
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, plain_gemm) != cudaSuccess) return 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  return count;
}

constexpr TileShape any{1 << 20, 1 << 20, 1, false};
constexpr GemmKernel plain[] = {
    {"plain bf16", Type::bf16, any, false, true, Layout::row_major, workers, launch<Type::bf16>},
    {"plain fp16", Type::fp16, any, false, true, Layout::row_major, workers, launch<Type::fp16>},
    {"plain fp32", Type::fp32, any, false, true, Layout::row_major, workers, launch<Type::fp32>},
    {"plain e4m3", Type::e4m3, any, false, true, Layout::row_major, workers, launch<Type::e4m3>}};

}  // namespace

const GemmKernel& plain_kernel(Type type) { return plain[static_cast<int>(type)]; }

}  // namespace imbrex::cuda
