#include "program/embedding/tables_file.hpp"

#include "base/json.hpp"
#include "ops/embedding/embedding_operands.hpp"
#include "plan/json/node.hpp"

namespace imbrex::program {

EmbeddingShape parse_tables(std::string_view text, std::string_view title) {
  const nlohmann::json json = base::parse_json(text, title);
  const plan::Node file(json, title);
  file.only({"rows", "tables", "shards"});
  EmbeddingShape shape;
  if (file.has("rows")) shape.rows = file["rows"].name(parse_table_rows);
  constexpr std::size_t most_tables = 1 << 16;
  file["tables"].each([&](const plan::Node& n) {
    n.only({"rows", "dim", "hotness", "count"});
    EmbeddingTable table{n["rows"].integer<std::int64_t>(), n["dim"].integer<std::int32_t>(), 1};
    if (n.has("hotness")) table.hotness = n["hotness"].number();
    const auto count = n.has("count") ? n["count"].integer<std::int64_t>() : 1;
    if (count < 1 || static_cast<std::uint64_t>(count) > most_tables - shape.tables.size())
      n.refuse(fmt::format("count = {}: from 1, and {} tables in all at most", count, most_tables));
    shape.tables.insert(shape.tables.end(), static_cast<std::size_t>(count), table);
  });
  if (file.has("shards"))
    file["shards"].each([&](const plan::Node& n) {
      n.only({"table", "rank", "begin", "end"});
      shape.shards.push_back({n["table"].integer<std::int32_t>(), n["rank"].integer<std::int32_t>(),
                              n["begin"].integer<std::int32_t>(), n["end"].integer<std::int32_t>()});
    });
  return shape;
}

Problem problem_of(const EmbeddingShape& shape, int ranks) {
  return ops::embedding_problem(shape, ops::embedding_shards(shape, ranks), ranks);
}

}  // namespace imbrex::program
