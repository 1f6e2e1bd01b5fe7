#include "plan/bags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/narrow.hpp"
#include "embedding/lookup.hpp"
#include "problem/embedding.hpp"

namespace imbrex::plan {
namespace {

BagsPart part_of(const Block& block) { return {block.args[0], block.args[1], block.args[2], block.args[3]}; }

bool is_within(std::int64_t first, std::int64_t count, std::int64_t all) {
  return first >= 0 && count >= 1 && first <= all && count <= all - first;
}

// The rank's shards: there are up to 2^16, and as many blocks, so they are made once for all where somebody does that.
class Own {
 public:
  explicit Own(const BlockPlace& place) {
    if (place.shards == nullptr)
      own_ = &made_.emplace(place.plan.problem.tables, place.rank);
    else
      own_ = &place.shards->at(static_cast<std::size_t>(place.rank));
  }
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;

  const problem::OwnShards& operator*() const { return *own_; }

 private:
  std::optional<problem::OwnShards> made_;
  const problem::OwnShards* own_ = nullptr;
};

// Nothing where the block is of another operator, or leaves the batch or the rank's shards.
Extent extent_of(const BlockPlace& place) {
  const Problem& problem = place.plan.problem;
  if (problem.op != embedding_all_to_all) return {};
  const BagsPart part = part_of(place.block);
  const Own found(place);
  const problem::OwnShards& own = *found;
  if (!is_within(part.first, part.count, problem.m) ||
      !is_within(part.first_shard, part.shards, static_cast<std::int64_t>(own.count())))
    return {};
  const auto first = static_cast<std::size_t>(part.first_shard), end = first + static_cast<std::size_t>(part.shards);
  return {part.count, own.cols_before(end) - own.cols_before(first)};
}

std::string check_bags(const BlockPlace& place) {
  return place.block.reads.empty() ? "" : "bags read tables, which are in no buffer";
}

std::string value_of_bags(const BlockPlace& place, std::span<const ReadPart>,
                          const std::function<void(const BlockPart&)>& visit) {
  const BagsPart part = part_of(place.block);
  const Own found(place);
  for (const problem::Run& run :
       (*found).runs(static_cast<std::size_t>(part.first_shard), static_cast<std::size_t>(part.shards)))
    visit({0, run.from, part.count, run.cols, {0, part.first, run.to, {{0, 1}}}});
  return "";
}

// Each row is added once, and has an index of 4 bytes; each bag has an offset.
WorkCost cost_of_bags(const BlockPlace& place) {
  const BagsPart part = part_of(place.block);
  const Tables& tables = place.plan.problem.tables;
  const Own found(place);
  const problem::OwnShards& own = *found;
  WorkCost cost;
  double bytes = 0;
  for (std::int64_t i = part.first_shard; i < part.first_shard + part.shards; ++i) {
    const TableShard& shard = own[static_cast<std::size_t>(i)];
    const double rows = static_cast<double>(part.count) * shard.pooling;
    cost.random_rows += rows;
    cost.flops += rows * static_cast<double>(shard.dim);
    bytes += rows * static_cast<double>(problem::row_bytes(tables.rows, shard.dim));
  }
  if (cost.random_rows > 0) cost.row_bytes = bytes / cost.random_rows;
  cost.bytes = 4 * (cost.random_rows + static_cast<double>(part.count * part.shards));
  return cost;
}

BlockRows run_bags(const BlockPlace& place, const WorkMemory& memory, float* result) {
  const Block& block = place.block;
  const BagsPart part = part_of(block);
  const auto& given = *static_cast<const RankBags*>(memory.given());
  const std::int64_t cols = extent_of(place).cols;
  const BlockRows rows{part.count * block.share / block.shares, part.count * (block.share + 1) / block.shares};
  std::int64_t col = 0;
  for (std::int64_t i = part.first_shard; i < part.first_shard + part.shards; ++i) {
    const auto t = base::narrow<std::int32_t>(i, "shards");
    for (std::int64_t row = rows.begin; row < rows.end; ++row)
      embedding::pool(given.tables, given.bags, t, part.first + row, result + row * cols + col);
    col += given.tables.tables[t].dim;
  }
  return rows;
}

std::string label_of(const Block& block) {
  const BagsPart part = part_of(block);
  return fmt::format("bags {}+{} of {} tables", part.first, part.count, part.shards);
}

}  // namespace

WorkDescriptor bags_descriptor() {
  WorkDescriptor kind;
  kind.name = "bags";
  kind.extent = extent_of;
  kind.check = check_bags;
  kind.value = value_of_bags;
  kind.cost = cost_of_bags;
  kind.run = run_bags;
  kind.label = label_of;
  return kind;
}

}  // namespace imbrex::plan
