// Problems as JSON, both ways.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "plan/json/names.hpp"
#include "plan/json/node.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::plan {
namespace {

// Key of Problem's m, n or k; empty where the operator has none.
std::string key_of(const problem::OperatorDescriptor& op, std::size_t size) {
  std::string key(op.sizes[size]);
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
  return key;
}

std::string sizes_text(const Problem& problem) {
  const problem::OperatorDescriptor& op = problem::descriptor_of(problem.op);
  std::string text;
  for (std::size_t i = 0; i < op.sizes.size(); ++i)
    if (const std::string key = key_of(op, i); !key.empty())
      text += fmt::format("\"{}\": {}, ", key, problem::size_at(problem, i));
  return text;
}

// What belongs to the further B, up to the last number that is not 0.
std::string list_text(std::string_view key, const std::array<std::int64_t, max_products - 1>& list) {
  std::size_t count = list.size();
  while (count > 0 && list[count - 1] == 0) --count;
  if (count == 0) return {};
  return fmt::format(", \"{}\": [{}]", key, fmt::join(list.data(), list.data() + count, ", "));
}

std::string pitches_text(const Problem& problem) {
  std::string text;
  for (const auto& [key, value] : {std::pair("lda", problem.lda), {"ldb", problem.ldb}, {"ldo", problem.ldo}})
    if (value != 0) text += fmt::format(", \"{}\": {}", key, value);
  return text + list_text("more_ldb", problem.more_ldb) + list_text("more_ldo", problem.more_ldo);
}

std::string tables_text(const Tables& tables) {
  if (tables == Tables{}) return {};
  std::string text;
  for (const TableShard& s : tables.shards)
    text +=
        fmt::format("{}[{}, {}, {}, {}, {}]", text.empty() ? "" : ", ", s.owner, s.rows, s.dim, s.first_col, s.pooling);
  return fmt::format(", \"table_rows\": \"{}\", \"shards\": [{}]", name_of(tables.rows), text);
}

std::array<std::int64_t, max_products - 1> list_of(const Node& n, const char* what) {
  std::array<std::int64_t, max_products - 1> list{};
  if (n.size() < 1 || n.size() > list.size())
    n.refuse(fmt::format("a list of 1 to {} numbers is needed: {} of each further B", list.size(), what));
  for (std::size_t i = 0; i < n.size(); ++i) list[i] = n.at(i).integer<std::int64_t>();
  return list;
}

TableShard shard_of(const Node& n) {
  if (n.size() != 5) n.refuse("a list of 5 numbers is needed: owner, rows, dim, first column, pooling");
  return {n.at(0).integer<int>(), n.at(1).integer<std::int64_t>(), n.at(2).integer<std::int64_t>(),
          n.at(3).integer<std::int64_t>(), n.at(4).number()};
}

}  // namespace

std::string to_json(const Problem& p) {
  return fmt::format("{{\"op\": \"{}\", {}\"ranks\": {}, \"type\": \"{}\"{}{}{}{}{}{}{}{}}}", name_of(p.op),
                     sizes_text(p), p.ranks, name_of(p.type), p.bias ? ", \"bias\": true" : "",
                     p.scales == Scales::none ? "" : fmt::format(", \"scales\": \"{}\"", name_of(p.scales)),
                     p.b_layout == Layout::row_major ? "" : fmt::format(", \"b_layout\": \"{}\"", name_of(p.b_layout)),
                     list_text("more_n", p.more_n), p.gathered_a ? ", \"gathered_a\": true" : "", pitches_text(p),
                     p.packed == Extent{} ? "" : fmt::format(", \"packed\": [{}, {}]", p.packed.rows, p.packed.cols),
                     tables_text(p.tables));
}

Problem problem_of(const Node& p) {
  Problem problem;
  problem.op = p["op"].name(parse_operator);
  const problem::OperatorDescriptor& op = problem::descriptor_of(problem.op);
  std::vector<std::string> keys{"op",  "ranks", "type", "bias",     "scales",   "b_layout", "more_n",     "gathered_a",
                                "lda", "ldb",   "ldo",  "more_ldb", "more_ldo", "packed",   "table_rows", "shards"};
  for (const auto& [place, size] : {std::pair(0, &problem.m), {1, &problem.n}, {2, &problem.k}}) {
    const std::string key = key_of(op, static_cast<std::size_t>(place));
    if (key.empty()) continue;
    *size = p[key].integer<std::int64_t>();
    keys.push_back(key);
  }
  p.only(keys);
  problem.ranks = p["ranks"].integer<int>();
  problem.type = p["type"].name(parse_type);
  if (p.has("bias")) problem.bias = p["bias"].boolean();
  if (p.has("scales")) problem.scales = p["scales"].name(parse_scales);
  if (p.has("b_layout")) problem.b_layout = p["b_layout"].name(parse_layout);
  if (p.has("more_n")) problem.more_n = list_of(p["more_n"], "N");
  if (p.has("gathered_a")) problem.gathered_a = p["gathered_a"].boolean();
  if (p.has("lda")) problem.lda = p["lda"].integer<std::int64_t>();
  if (p.has("ldb")) problem.ldb = p["ldb"].integer<std::int64_t>();
  if (p.has("ldo")) problem.ldo = p["ldo"].integer<std::int64_t>();
  if (p.has("more_ldb")) problem.more_ldb = list_of(p["more_ldb"], "the leading dimension");
  if (p.has("more_ldo")) problem.more_ldo = list_of(p["more_ldo"], "the output's leading dimension");
  if (p.has("packed")) {
    const Node packed = p["packed"];
    if (packed.size() != 2) packed.refuse("a list of 2 is needed: rows, cols of a block");
    problem.packed = {packed.at(0).integer<std::int64_t>(), packed.at(1).integer<std::int64_t>()};
  }
  if (p.has("table_rows")) problem.tables.rows = p["table_rows"].name(parse_table_rows);
  if (p.has("shards")) p["shards"].each([&](const Node& n) { problem.tables.shards.push_back(shard_of(n)); });
  return problem;
}

}  // namespace imbrex::plan
