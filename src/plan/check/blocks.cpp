#include "plan/check/blocks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "plan/json/names.hpp"
#include "plan/limits.hpp"

namespace imbrex::plan {
namespace {

// Equal for blocks that differ in their share alone.
std::string key_of(int rank, const Block& block) {
  std::string key = fmt::format("{} {} {} {}", rank, name_of(block.kind), block.shares, fmt::join(block.args, " "));
  const auto add = [&](const Region& r) {
    key += fmt::format(" {} {} {} {} {} {}", r.rank, r.buffer, r.row, r.col, r.rows, r.cols);
  };
  for (const Region& r : block.reads) add(r);
  for (const Store& s : block.stores) {
    add(s.to);
    key += fmt::format(" {} {}", s.row, s.col);
  }
  return key;
}

}  // namespace

std::string broken_rule(const BlockPlace& place) {
  const Block& block = place.block;
  const auto buffer = [&](const Region& r) -> const Buffer& {
    return place.plan.buffers[static_cast<std::size_t>(r.buffer)];
  };
  if (name_of(block.kind) == "?") return "a kind of work that does not exist";
  if (block.shares < 1 || block.shares > most_workers || block.share < 0 || block.share >= block.shares)
    return fmt::format("share {} of {}: shares are 1 to {}, numbered from 0", block.share, block.shares, most_workers);
  for (const Region& r : block.reads)
    if (buffer(r).layout != Layout::row_major)
      return fmt::format("a block reads a buffer of layout {}: it must be row_major", name_of(buffer(r).layout));
  const WorkDescriptor& kind = descriptor_of(block.kind);
  const auto [rows, cols] = kind.extent(place);
  if (rows <= 0 || cols <= 0 || rows > most_extent || cols > most_extent || rows * cols > most_extent)
    return fmt::format("the block is {} x {}: it has 1 to {} elements", rows, cols, most_extent);
  if (const std::string broken = kind.check(place); !broken.empty()) return broken;
  if (block.stores.empty()) return "a block without stores";
  for (const auto& [to, row, col] : block.stores) {
    if (buffer(to).layout != Layout::row_major)
      return fmt::format("a store is to {} {}: blocks go to row_major buffers", name_of(buffer(to).layout),
                         buffer(to).name);
    if (row < 0 || col < 0 || row > rows - to.rows || col > cols - to.cols)
      return fmt::format("a store of {}+{} x {}+{} leaves the block of {} x {}", row, to.rows, col, to.cols, rows,
                         cols);
  }
  return "";
}

std::optional<Finding> find_shares(const Plan& plan, const Graph& graph, Shares& shares) {
  std::map<std::string, std::vector<TaskId>> blocks;
  for (TaskId id = 0; id < graph.nodes().size(); ++id) {
    const TaskNode& node = graph.nodes()[id];
    const auto* block = std::get_if<Block>(&node.task->work);
    if (block == nullptr || block->shares == 1) continue;
    std::vector<TaskId>& parts = blocks[key_of(node.rank, *block)];
    parts.resize(static_cast<std::size_t>(block->shares), no_task);
    TaskId& part = parts[static_cast<std::size_t>(block->share)];
    if (part != no_task) {
      const TaskNode& other = graph.nodes()[part];
      return graph.finding(Fault::coverage, id,
                           fmt::format("is share {} of {}, which {} is too", block->share, block->shares,
                                       task_name(plan, other.rank, other.queue, other.index)));
    }
    part = id;
  }
  for (const auto& [key, parts] : blocks)
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] == no_task)
        return graph.finding(Fault::coverage,
                             *std::find_if(parts.begin(), parts.end(), [](TaskId id) { return id != no_task; }),
                             fmt::format("is one of {} shares, and there is no share {}", parts.size(), i));
      shares[parts[i]] = parts;
    }
  return std::nullopt;
}

}  // namespace imbrex::plan
