// The lookup on the CPU, and what it is measured by.
#pragma once

#include <cstdint>
#include <vector>

#include "embedding/bags.hpp"

namespace imbrex::embedding {

/// The sum, or mean, of bag (table, row of the batch) in fp32, into `sums`, one for each column, as look_up makes it
/// before the last rounding. Gives the number of its indices that are no rows.
std::int64_t pool(const Tables& tables, const Bags& bags, std::int32_t table, std::int64_t row, float* sums);

/// Looks up a part's bags and stores their sums to the ranks that own them. A bag's rows are added in the order of its
/// indices, in fp32, each by one fused multiply-add with its weight; a mean's sum is multiplied by 1 / n; the result is
/// rounded once to the output's type. GPUs do the same, to the bit. Indices that are no rows add nothing: gives their
/// number. All memory is the host's. The caller has checked shapes and offsets.
std::int64_t look_up(const Tables& tables, const Bags& bags, const Output& output, const Part& part);

/// What a bag's sum is in exact arithmetic except rounding to double, and how far a right result may be from it.
struct Bounded {
  double value, bound;
};

/// One for each column of bag (table, row). The bound holds for sums in fp32 in any order: with n rows and u = 2^-24,
/// (n + 4) u / (1 - (n + 4) u) times the sum of all terms' magnitudes (n additions and products, rows of int8 one
/// rounding more, a mean two), and the last rounding's unit roundoff of the result, or half the least subnormal.
std::vector<Bounded> reference(const Tables& tables, const Bags& bags, Type output, std::int32_t table,
                               std::int64_t row);

}  // namespace imbrex::embedding
