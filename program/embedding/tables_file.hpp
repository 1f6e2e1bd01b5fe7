// tables.json: the tables of an embedding, as `imbrex run embedding_all_to_all` takes them (docs/embedding.md).
#pragma once

#include <string>
#include <string_view>

#include "imbrex/embedding.hpp"

namespace imbrex::program {

/// Tables, shards and the type of the rows; the rest is as EmbeddingShape has it. `title` begins every message. Throws
/// Error(invalid_input) naming the place and the rule.
EmbeddingShape parse_tables(std::string_view text, std::string_view title);

/// The problem of that shape on so many ranks, with its shards, or as place_tables deals them. Throws
/// Error(invalid_input).
Problem problem_of(const EmbeddingShape& shape, int ranks);

}  // namespace imbrex::program
