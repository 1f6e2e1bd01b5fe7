// The result in float64, and how far a right result may lie from it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "program/operands.hpp"

namespace imbrex::program {

/// One of every so many rows of each rank's output is compared: 1, every row, unless a rank's reference would take more
/// multiplications than most_multiplied, or sums went through a codec, whose groups go over rows. At most 32, so that
/// no tile of 63 rows or more lies between two of them.
std::int64_t compared_stride(const Plan& plan);
std::int64_t compared_stride(const Problem& problem);  ///< without a codec
inline constexpr double most_multiplied = 0x1p34;      // a core takes some two seconds for them

/// The rows of an output of `rows` that are compared: one of each `stride` in a row, drawn by `seed` and the rank. An
/// error in 2 * stride - 1 rows in a row is always found, one in a single row once in `stride`.
std::vector<std::int64_t> compared_rows(std::int64_t rows, std::int64_t stride, std::uint64_t seed, int rank);

/// For each element of one rank's output, or of those of its rows that were asked for.
struct Reference {
  std::vector<double> value, bound;
  double codec_bound = 0;  ///< the largest part of a bound that a codec has; 0 where nothing went through one
};

/// What `device` adds in. The CPU executor adds in fp32, as tasks do on GPUs; NCCL adds in the type of the partial
/// products, in an order of its own. Collectives over some of the ranks leave sums of that type to the next ones, and
/// those of a problem with a bias to what adds it, and so count as adding in it. Hopper's WGMMA adds
/// products of e4m3 in less than fp32.
///
/// The bound of an element y = sum over ranks s of p_s, each p_s a sum of products a b over that rank's K:
///   fp32 sums in any order and slices:  g * sum |a b|,  g = n u / (1 - n u), n = K + R + slices + 2, u = 2^-24; a bias
///   is
///                                       one more term, and each scale one more rounding
///   an instruction's sum of e4m3 products (GPUs), 32 of them and the sum so far c aligned to the largest and cut off
///   behind 13 bits, one of which may be taken by the products' carry (DeepSeek-AI, "DeepSeek-V3 Technical Report",
///   2024, section 3.3.2):              33 * 2^-12 * max(|c|, max |a| * max |b|), c starting anew every 128 of K
///   split-K sums stored in a narrower type Q than fp32, before a rank adds them up:
///                                       u_Q (1 + g) * sum |a b| + (parts) R * tiny_Q
///   partial products rounded to type P: u_P * (sum |p_s| + fp32 term) + R * tiny_P, where more than one rank adds up
///     added up in type P:               g_P * (sum |p_s| + fp32 term) + R * tiny_P,  g_P = R u_P / (1 - R u_P): a
///                                       product is rounded, and then takes part in at most R - 1 sums, in any order
///   sent through a codec:               c_1 of each p_s in its group, and c_2 of their sum in its group where there is
///                                       a second step: c is error_bound(codec, low, high) of the least and the largest
///                                       value that the group can hold
///   result rounded to type T:           u_T * (|y| + both terms) + tiny_T
/// tiny is half the smallest denormal. (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1.)
/// The output is that of `product`. `rows`: of these rows only, in their order, which ascends; null: of all.
/// `source_done` is called when the product of one more rank's operands was added.
Reference reference_of(const Plan& plan, const OperandSource& operands, int rank, Device device = Device::cpu,
                       int product = 0, const std::vector<std::int64_t>* rows = nullptr,
                       const std::function<void()>& source_done = {});

/// The gathered A, from which nothing may differ.
Reference gathered_reference(const Problem& problem, const OperandSource& operands);

/// |result - value| / bound, 0 where they are equal; infinity where a result is not a number and should be, or the
/// other way round. Results beyond the type's largest finite number must be infinite.
double error_over_bound(double result, double value, double bound, Type type);

/// Largest |result - value| / bound, 0 where they are equal; infinity where a result is not a number and should be, or
/// the other way round. Results beyond the type's largest finite number must be infinite.
struct Comparison {
  double worst = 0;
  std::int64_t row = 0, col = 0;  ///< of the worst element
  double result = 0, value = 0;
};
Comparison compare(const Reference& reference, const std::vector<float>& result, Type type, std::int64_t cols);

/// Compares a whole result with a reference of some of its rows.
Comparison compare(const Reference& reference, const std::vector<float>& result, Type type, std::int64_t cols,
                   const std::vector<std::int64_t>& rows);

}  // namespace imbrex::program
