// The result in float64, and how far a right result may lie from it.
#pragma once

#include <vector>

#include "ops/operands.hpp"

namespace imbrex {

/// For each element of one rank's output.
struct Reference {
  std::vector<double> value, bound;
};

/// The bound of an element y = sum over ranks s of p_s, each p_s a sum of products a b over that rank's K:
///   fp32 sums in any order and slices:  g * sum |a b|,  g = n u / (1 - n u), n = K + R + slices + 2, u = 2^-24
///   partial products rounded to type P: u_P * (sum |p_s| + fp32 term) + R * tiny_P, where more than one rank adds up
///   result rounded to type T:           u_T * (|y| + both terms) + tiny_T
/// tiny is half the smallest denormal. (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1.)
Reference reference_of(const Plan& plan, const OperandSource& operands, int rank);

/// Largest |result - value| / bound; infinity where a result is not a number and should be, or the other way round.
/// Results beyond the type's largest finite number must be infinite.
struct Comparison {
  double worst = 0;
  std::int64_t row = 0, col = 0;  ///< of the worst element
  double result = 0, value = 0;
};
Comparison compare(const Reference& reference, const std::vector<float>& result, Type type, std::int64_t cols);

}  // namespace imbrex
