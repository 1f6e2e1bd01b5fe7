// What a table may be.
#pragma once

#include <cstddef>

#include "imbrex/tables.hpp"

namespace imbrex::embedding {

/// Throws Error(invalid_input) naming the table's number, value and rule: rows are 1 to most_rows, dim is a multiple of
/// 4 from least_dim to most_dim, hotness is 0 to most_rows.
void validate(const EmbeddingTable& table, std::size_t number);

}  // namespace imbrex::embedding
