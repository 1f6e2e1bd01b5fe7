// The operators as torch knows them: one list, from which they are defined and of which Python's fakes are tested.
#pragma once

#include <array>

#include "products.hpp"

namespace imbrex_torch {

// dim: the dimension of A that is gathered, or of the result that is scattered; 0 where there is neither. The
// functional variants make the result; the others write it into `out`.
#define IMBREX_GEMM_ARGUMENTS \
  "(Tensor a, Tensor b, str group, int dim=0, Tensor? bias=None, Tensor? scale_a=None, Tensor? scale_b=None"
#define IMBREX_EXCHANGE_RESULT ", ScalarType? out_dtype=None) -> Tensor"
#define IMBREX_EXCHANGE_OUT ", *, Tensor(a!) out) -> ()"
// Most calls give nothing but these, and the kernels are quickest with them: torch's parsing of a call takes longer
// than the rest of it, and each argument that a schema has or a caller gives adds to that.
#define IMBREX_PLAIN "(Tensor a, Tensor b, str group"
#define IMBREX_PLAIN_RESULT ") -> Tensor"
#define IMBREX_PLAIN_OUT ", Tensor(a!) out) -> ()"
#define IMBREX_SUM_RESULT ", ScalarType? out_dtype=None, str? codec=None) -> Tensor"
#define IMBREX_SUM_OUT ", str? codec=None, *, Tensor(a!) out) -> ()"
#define IMBREX_ALL_REDUCE_ARGUMENTS "(Tensor x, str group, str? codec=None, float? tolerance=None, bool report=False"
#define IMBREX_RMS_NORM_ARGUMENTS "(Tensor x, Tensor? residual, Tensor weight, float eps, str group"

#define IMBREX_PRODUCT_SCHEMAS(name, kind, sums)                                                              \
#name IMBREX_GEMM_ARGUMENTS IMBREX_##sums##_RESULT, #name "_out" IMBREX_GEMM_ARGUMENTS IMBREX_##sums##_OUT, \
      #name "_plain" IMBREX_PLAIN IMBREX_PLAIN_RESULT, #name "_plain_out" IMBREX_PLAIN IMBREX_PLAIN_OUT,

inline constexpr std::array schemas{
    IMBREX_PRODUCTS(IMBREX_PRODUCT_SCHEMAS)
    // Takes up to three B, with a bias each or none; results that are not wanted are empty.
    "all_gather_matmuls(Tensor a, Tensor b, Tensor? b1, Tensor? b2, str group, int dim=0, Tensor? bias=None, "
    "Tensor? bias1=None, Tensor? bias2=None, bool return_gathered=True) -> "
    "(Tensor gathered, Tensor y, Tensor y1, Tensor y2)",
    "all_reduce" IMBREX_ALL_REDUCE_ARGUMENTS ") -> Tensor",
    "all_reduce_out" IMBREX_ALL_REDUCE_ARGUMENTS ", *, Tensor(a!) out) -> ()",
    "all_reduce_rms_norm" IMBREX_RMS_NORM_ARGUMENTS ") -> (Tensor, Tensor)",
    "all_reduce_rms_norm_out" IMBREX_RMS_NORM_ARGUMENTS ", *, Tensor(a!) out, Tensor(b!) residual_out) -> ()",
};

}  // namespace imbrex_torch
