// The operators' kernels, in the form in which torch calls them.
#pragma once

#include "torch_abi.hpp"

namespace imbrex_torch {

using Kernel = void(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

Kernel all_gather_matmul, all_gather_matmul_out, all_gather_matmuls, matmul_reduce_scatter, matmul_reduce_scatter_out,
    matmul_all_reduce, matmul_all_reduce_out, matmul_all_to_all, matmul_all_to_all_out;
Kernel all_gather_matmul_plain, all_gather_matmul_plain_out, matmul_reduce_scatter_plain,
    matmul_reduce_scatter_plain_out, matmul_all_reduce_plain, matmul_all_reduce_plain_out, matmul_all_to_all_plain,
    matmul_all_to_all_plain_out;
Kernel all_reduce, all_reduce_out, all_reduce_rms_norm, all_reduce_rms_norm_out;

}  // namespace imbrex_torch
