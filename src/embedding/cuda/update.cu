// An update's kernels: indices become keys, which CUB sorts stably; warps sum tiles of them, and finish the rows that
// several tiles hold. Every sum has one order, the CPU's.
#include <cub/device/device_radix_sort.cuh>

#include "base/bits.hpp"
#include "base/elements.cuh"
#include "embedding/cuda/findings.cuh"
#include "embedding/cuda/update_args.hpp"

namespace imbrex::embedding {
namespace {

constexpr std::uint32_t threads = 256, warps = threads / 32, all_lanes = 0xffffffffu, key_lanes = 8;
constexpr auto tile = static_cast<std::uint32_t>(tile_indices);

// Eight lanes a bag.
__global__ void __launch_bounds__(threads) make_keys(const __grid_constant__ UpdateArgs a) {
  const std::uint32_t bag = blockIdx.x * (threads / key_lanes) + threadIdx.x / key_lanes,
                      lane = threadIdx.x % key_lanes;
  if (bag >= a.bag_count) return;
  const std::uint32_t team = 0xffu << (threadIdx.x % 32 - lane);
  const UpdateTable& table = a.tables[bag / a.batch];
  const auto begin = static_cast<std::uint64_t>(number_at(a.offsets, a.wide, bag));
  const auto end = static_cast<std::uint64_t>(number_at(a.offsets, a.wide, bag + 1));
  if (begin > end || end > a.count) {
    if (lane == 0) find_offset(a, begin > a.count ? bag : bag + 1);
    return;
  }
  std::uint32_t added = 0;
  for (auto k = static_cast<std::uint32_t>(begin) + lane; k < end; k += key_lanes) {
    const std::int64_t index = number_at(a.indices, a.wide, k);
    const bool is_row = static_cast<std::uint64_t>(index) < table.count;
    a.positions[k] = k;
    a.bags[k] = bag;
    if (is_row) {
      a.keys[k] = table.base + static_cast<std::uint32_t>(index);
      ++added;
    } else {
      find_index(a, k, index, table.count, [&] { return bag; });
      atomicAdd(&a.findings->ignored, 1ull);
    }
  }
  for (std::uint32_t step = key_lanes / 2; step > 0; step /= 2) added += __shfl_xor_sync(team, added, step);
  if (lane == 0) a.shares[bag] = a.mean ? __frcp_rn(static_cast<float>(added != 0 ? added : 1u)) : 1.0f;
}

// Four columns of a gradient.
__device__ __forceinline__ float4 load_gradient(Type type, const std::byte* at) {
  if (type == Type::fp32) return __ldg(reinterpret_cast<const float4*>(at));
  const uint2 words = __ldg(reinterpret_cast<const uint2*>(at));
  const float2 low = type == Type::bf16 ? cuda::two_from<Type::bf16>(words.x) : cuda::two_from<Type::fp16>(words.x);
  const float2 high = type == Type::bf16 ? cuda::two_from<Type::bf16>(words.y) : cuda::two_from<Type::fp16>(words.y);
  return {low.x, low.y, high.x, high.y};
}

__device__ __forceinline__ float4 scaled_sum(float scale, const float4& x, const float4& sum) {
  return {codec::multiply_add(scale, x.x, sum.x), codec::multiply_add(scale, x.y, sum.y),
          codec::multiply_add(scale, x.z, sum.z), codec::multiply_add(scale, x.w, sum.w)};
}

/// Changes a row, by one warp: lane l has columns 4 (l + 32 i) and the next three in gradient[i].
template <int vectors>
__device__ __forceinline__ void apply(const UpdateArgs& a, const UpdateTable& table, std::uint32_t row,
                                      const float4 (&gradient)[vectors], std::uint32_t lane) {
  if (row >= table.count) return;  // bags whose offsets do not fit may hold each other's positions
  float factor = a.rate;
  if (a.adagrad) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {  // columns that there are not hold zeros
      squares = codec::multiply_add(gradient[i].x, gradient[i].x, squares);
      squares = codec::multiply_add(gradient[i].y, gradient[i].y, squares);
      squares = codec::multiply_add(gradient[i].z, gradient[i].z, squares);
      squares = codec::multiply_add(gradient[i].w, gradient[i].w, squares);
    }
    for (int step = 16; step > 0; step /= 2) squares = __fadd_rn(squares, __shfl_xor_sync(all_lanes, squares, step));
    const float state = __fadd_rn(table.states[row], __fdiv_rn(squares, static_cast<float>(table.dim)));
    factor = __fdiv_rn(a.rate, __fadd_rn(__fsqrt_rn(state), a.epsilon));
    __syncwarp();  // all lanes have read it
    if (lane == 0) table.states[row] = state;
  }
  std::byte* at = table.rows + row * table.pitch;
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    const std::uint32_t column = 4 * (lane + 32 * static_cast<std::uint32_t>(i));
    if (column >= table.dim) continue;
    if (a.rows == TableRows::fp32) {
      auto* to = reinterpret_cast<float4*>(at + column * 4);
      *to = scaled_sum(-factor, gradient[i], *to);
    } else {
      auto* to = reinterpret_cast<uint2*>(at + column * 2);
      const bool bf16 = a.rows == TableRows::bf16;
      const float4 old = load_gradient(bf16 ? Type::bf16 : Type::fp16, reinterpret_cast<const std::byte*>(to));
      const float4 now = scaled_sum(-factor, gradient[i], old);
      *to = bf16 ? uint2{cuda::two_to<Type::bf16>(now.x, now.y), cuda::two_to<Type::bf16>(now.z, now.w)}
                 : uint2{cuda::two_to<Type::fp16>(now.x, now.y), cuda::two_to<Type::fp16>(now.z, now.w)};
    }
  }
}

__device__ __forceinline__ const UpdateTable& table_of(const UpdateArgs& a, std::uint32_t place) {
  return a.tables[a.bags[a.sorted_positions[place]] / a.batch];
}

/// The sums of a tile, by one warp. Rows that lie in it alone are changed.
template <int vectors>
__global__ void __launch_bounds__(threads) sum_tiles(const __grid_constant__ UpdateArgs a) {
  constexpr std::uint32_t in_flight = vectors <= 2 ? 4 : 2;
  const std::uint32_t number = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (number >= a.tiles) return;
  const std::uint32_t begin = number * tile, end = codec::smaller(begin + tile, a.count);
  // Whether the row at hand began in an earlier tile.
  bool goes_on = begin > 0 && a.sorted_keys[begin] == a.sorted_keys[begin - 1];
  float4 sum[vectors] = {};
  for (std::uint32_t some = begin; some < end; some += 32) {
    // What each lane knows of one index.
    std::uint32_t key = no_key, next = no_key, bag = 0;
    float scale = 0.0f;
    const std::byte* from = nullptr;
    if (some + lane < end) {
      key = a.sorted_keys[some + lane];
      next = some + lane + 1 < a.count ? a.sorted_keys[some + lane + 1] : no_key;
      if (key != no_key) {
        const std::uint32_t position = a.sorted_positions[some + lane];
        bag = a.bags[position];
        scale = codec::product(a.weights != nullptr ? __ldg(a.weights + position) : 1.0f, a.shares[bag]);
        const std::uint32_t row = bag % a.batch;
        from = a.parts[row / a.part_rows] + row % a.part_rows * a.gradient_pitch +
               a.tables[bag / a.batch].column * std::uint64_t{size_of(a.gradient)};
      }
    }
    for (std::uint32_t first = 0; first < 32 && some + first < end; first += in_flight) {
      float4 held[in_flight][vectors];
#pragma unroll
      for (std::uint32_t u = 0; u < in_flight; ++u) {
        const int source = static_cast<int>(first + u);
        const auto address = __shfl_sync(all_lanes, reinterpret_cast<unsigned long long>(from), source);
        const std::uint32_t dim = address != 0 ? a.tables[__shfl_sync(all_lanes, bag, source) / a.batch].dim : 0;
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
          const std::uint32_t column = 4 * (lane + 32 * static_cast<std::uint32_t>(i));
          held[u][i] = column < dim ? load_gradient(a.gradient, reinterpret_cast<const std::byte*>(address) +
                                                                    column * size_of(a.gradient))
                                    : float4{};
        }
      }
#pragma unroll
      for (std::uint32_t u = 0; u < in_flight; ++u) {
        const int source = static_cast<int>(first + u);
        const std::uint32_t at = some + first + u, here = __shfl_sync(all_lanes, key, source);
        const float s = __shfl_sync(all_lanes, scale, source);
        const bool ends = __shfl_sync(all_lanes, next, source) != here;
        if (at >= end || here == no_key) return;  // nothing but such follows
#pragma unroll
        for (int i = 0; i < vectors; ++i) sum[i] = scaled_sum(s, held[u][i], sum[i]);
        if (!ends && at + 1 < end) continue;
        if (ends && !goes_on) {
          const UpdateTable& table = table_of(a, at);
          apply<vectors>(a, table, here - table.base, sum, lane);
        } else {
          float* to = a.partial + (std::uint64_t{number} * 2 + (goes_on ? 0 : 1)) * a.width;
#pragma unroll
          for (int i = 0; i < vectors; ++i) {
            const std::uint32_t column = 4 * (lane + 32 * static_cast<std::uint32_t>(i));
            if (column < a.width) *reinterpret_cast<float4*>(to + column) = sum[i];
          }
        }
        goes_on = false;
#pragma unroll
        for (int i = 0; i < vectors; ++i) sum[i] = {};
      }
    }
  }
}

/// Changes the rows that begin in a tile and end in a later one, by one warp each.
template <int vectors>
__global__ void __launch_bounds__(threads) finish_rows(const __grid_constant__ UpdateArgs a) {
  const std::uint32_t number = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (number + 1 >= a.tiles) return;
  const std::uint32_t begin = number * tile, end = begin + tile, key = a.sorted_keys[end - 1];
  const bool began_before = begin > 0 && a.sorted_keys[begin - 1] == key;
  if (key == no_key || a.sorted_keys[end] != key || began_before) return;
  float4 sum[vectors] = {};
  const auto add = [&](std::uint32_t from_tile, std::uint32_t which) {
    const float* from = a.partial + (std::uint64_t{from_tile} * 2 + which) * a.width;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const std::uint32_t column = 4 * (lane + 32 * static_cast<std::uint32_t>(i));
      if (column < a.width) sum[i] = scaled_sum(1.0f, *reinterpret_cast<const float4*>(from + column), sum[i]);
    }
  };
  add(number, 1);
  for (std::uint32_t t = number + 1; t < a.tiles && a.sorted_keys[t * tile] == key; ++t) add(t, 0);
  const UpdateTable& table = table_of(a, end - 1);
  apply<vectors>(a, table, key - table.base, sum, lane);
}

template <int vectors>
cudaError_t launch_both(const UpdateArgs& args, cudaStream_t stream) {
  const std::uint32_t blocks = (args.tiles + warps - 1) / warps;
  sum_tiles<vectors><<<blocks, threads, 0, stream>>>(args);
  finish_rows<vectors><<<blocks, threads, 0, stream>>>(args);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t launch_keys(const UpdateArgs& args, cudaStream_t stream) {
  const std::uint32_t bags_a_block = threads / key_lanes;
  make_keys<<<(args.bag_count + bags_a_block - 1) / bags_a_block, threads, 0, stream>>>(args);
  return cudaPeekAtLastError();
}

cudaError_t launch_sums(const UpdateArgs& args, cudaStream_t stream) {
  if (args.width <= 128) return launch_both<1>(args, stream);
  if (args.width <= 256) return launch_both<2>(args, stream);
  if (args.width <= 512) return launch_both<4>(args, stream);
  return launch_both<8>(args, stream);
}

cudaError_t sort_bytes(std::uint32_t count, int bits, std::size_t& bytes) {
  const std::uint32_t* none = nullptr;
  std::uint32_t* nothing = nullptr;
  return cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, nothing, none, nothing, count, 0, bits);
}

cudaError_t launch_sort(const UpdateArgs& args, int bits, void* memory, std::size_t bytes, std::uint32_t* sorted_keys,
                        std::uint32_t* sorted_positions, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(memory, bytes, static_cast<const std::uint32_t*>(args.keys), sorted_keys,
                                         static_cast<const std::uint32_t*>(args.positions), sorted_positions,
                                         args.count, 0, bits, stream);
}

}  // namespace imbrex::embedding
