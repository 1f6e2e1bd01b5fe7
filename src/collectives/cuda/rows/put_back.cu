// Row operations on packed matrices. A block takes rows that follow each other; a thread the same columns of each, in
// packets of 16 bytes, so that it looks up where they lie once for each row of blocks.
#include "base/elements.cuh"
#include "collectives/cuda/rows/put_back_kernel.hpp"
#include "imbrex/device/ordering.hpp"

namespace imbrex::collectives {
namespace {

using cuda::Elements;

constexpr std::uint32_t most_threads = most_row_threads;

/// The sums of a block's warps, in two copies that take turns: a thread that writes one again has met its
/// readers at the other copy's barrier.
struct WarpSums {
  float of[2][most_threads / 32];
};

/// A thread's packets of a row: number k is packet threadIdx.x + k * blockDim.x. The first `Kept` stay in registers.
template <Type type, RowOperation operation, int Kept>
class RowsOfBlock {
 public:
  __device__ __forceinline__ RowsOfBlock(const PutBackArgs& args, WarpSums& sums) : a_(args), sums_(sums) {}

  __device__ __forceinline__ void run() {
    const auto begin = static_cast<std::uint32_t>(std::uint64_t{a_.rows} * blockIdx.x / gridDim.x);
    const auto end = static_cast<std::uint32_t>(std::uint64_t{a_.rows} * (blockIdx.x + 1) / gridDim.x);
    if (begin == end) return;
    // Where blocks lie never changes: that may be read before what other kernels still write.
    find(begin);
    device::wait_for_stream();
#pragma unroll
    for (int k = 0; k < Kept; ++k)
      if (a_.by_column != nullptr && has(k)) column_[k] = a_.by_column[packet(k)];
    for (std::uint32_t row = begin; row < end; ++row) {
      if (row != begin && row % a_.block_rows == 0) find(row);
      if constexpr (operation == RowOperation::rms_norm)
        normalise(row);
      else
        map_row(row);
    }
  }

 private:
  static constexpr int count = Elements<type>::count;
  static constexpr bool halves = operation == RowOperation::silu_multiply;

  __device__ __forceinline__ static std::uint32_t packet(std::uint32_t k) { return threadIdx.x + k * blockDim.x; }
  __device__ __forceinline__ std::uint32_t packets() const { return halves ? a_.row / 2 : a_.row; }
  __device__ __forceinline__ bool has(std::uint32_t k) const { return packet(k) < packets(); }

  /// Packet `q` of the first row of the row of blocks that `row` is in.
  __device__ __forceinline__ const uint4* place(std::uint32_t row, std::uint32_t q) const {
    const std::uint32_t j = q / a_.block_row;
    const std::uint64_t first =
        a_.first_rows == nullptr ? 0 : static_cast<std::uint64_t>(a_.first_rows[row / a_.block_rows * a_.across + j]);
    return a_.in + first * a_.block_row + (q - j * a_.block_row);
  }

  __device__ __forceinline__ void find(std::uint32_t row) {
#pragma unroll
    for (int k = 0; k < Kept; ++k) {
      if (!has(k)) continue;
      at_[k] = place(row, packet(k));
      if constexpr (halves) second_[k] = place(row, packet(k) + packets());
    }
  }

  __device__ __forceinline__ std::uint64_t behind(std::uint32_t row) const {
    return std::uint64_t{row % a_.block_rows} * a_.block_row;
  }

  __device__ __forceinline__ uint4 load(std::uint32_t row, std::uint32_t q) const {
    return __ldcs(place(row, q) + behind(row));
  }

  static __device__ __forceinline__ void unpack(const uint4& packed, float (&values)[count]) {
    int i = 0;
    Elements<type>::each(packed, [&](float v) { values[i++] = v; });
  }

  static __device__ __forceinline__ void add(float (&values)[count], const uint4& packed) {
    int i = 0;
    Elements<type>::each(packed, [&](float v) { values[i++] += v; });
  }

  // ---------------------------------------------------------------------------------------------- elementwise

  __device__ __forceinline__ void map_row(std::uint32_t row) {
    const std::uint64_t offset = behind(row), out = std::uint64_t{row} * packets();
    uint4 x[Kept], y[Kept];
#pragma unroll
    for (int k = 0; k < Kept; ++k) {
      if (!has(k)) continue;
      x[k] = __ldcs(at_[k] + offset);
      if constexpr (halves) y[k] = __ldcs(second_[k] + offset);
    }
#pragma unroll
    for (int k = 0; k < Kept; ++k)
      if (has(k)) a_.out[out + packet(k)] = mapped(packet(k), x[k], y[k], column_[k]);
    for (std::uint32_t q = packet(Kept); q < packets(); q += blockDim.x)
      a_.out[out + q] = mapped(q, load(row, q), halves ? load(row, q + packets()) : uint4{},
                               a_.by_column == nullptr ? uint4{} : a_.by_column[q]);
  }

  __device__ __forceinline__ uint4 mapped(std::uint32_t q, const uint4& x, const uint4& y, const uint4& bias) const {
    if constexpr (operation == RowOperation::copy) {
      return x;
    } else {
      float values[count];
      unpack(x, values);
      if (a_.by_column != nullptr) add(values, bias);
      if constexpr (halves) {
        float up[count];
        unpack(y, up);
        if (a_.by_column != nullptr) add(up, a_.by_column[q + packets()]);
#pragma unroll
        for (int i = 0; i < count; ++i) values[i] = values[i] / (1.0f + expf(-values[i])) * up[i];
      } else {
#pragma unroll
        for (int i = 0; i < count; ++i) values[i] = 0.5f * values[i] * (1.0f + erff(values[i] * 0.70710678f));
      }
      return Elements<type>::packed(values);
    }
  }

  // ------------------------------------------------------------------------------------------------- RMSNorm

  __device__ __forceinline__ void normalise(std::uint32_t row) {
    const std::uint64_t offset = behind(row), first = std::uint64_t{row} * a_.row;
    uint4 x[Kept];
#pragma unroll
    for (int k = 0; k < Kept; ++k)
      if (has(k)) x[k] = __ldcs(at_[k] + offset);
    if (a_.residual != nullptr) {
      uint4 residual[Kept];
#pragma unroll
      for (int k = 0; k < Kept; ++k)
        if (has(k)) residual[k] = a_.residual[first + packet(k)];
#pragma unroll
      for (int k = 0; k < Kept; ++k)
        if (has(k)) a_.residual_out[first + packet(k)] = x[k] = sum(x[k], residual[k]);
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < Kept; ++k)
      if (has(k)) add_squares(x[k], squares);
    for (std::uint32_t q = packet(Kept); q < a_.row; q += blockDim.x) {
      uint4 packed = load(row, q);
      if (a_.residual != nullptr) a_.residual_out[first + q] = packed = sum(packed, a_.residual[first + q]);
      add_squares(packed, squares);
    }
    const float scale = row_scale(total(squares), a_.hidden, a_.eps);
#pragma unroll
    for (int k = 0; k < Kept; ++k)
      if (has(k)) a_.out[first + packet(k)] = scaled(x[k], scale, column_[k]);
    for (std::uint32_t q = packet(Kept); q < a_.row; q += blockDim.x)
      a_.out[first + q] =
          scaled(a_.residual != nullptr ? a_.residual_out[first + q] : load(row, q), scale, a_.by_column[q]);
  }

  static __device__ __forceinline__ uint4 sum(const uint4& x, const uint4& residual) {
    float values[count];
    unpack(x, values);
    add(values, residual);
    return Elements<type>::packed(values);
  }

  static __device__ __forceinline__ void add_squares(const uint4& packed, float& squares) {
    Elements<type>::each(packed, [&](float v) { squares = add_square(squares, v); });
  }

  static __device__ __forceinline__ uint4 scaled(const uint4& x, float scale, const uint4& weight) {
    float values[count];
    unpack(x, values);
    int i = 0;
    Elements<type>::each(weight, [&](float w) {
      values[i] = normalised(values[i], scale, w);
      ++i;
    });
    return Elements<type>::packed(values);
  }

  /// By all threads, in the order that RowShape says.
  __device__ __forceinline__ float total(float squares) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    if (blockDim.x == 32) return squares;
    auto& sums = sums_.of[turn_];
    turn_ ^= 1;
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = sums[0];
    for (std::uint32_t w = 1; w < blockDim.x / 32; ++w) squares += sums[w];
    return squares;
  }

  const PutBackArgs& a_;
  WarpSums& sums_;
  std::uint32_t turn_ = 0;
  const uint4 *at_[Kept], *second_[halves ? Kept : 1];
  uint4 column_[Kept] = {};
};

template <Type type, RowOperation operation, int Kept>
__global__ void __launch_bounds__(most_threads, Kept == 1 ? 3 : 2)
    put_back_rows(const __grid_constant__ PutBackArgs args) {
  __shared__ WarpSums sums;
  RowsOfBlock<type, operation, Kept>(args, sums).run();
}

template <Type type, RowOperation operation>
const void* kernel_for(std::uint32_t batches) {
  if (batches == 1) return reinterpret_cast<const void*>(put_back_rows<type, operation, 1>);
  if (batches == 2) return reinterpret_cast<const void*>(put_back_rows<type, operation, 2>);
  return reinterpret_cast<const void*>(put_back_rows<type, operation, 4>);
}

template <Type type>
const void* kernel_for(RowOperation operation, std::uint32_t batches) {
  switch (operation) {
    case RowOperation::copy: return kernel_for<type, RowOperation::copy>(batches);
    case RowOperation::rms_norm: return kernel_for<type, RowOperation::rms_norm>(batches);
    case RowOperation::silu_multiply: return kernel_for<type, RowOperation::silu_multiply>(batches);
    case RowOperation::gelu: return kernel_for<type, RowOperation::gelu>(batches);
  }
  return nullptr;
}

}  // namespace

const void* put_back_kernel(Type type, RowOperation operation, std::uint32_t batches) {
  if (type == Type::bf16) return kernel_for<Type::bf16>(operation, batches);
  if (type == Type::fp16) return kernel_for<Type::fp16>(operation, batches);
  return kernel_for<Type::fp32>(operation, batches);
}

}  // namespace imbrex::collectives
