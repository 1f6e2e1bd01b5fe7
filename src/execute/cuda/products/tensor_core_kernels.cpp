// Which variants are in this build.
#include <vector>

#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/products/variants.hpp"

namespace imbrex::cuda {

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
