// Kernels, each as it is and with a put that it never makes.
#pragma once

#include "shmem/scopes.hpp"

namespace imbrex::shmem::test {

/// What the put would need, and `never`, which no step is.
struct Dormant {
  Handle handle;
  const float* row;
  float* halo;
  Signal* signal;
  int never;
};

/// A context, a put by the block and a signal.
template <typename G>
IMBREX_DEVICE void put_halo(const Dormant& dormant, int n) {
  Context context(dormant.handle);
  context.put_signal(dormant.halo, dormant.row, static_cast<std::uint64_t>(n), dormant.signal, 1, SignalOperation::add,
                     (context.pe() + 1) % context.pes(), G{});
}

enum class Where { nowhere, behind, within, widely };

/// A sweep of Jacobi's method down a column a thread, with its residuals. The put would come behind the sweep, or after
/// each row of it, where the sweep keeps all that it has in registers; `widely` there, with more loads under way.
template <Where where>
__global__ void __launch_bounds__(256) sweep(const float* __restrict__ in, float* __restrict__ out, int width,
                                             int height, float* residuals, Dormant dormant) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) + 1;
  float squares = 0, largest = 0, weighted = 0;
  if (x < width - 1) {
    const float* column = in + x;
    float up = column[0], middle = column[width];
    const float left = column[width - 1], right = column[width + 1];
    for (int y = 1; y < height - 1; ++y) {
      const float down = column[(y + 1) * width];
      const float value = 0.25f * (up + down + column[y * width - 1] + column[y * width + 1]);
      out[y * width + x] = value;
      const float change = value - middle;
      squares += change * change;
      largest = fmaxf(largest, fabsf(change));
      weighted += fabsf(change) * left + right;
      up = middle, middle = down;
      if constexpr (where == Where::within)
        if (y == dormant.never) put_halo<Block>(dormant, width);
      if constexpr (where == Where::widely)
        if (y == dormant.never) put_halo<Wide<Block>>(dormant, width);
    }
  }
  if constexpr (where == Where::behind)
    if (height == dormant.never) put_halo<Block>(dormant, width);
  atomicAdd(residuals, squares + weighted), atomicMax(reinterpret_cast<int*>(residuals) + 1, __float_as_int(largest));
}

}  // namespace imbrex::shmem::test
