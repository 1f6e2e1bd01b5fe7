// What gradients do to the tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/bags.hpp"

namespace imbrex::embedding {

/// Each row that bags hold is changed once, by the sum of its gradients. Columns of a table that are a shard have a
/// state of their own, of the mean over these columns.
struct Step {
  Optimizer optimizer;
  float rate, epsilon;
  float* const* states;  ///< row_wise_adagrad: [tables], each [rows], fp32; else not read
};

/// Indices, sorted by table and row, are summed in tiles of so many, and the tiles' sums of a row that several tiles
/// hold in their order: what makes results the same bits on CPU and GPU, and from run to run.
inline constexpr std::int64_t tile_indices = 128;

/// Changes the tables on the CPU. `gradients` is of the lookup's output, in the same places. A row's gradient is the
/// sum of those of its bags, times weight and, of means, times 1 / n, in fp32; the new row is rounded once to the rows'
/// type. Indices that are no rows change nothing: gives their number. All memory is the host's. Throws
/// Error(invalid_input) for rows of int8 and for more than 2^32 - 2 rows. The caller has checked shapes and offsets.
std::int64_t update(const Tables& tables, const Bags& bags, const Output& gradients, const Step& step);

/// Throws Error(invalid_input) naming value and rule.
void check_step(const Tables& tables, const Step& step);

/// A table in float64, and how far a right one may be from it.
struct BoundedTable {
  std::vector<double> values, bounds;        // [rows, dim]
  std::vector<double> states, state_bounds;  // [rows]
};

/// As the table stands, which is exact; states of zero without Adagrad.
BoundedTable bounded_table(const Tables& tables, const Step& step, std::int32_t table);

/// An optimizer step of one table in float64, with what the bounds grow by. For u = 2^-24 and n indices of a row, its
/// gradient is off by (n + 3) u / (1 - (n + 3) u) times the sum of the terms' magnitudes at most: one addition a term
/// in any order, and three products. A mean of squares is off by what that does to it and by dim + 2 roundings; the
/// factor of Adagrad by what its state's bound lets it be and by three roundings; the row by both, a rounding in fp32
/// and one to its type.
void reference_step(const Tables& tables, const Bags& bags, const Output& gradients, const Step& step,
                    std::int32_t table, BoundedTable& bounded);

}  // namespace imbrex::embedding
