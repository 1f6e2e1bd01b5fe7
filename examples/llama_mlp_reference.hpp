// The unsharded block in float64, and how far a right result in bf16 may lie from it.
#pragma once

#include "llama_mlp_tensors.hpp"

namespace llama_mlp {

/// Largest |y - reference| / bound over the tokens row .. row + rows, whose results `y` holds.
///
/// The bound follows the roundings: e1 of both first products (fp32 sums over hidden, one rounding to bf16); through
/// |SiLU'| <= 1.1 and the product to h, with the kernel's fp32 arithmetic and a rounding to bf16; through the second
/// product, with one rounding of each rank's part and one of the sum to bf16.
double compare(const Tensors& tensors, const Sizes& sizes, int ranks, std::int64_t row, std::int64_t rows,
               const std::vector<std::uint16_t>& y);

}  // namespace llama_mlp
