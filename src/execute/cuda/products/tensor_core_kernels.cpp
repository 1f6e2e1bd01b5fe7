// Which variants are in this build.
#include <algorithm>
#include <iterator>
#include <vector>

#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/products/variants.hpp"

namespace imbrex::cuda {

// Tiles of 64 x 64 take 256 bytes of K at once (sm90/config.cuh). Plans split K at multiples of 128 elements, and a
// slice of 256 elements would go beyond.
static_assert(std::all_of(std::begin(kernel_tiles), std::end(kernel_tiles),
                          [](const KernelTile& tile) {
                            return !tile.hopper || tile.type != Type::e4m3 || tile.rows * tile.cols > 64 * 64;
                          }),
              "an e4m3 tile of 64 x 64 or less multiplies more of K than a plan's part has");

#ifdef IMBREX_HAVE_CUTLASS
#define IMBREX_SM90(...) extern const GemmKernels IMBREX_SYMBOL_SM90(__VA_ARGS__);
#define IMBREX_SM80(...) extern const GemmKernels IMBREX_SYMBOL_SM80(__VA_ARGS__);
#include "execute/cuda/products/variants.def"

std::span<const GemmKernel* const> tensor_core_kernels() {
  static const std::vector<const GemmKernel*> kernels = [] {
    std::vector<const GemmKernel*> all;
    for (const GemmKernels& line : {
#define IMBREX_SM90(...) IMBREX_SYMBOL_SM90(__VA_ARGS__),
#define IMBREX_SM80(...) IMBREX_SYMBOL_SM80(__VA_ARGS__),
#include "execute/cuda/products/variants.def"
         })
      for (const GemmKernel& kernel : line) all.push_back(&kernel);
    return all;
  }();
  return kernels;
}
#else
std::span<const GemmKernel* const> tensor_core_kernels() { return {}; }
#endif

}  // namespace imbrex::cuda
