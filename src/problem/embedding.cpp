// embedding_all_to_all: tables, or their columns, lie on their owners; bags are looked up there, and each rank gets its
// part of the batch.
#include "problem/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"
#include "problem/limits.hpp"

namespace imbrex::problem {
namespace {

constexpr std::int64_t least_dim = 4, most_dim = 1024;

void validate_embedding(const Problem& problem) {
  expect_divides(problem, "batch", problem.m);
  IMBREX_EXPECTS(problem.type != Type::e4m3, "type e4m3: the output of {} is bf16, fp16 or fp32", name_of(problem.op));
  Problem plain{problem.op, problem.m, 0, 0, problem.ranks, problem.type};
  plain.tables = problem.tables;
  IMBREX_EXPECTS(problem == plain, "{} has neither bias, scales, further B nor leading dimensions",
                 name_of(problem.op));
  const std::vector<TableShard>& shards = problem.tables.shards;
  IMBREX_EXPECTS(!shards.empty() && shards.size() <= most_shards, "{} shards of tables: there must be 1 to {}",
                 shards.size(), most_shards);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const TableShard& s = shards[i];
    IMBREX_EXPECTS(s.owner >= 0 && s.owner < problem.ranks, "shard {}: owner {}; it must be from 0 to {}", i, s.owner,
                   problem.ranks - 1);
    IMBREX_EXPECTS(s.dim >= least_dim && s.dim <= most_dim && s.dim % least_dim == 0,
                   "shard {}: dim = {}; it must be a multiple of {} from {} to {}", i, s.dim, least_dim, least_dim,
                   most_dim);
    IMBREX_EXPECTS(s.rows >= 1 && s.rows <= most_extent, "shard {}: rows = {}; there must be 1 to {}", i, s.rows,
                   most_extent);
    IMBREX_EXPECTS(std::isfinite(s.pooling) && s.pooling >= 0, "shard {}: pooling = {}; it must be 0 or more", i,
                   s.pooling);
  }
  std::vector<std::size_t> order(shards.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t x, std::size_t y) { return shards[x].first_col < shards[y].first_col; });
  std::int64_t next = 0;
  for (const std::size_t i : order) {
    IMBREX_EXPECTS(shards[i].first_col == next,
                   "shard {}: its columns begin at {} of the output, and those before it end at {}: the columns of all "
                   "shards must lie side by side",
                   i, shards[i].first_col, next);
    next += shards[i].dim;
  }
}

std::vector<OperandInfo> embedding_operands(const Problem& problem) {
  return {{"out", OperandRole::output, problem.type, problem.m / problem.ranks, width_of(problem.tables)}};
}

// A bag's sum is one value: what rows it needs is data.
void embedding_output(const Problem& problem, int rank, std::string_view,
                      const std::function<void(const Wanted&)>& visit) {
  const std::int64_t rows = problem.m / problem.ranks;
  visit({0, 0, rows, width_of(problem.tables), {0, rank * rows, 0, {{0, 1}}}});
}

// The rank that sends most.
double embedding_bytes(const Problem& problem) {
  std::vector<std::int64_t> cols(static_cast<std::size_t>(problem.ranks));
  for (const TableShard& s : problem.tables.shards) cols[static_cast<std::size_t>(s.owner)] += s.dim;
  const auto most = static_cast<double>(*std::max_element(cols.begin(), cols.end()));
  return static_cast<double>(problem.m - problem.m / problem.ranks) * most * static_cast<double>(size_of(problem.type));
}

}  // namespace

std::int64_t width_of(const Tables& tables) {
  std::int64_t width = 0;
  for (const TableShard& s : tables.shards) width += s.dim;
  return width;
}

OwnShards::OwnShards(const Tables& tables, int rank) : first_{0} {
  for (const TableShard& s : tables.shards) {
    if (s.owner != rank) continue;
    shards_.push_back(s);
    first_.push_back(first_.back() + s.dim);
  }
}

std::vector<Run> OwnShards::runs(std::size_t first, std::size_t count) const {
  std::vector<Run> runs;
  for (std::size_t i = first; i < first + count; ++i) {
    const TableShard& s = shards_[i];
    if (!runs.empty() && runs.back().to + runs.back().cols == s.first_col)
      runs.back().cols += s.dim;
    else
      runs.push_back({first_[i] - first_[first], s.first_col, s.dim});
  }
  return runs;
}

std::vector<OwnShards> shards_of_ranks(const Problem& problem) {
  std::vector<OwnShards> ranks;
  for (int rank = 0; rank < problem.ranks; ++rank) ranks.emplace_back(problem.tables, rank);
  return ranks;
}

std::int64_t row_bytes(TableRows rows, std::int64_t dim) {
  switch (rows) {
    case TableRows::fp32: return 4 * dim;
    case TableRows::fp16:
    case TableRows::bf16: return 2 * dim;
    case TableRows::int8: break;
  }
  return dim + 8;
}

OperatorDescriptor embedding_descriptor() {
  OperatorDescriptor op;
  op.name = "embedding_all_to_all";
  op.about = "bags of the batch, in tables spread over the ranks  ->  batch/R x all columns";
  op.sizes = {"batch", "", ""};
  op.splits = {true, false, false};
  op.validate = validate_embedding;
  op.operands = embedding_operands;
  op.wanted = embedding_output;
  op.wire_bytes = embedding_bytes;
  return op;
}

}  // namespace imbrex::problem
