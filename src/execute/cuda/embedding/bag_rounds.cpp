#include "execute/cuda/embedding/bag_rounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/narrow.hpp"
#include "embedding/cuda/look_up_args.hpp"
#include "problem/embedding.hpp"

namespace imbrex::cuda {
namespace {

std::uint32_t word(std::uint64_t value) { return base::narrow<std::uint32_t>(value, "a number of a lookup"); }

// Stores of the same rows that lie no further apart than a row is long.
struct Place {
  std::vector<RegionEntry> stores;
  std::uint64_t begin = 0, end = 0;  // addresses in the first row

  bool take(const RegionEntry& store) {
    const RegionEntry& a = stores.front();
    const std::uint64_t from = std::min(begin, store.address), to = std::max(end, end_of(store));
    if (a.row != store.row || a.rows != store.rows || a.base != store.base || a.pitch != store.pitch ||
        a.type != store.type || a.copy_stride != store.copy_stride || to - from > a.pitch)
      return false;
    stores.push_back(store);
    begin = from, end = to;
    return true;
  }
  static std::uint64_t end_of(const RegionEntry& store) { return store.address + store.cols * size_of(store.type); }
};

class Bags {
 public:
  Bags(const Plan& plan, int rank, const RankTable& table) : table_(table), own_(plan.problem.tables, rank) {}

  // One block: a strip of one slice for each place that its rows go to.
  std::vector<BagRounds> of_block(std::size_t task) const {
    std::vector<Place> places;
    for (const RegionEntry& store : own_stores(task))
      if (std::none_of(places.begin(), places.end(), [&](Place& place) { return place.take(store); }))
        places.push_back({{store}, store.address, Place::end_of(store)});
    std::vector<BagRounds> all;
    for (const Place& place : places) all.push_back(at_place(task, place));
    return all;
  }

  // The longest launch from `first` on that signals, and how many blocks it has; nothing where not even one can.
  std::optional<std::pair<BagRounds, std::size_t>> together(std::size_t first, std::size_t end) const {
    std::optional<BagRounds> all = alone(first);
    if (!all) return std::nullopt;
    std::size_t next = first + 1;
    for (; next < end; ++next)
      if (const auto one = alone(next); !one || !join(*all, *one)) break;
    return std::pair{*std::move(all), next - first};
  }

 private:
  // The block's stores, without rows that other shares of it store.
  std::vector<RegionEntry> own_stores(std::size_t task) const {
    const TaskEntry& entry = table_.tasks[task];
    const BlockNumbers block = block_of(entry);
    const std::uint64_t rows = block.args[1];
    const std::uint32_t begin = word(rows * block.share / block.shares),
                        end = word(rows * (block.share + 1) / block.shares);
    std::vector<RegionEntry> stores;
    for (RegionEntry r : std::span(table_.regions).subspan(std::size_t{entry.regions} + entry.adds, entry.stores)) {
      const std::uint32_t first = std::max(r.row, begin), last = std::min(r.row + r.rows, end);
      if (first >= last) continue;
      r.address += (first - r.row) * r.pitch;
      r.row = first, r.rows = last - first;
      stores.push_back(r);
    }
    return stores;
  }

  BagRounds at_place(std::size_t task, const Place& place) const {
    const TaskEntry& entry = table_.tasks[task];
    const RegionEntry& any = place.stores.front();
    BagRounds one;
    one.type = any.type, one.pitch = any.pitch, one.copy_stride = any.copy_stride;
    one.slice_rows = any.rows;
    one.strips.push_back(
        {word(task), place.begin, any.base, entry.output, block_of(entry).args[0] + any.row, any.rows});
    for (const RegionEntry& store : place.stores)
      add_columns(one.columns, block_of(entry), store, word((store.address - place.begin) / size_of(store.type)));
    return one;
  }

  // A store's columns, shard by shard, from column `at` of a row on.
  void add_columns(std::vector<BagColumns>& columns, const BlockNumbers& block, const RegionEntry& store,
                   std::uint32_t at) const {
    const std::int64_t before = own_.cols_before(block.args[2]), begin = before + store.col, end = begin + store.cols;
    std::size_t shard = block.args[2], last = shard + block.args[3];
    while (last - shard > 1) {  // the shard that has column `begin`
      const std::size_t middle = (shard + last) / 2;
      (own_.cols_before(middle) <= begin ? shard : last) = middle;
    }
    for (std::int64_t col = begin; col < end; ++shard) {
      const std::int64_t first = own_.cols_before(shard), next = std::min(own_.cols_before(shard + 1), end);
      columns.push_back({word(shard), word(static_cast<std::uint64_t>(col - first)),
                         word(static_cast<std::uint64_t>(next - col)), at});
      at += columns.back().count;
      col = next;
    }
  }

  // A launch of one block that waits for one signal at most, and posts to one at most.
  std::optional<BagRounds> alone(std::size_t task) const {
    const TaskEntry& entry = table_.tasks[task];
    const std::uint32_t waits = std::uint32_t{entry.load_waits} + entry.epilogue_waits;
    if (waits > 1 || entry.post_count > 1) return std::nullopt;
    std::vector<BagRounds> parts = of_block(task);
    if (parts.size() != 1) return std::nullopt;
    BagRounds& one = parts.front();
    BagStrip& strip = one.strips.front();
    if (waits > 0) one.wait = table_.waits[entry.waits], strip.waits = true;
    if (entry.post_count > 0) strip.posts = table_.posts[entry.posts].counter;
    return std::move(one);
  }

  // The slice that follows a strip's last one, or the first of a new strip.
  // NOTE: it may run before blocks that stand before it in the queue, and post after later ones. Data are safe, as in a
  // queue of many workers. And no rank waits for ever: the launch waits only for what its first block waits for, which
  // depends on no block from there on.
  static bool join(BagRounds& all, const BagRounds& one) {
    const BagStrip& slice = one.strips.front();
    if (one.columns != all.columns || one.type != all.type || one.pitch != all.pitch ||
        one.copy_stride != all.copy_stride || slice.rows > all.slice_rows)
      return false;
    const auto same = [](const WaitEntry& a, const WaitEntry& b) { return a.signal == b.signal && a.count == b.count; };
    if (one.wait && !(all.wait && all.strips.front().waits && same(*one.wait, *all.wait))) return false;
    for (BagStrip& strip : all.strips) {
      const std::uint32_t slices = strip.rows / all.slice_rows;
      if (strip.rows % all.slice_rows != 0 || slices == embedding::most_slices || strip.base != slice.base ||
          strip.output != slice.output || strip.waits != slice.waits || strip.posts != slice.posts ||
          strip.first_row + strip.rows != slice.first_row || strip.address + strip.rows * all.pitch != slice.address)
        continue;
      strip.rows += slice.rows;
      all.slices = std::max(all.slices, slices + 1);
      return true;
    }
    if (all.strips.size() == embedding::most_strips) return false;
    all.strips.push_back(slice);
    return true;
  }

  const RankTable& table_;
  problem::OwnShards own_;
};

}  // namespace

std::string refusal_of_bags(const Plan& plan, int, const Block& block) {
  for (const Store& store : block.stores) {
    const Buffer& to = plan.buffers[base::index(store.to.buffer)];
    if (to.type == Type::e4m3) return fmt::format("buffer {}: no sums of bags are stored as e4m3", to.name);
    if ((store.col | store.to.col | store.to.cols | to.cols) % 4 != 0)
      return fmt::format("columns {}+{} of bags to columns from {} of {} on, which has {}: GPUs store four at a time",
                         store.col, store.to.cols, store.to.col, to.name, to.cols);
  }
  return {};
}

std::vector<BlockLaunch> bag_launches(const Plan& plan, int rank, const RankTable& table, std::size_t first,
                                      std::size_t end) {
  const Bags bags(plan, rank, table);
  std::vector<BlockLaunch> launches;
  while (first < end) {
    const auto together = bags.together(first, end);
    launches.push_back({first, together ? together->second : 1, together.has_value()});
    first += launches.back().count;
  }
  return launches;
}

std::vector<BagRounds> bag_rounds(const Plan& plan, int rank, const RankTable& table, const BlockLaunch& launch) {
  const Bags bags(plan, rank, table);
  if (!launch.signals) return bags.of_block(launch.first);
  return {bags.together(launch.first, launch.first + launch.count)->first};
}

}  // namespace imbrex::cuda
