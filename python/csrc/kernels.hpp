// The operators' kernels, in the form in which torch calls them.
#pragma once

#include "products.hpp"
#include "torch_abi.hpp"

namespace imbrex_torch {

using Kernel = void(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

#define IMBREX_DECLARE(name, kind, sums) Kernel name, name##_out, name##_plain, name##_plain_out;
IMBREX_PRODUCTS(IMBREX_DECLARE)
#undef IMBREX_DECLARE
Kernel all_gather_matmuls, all_reduce, all_reduce_out, all_reduce_rms_norm, all_reduce_rms_norm_out;

}  // namespace imbrex_torch
