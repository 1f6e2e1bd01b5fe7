#include "all_reduce/add_norm.hpp"

#include <algorithm>
#include <stdexcept>

#include "collectives/cuda/wire/packet.cuh"
#include "runtime/cuda/early_launch.hpp"

namespace imbrex {
namespace {

using cuda::Elements;

struct Args {
  const uint4 *sum, *residual, *weight;
  uint4 *residual_out, *out;
  std::uint32_t packets;  // of a row
  float hidden, eps;
};

// A block for each row; it reads the row's first packets once.
template <Type type>
__global__ void __launch_bounds__(512) add_norm(const __grid_constant__ Args a) {
  constexpr int count = Elements<type>::count, kept = 2;
  __shared__ float warps[16];
  device::wait_for_stream();
  const std::size_t row = std::size_t{blockIdx.x} * a.packets;
  float values[kept][count];
  float squares = 0;
  const auto add = [&](std::uint32_t q, float(&x)[count]) {
    int i = 0, j = 0;
    Elements<type>::each(a.sum[row + q], [&](float v) { x[i++] = v; });
    Elements<type>::each(a.residual[row + q], [&](float v) { x[j++] += v; });
    const uint4 packed = Elements<type>::packed(x);
    a.residual_out[row + q] = packed;
    int k = 0;
    Elements<type>::each(packed, [&](float v) {
      x[k++] = v;
      squares += v * v;
    });
  };
#pragma unroll
  for (int k = 0; k < kept; ++k)
    if (const std::uint32_t q = threadIdx.x + k * blockDim.x; q < a.packets) add(q, values[k]);
  for (std::uint32_t q = threadIdx.x + kept * blockDim.x; q < a.packets; q += blockDim.x) {
    float x[count];
    add(q, x);
  }
  for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0;
  for (std::uint32_t w = 0; w < blockDim.x / 32; ++w) squares += warps[w];
  const float scale = rsqrtf(squares / a.hidden + a.eps);
  const auto put = [&](std::uint32_t q, float(&x)[count]) {
    int i = 0;
    Elements<type>::each(a.weight[q], [&](float w) {
      x[i] *= scale * w;
      ++i;
    });
    a.out[row + q] = Elements<type>::packed(x);
  };
#pragma unroll
  for (int k = 0; k < kept; ++k)
    if (const std::uint32_t q = threadIdx.x + k * blockDim.x; q < a.packets) put(q, values[k]);
  for (std::uint32_t q = threadIdx.x + kept * blockDim.x; q < a.packets; q += blockDim.x) {
    float x[count];
    int i = 0;
    Elements<type>::each(a.residual_out[row + q], [&](float v) { x[i++] = v; });
    put(q, x);
  }
}

}  // namespace

void add_and_norm(const void* sum, const void* residual, const void* weight, void* residual_out, void* out,
                  std::int64_t rows, std::int64_t hidden, float eps, Type type, cudaStream_t stream, bool early) {
  if (rows == 0) return;
  const auto bytes = static_cast<std::size_t>(hidden) * size_of(type);
  Args args{static_cast<const uint4*>(sum),    static_cast<const uint4*>(residual),
            static_cast<const uint4*>(weight), static_cast<uint4*>(residual_out),
            static_cast<uint4*>(out),          static_cast<std::uint32_t>(bytes / 16),
            static_cast<float>(hidden),        eps};
  cudaLaunchAttribute attribute = cuda::early_launch(early);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows));
  config.blockDim = dim3(std::min(512u, (args.packets + 31) / 32 * 32));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto kernel = type == Type::bf16   ? add_norm<Type::bf16>
                      : type == Type::fp16 ? add_norm<Type::fp16>
                                           : add_norm<Type::fp32>;
  if (const cudaError_t status = cudaLaunchKernelEx(&config, kernel, args); status != cudaSuccess)
    throw std::runtime_error(cudaGetErrorString(status));
}

}  // namespace imbrex
