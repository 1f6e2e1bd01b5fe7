// Which variants are in this build.
#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/products/variants.hpp"

namespace imbrex::cuda {

#ifdef IMBREX_HAVE_CUTLASS
#define IMBREX_SM90(...) extern const GemmKernel IMBREX_SYMBOL_SM90(__VA_ARGS__);
#define IMBREX_SM80(...) extern const GemmKernel IMBREX_SYMBOL_SM80(__VA_ARGS__);
#include "execute/cuda/products/variants.def"

const GemmKernel* const* tensor_core_kernels(std::size_t& count) {
  static const GemmKernel* const kernels[] = {
#define IMBREX_SM90(...) &IMBREX_SYMBOL_SM90(__VA_ARGS__),
#define IMBREX_SM80(...) &IMBREX_SYMBOL_SM80(__VA_ARGS__),
#include "execute/cuda/products/variants.def"
  };
  count = sizeof kernels / sizeof kernels[0];
  return kernels;
}
#else
const GemmKernel* const* tensor_core_kernels(std::size_t& count) {
  count = 0;
  return nullptr;
}
#endif

}  // namespace imbrex::cuda
