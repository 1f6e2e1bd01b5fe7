// A rank's tables before a call says where they lie: what kernels are loaded and memory is taken for.
#pragma once

#include <vector>

#include "base/narrow.hpp"
#include "embedding/bags.hpp"
#include "problem/embedding.hpp"

namespace imbrex::cuda {

/// Without rows. Their columns are the output's, or those of the rank's shards side by side.
inline std::vector<embedding::Table> blank_tables(const Problem& problem, int rank, bool in_output) {
  const problem::OwnShards own(problem.tables, rank);
  const TableRows rows = problem.tables.rows;
  std::vector<embedding::Table> blank;
  for (std::size_t i = 0; i < own.count(); ++i) {
    const auto dim = base::narrow<std::int32_t>(own[i].dim, "columns");
    const std::int64_t bytes = dim * embedding::size_of(rows), quantized = rows == TableRows::int8 ? 8 : 0;
    blank.push_back({nullptr, 0, bytes + quantized, quantized > 0 ? bytes : 0, dim,
                     base::narrow<std::int32_t>(in_output ? own[i].first_col : own.cols_before(i), "columns")});
  }
  return blank;
}

}  // namespace imbrex::cuda
