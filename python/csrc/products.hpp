// The operators that multiply: the one list of them that the extension has.
#pragma once

#include "imbrex/c.h"

// X(name, kind, sums): as torch calls it, c.h's number, and SUM where it sums over the ranks, and so takes a codec,
// else EXCHANGE. Schemas, kernels and counters are made of it.
#define IMBREX_PRODUCTS(X)                                  \
  X(all_gather_matmul, IMBREX_ALL_GATHER_GEMM, EXCHANGE)    \
  X(matmul_reduce_scatter, IMBREX_GEMM_REDUCE_SCATTER, SUM) \
  X(matmul_all_reduce, IMBREX_GEMM_ALL_REDUCE, SUM)         \
  X(matmul_all_to_all, IMBREX_GEMM_ALL_TO_ALL, EXCHANGE)
