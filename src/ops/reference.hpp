// The result in float64, and how far a right result may lie from it.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/operands.hpp"

namespace imbrex {

/// For each element of one rank's output.
struct Reference {
  std::vector<double> value, bound;
};

/// What a plan's library collectives add in. Tasks, and the CPU executor's collectives, add in fp32; NCCL adds in the
/// type of the partial products, in an order of its own. Collectives over some of the ranks leave sums of that type to
/// the next ones, and so count as adding in it.
enum class CollectiveSums : std::uint8_t { fp32, partial_type };

/// The bound of an element y = sum over ranks s of p_s, each p_s a sum of products a b over that rank's K:
///   fp32 sums in any order and slices:  g * sum |a b|,  g = n u / (1 - n u), n = K + R + slices + 2, u = 2^-24
///   partial products rounded to type P: u_P * (sum |p_s| + fp32 term) + R * tiny_P, where more than one rank adds up
///     added up in type P:               g_P * (sum |p_s| + fp32 term) + R * tiny_P,  g_P = R u_P / (1 - R u_P): a
///                                       product is rounded, and then takes part in at most R - 1 sums, in any order
///   result rounded to type T:           u_T * (|y| + both terms) + tiny_T
/// tiny is half the smallest denormal. (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1.)
Reference reference_of(const Plan& plan, const OperandSource& operands, int rank,
                       CollectiveSums sums = CollectiveSums::fp32);

/// Largest |result - value| / bound; infinity where a result is not a number and should be, or the other way round.
/// Results beyond the type's largest finite number must be infinite.
struct Comparison {
  double worst = 0;
  std::int64_t row = 0, col = 0;  ///< of the worst element
  double result = 0, value = 0;
};
Comparison compare(const Reference& reference, const std::vector<float>& result, Type type, std::int64_t cols);

}  // namespace imbrex
