#include "apps/sparse/schedule.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <numeric>
#include <utility>

#include "apps/common/check.hpp"

namespace imbrex::apps::sparse {
namespace {

constexpr std::size_t most_pes = 64;
constexpr std::uint32_t warp = 32;

// Before it is laid out.
struct Draft {
  std::uint32_t row, slot;  ///< own: of its first slot
  std::uint32_t level;
  std::uint8_t pe;
  std::uint8_t order;  ///< within the level: parts of others' rows first, as PEs wait for them; long ones first
};

// Lanes of a row by its terms: each lane has four under way at once.
std::uint32_t log_lanes_of(std::int64_t terms) {
  const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>((terms + 3) / 4, 1, warp)));
  return static_cast<std::uint32_t>(std::countr_zero(lanes));
}

class Maker {
 public:
  Maker(const Triangular& system, const Levels& levels, const Shares& shares, int pe)
      : system_(system), levels_(levels), owner_(shares.owner), me_(static_cast<std::uint8_t>(pe)) {}

  Schedule make() {
    survey();
    order();
    lay_out();
    return std::move(result_);
  }

 private:
  std::int64_t begin(std::uint32_t row) const { return system_.begin[row]; }
  std::int64_t end(std::uint32_t row) const { return system_.begin[row + 1]; }

  // Who sends what to whom; the same on every PE, so that slots need not be agreed on.
  void survey() {
    std::array<std::uint64_t, most_pes> slots{}, rows{};
    meets_.assign(std::size_t{levels_.count} + 1, false);
    for (std::uint32_t row = 0; row < system_.rows; ++row) {
      const std::uint8_t home = owner_[row];
      std::uint64_t givers = 0;
      std::uint32_t part_level = 0;
      std::int64_t mine = 0;
      for (std::int64_t e = begin(row); e < end(row); ++e) {
        const std::uint32_t column = system_.column[index(e)];
        const std::uint8_t giver = owner_[column];
        givers |= std::uint64_t{1} << giver;
        if (giver == me_) ++mine, part_level = std::max(part_level, levels_.of[column] + 1);
      }
      givers &= ~(std::uint64_t{1} << home);
      const auto others = static_cast<std::uint32_t>(std::popcount(givers));
      if (home == me_) {
        const auto order = static_cast<std::uint8_t>(8 + 5 - log_lanes_of(mine + others));
        drafts_.push_back({row, static_cast<std::uint32_t>(slots[home]), levels_.of[row], me_, order});
        result_.rows.push_back(row);
      } else if ((givers >> me_ & 1) != 0) {
        const std::uint64_t before = givers & ((std::uint64_t{1} << me_) - 1);
        const auto slot = static_cast<std::uint32_t>(slots[home] + static_cast<std::uint64_t>(std::popcount(before)));
        drafts_.push_back({row, slot, part_level, home, static_cast<std::uint8_t>(5 - log_lanes_of(mine))});
      }
      slots[home] += others;
      ++rows[home];
      result_.messages += others;
      if (others != 0) ++result_.cut_rows, meets_[levels_.of[row]] = true;
    }
    const std::uint64_t most = *std::max_element(slots.begin(), slots.end());
    IMBREX_EXPECTS(most <= from_slot, "a PE gets {} parts of rows from others: at most {}", most, from_slot);
    result_.most_slots = static_cast<std::uint32_t>(most);
    result_.most_rows = static_cast<std::uint32_t>(*std::max_element(rows.begin(), rows.end()));
  }

  // By level, then as said; rows in their order. So a row follows the parts that it waits for, on any PE.
  void order() {
    std::vector<std::uint32_t> place(std::size_t{levels_.count} + 2);
    for (const Draft& draft : drafts_) ++place[draft.level + 1];
    std::partial_sum(place.begin(), place.end(), place.begin());
    auto next = place;
    std::vector<Draft> sorted(drafts_.size());
    for (const Draft& draft : drafts_) sorted[next[draft.level]++] = draft;
    for (std::uint32_t level = 0; level < levels_.count; ++level)
      if (place[level + 1] - place[level] > 1)
        std::stable_sort(sorted.begin() + place[level], sorted.begin() + place[level + 1],
                         [](const Draft& a, const Draft& b) { return a.order < b.order; });
    drafts_ = std::move(sorted);
  }

  void lay_out() {
    place_.resize(index(system_.rows));
    std::vector<std::uint32_t> number(index(system_.rows));
    for (std::uint32_t i = 0; i < result_.rows.size(); ++i) number[result_.rows[i]] = i;
    result_.tasks.reserve(drafts_.size() + 1);
    result_.steps.resize(std::size_t{levels_.count});
    std::size_t first = 0;
    std::uint32_t level = 0;  // whose own rows belong to the step under way
    while (first < drafts_.size()) {
      std::size_t last = first + 1;
      while (last < drafts_.size() && drafts_[last].level == drafts_[first].level &&
             drafts_[last].order == drafts_[first].order)
        ++last;
      const bool own = drafts_[first].order >= 8;
      // Parts of a level follow the own rows of the one before in one kernel.
      const std::uint32_t step = own ? drafts_[first].level : drafts_[first].level - 1;
      for (; level < step; ++level) close(level);
      for (std::size_t i = first; i < last; ++i) add_task(drafts_[i], number, own);
      add_chunks(first, last, own);
      first = last;
    }
    for (; level < levels_.count; ++level) close(level);
    std::uint32_t from = 0;
    for (std::uint32_t number_of = 0; number_of < levels_.count; ++number_of) {
      Step& step = result_.steps[number_of];
      step.meet = meets_[number_of + 1];
      result_.most_chunks = std::max(result_.most_chunks, step.end - std::exchange(from, step.end));
    }
    result_.tasks.push_back({terms(), 0, 0});
  }

  void close(std::uint32_t step) { result_.steps[step].end = narrow<std::uint32_t>(result_.chunks.size(), "chunks"); }

  std::uint32_t terms() const { return narrow<std::uint32_t>(result_.source.size(), "terms of a PE"); }

  void add_task(const Draft& draft, const std::vector<std::uint32_t>& number, bool own) {
    result_.tasks.push_back({terms(), own ? number[draft.row] : draft.slot, draft.pe});
    std::uint64_t givers = 0;
    for (std::int64_t e = begin(draft.row); e < end(draft.row); ++e) {
      const std::uint32_t column = system_.column[index(e)];
      givers |= std::uint64_t{1} << owner_[column];
      if (owner_[column] != me_) continue;
      result_.source.push_back(place_[column]);
      result_.value.push_back(system_.value[index(e)]);
    }
    if (!own) return;
    const int others = std::popcount(givers & ~(std::uint64_t{1} << me_));
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(others); ++i) {
      result_.source.push_back(from_slot | (draft.slot + i));
      result_.value.push_back(1);
    }
    place_[draft.row] = static_cast<std::uint32_t>(result_.diagonal.size());
    result_.diagonal.push_back(system_.diagonal[draft.row]);
  }

  // Tasks [first, last) are as long as each other.
  void add_chunks(std::size_t first, std::size_t last, bool own) {
    constexpr std::uint64_t busy = std::uint64_t{4096} * warp;  // lanes, beyond which more of them bring nothing
    std::uint32_t log_lanes = 5u - drafts_[first].order % 8u;
    std::int64_t longest = 0;
    for (std::size_t i = first; i < last; ++i) {
      const std::uint32_t end = i + 1 < result_.tasks.size() ? result_.tasks[i + 1].begin : terms();
      longest = std::max(longest, std::int64_t{end} - result_.tasks[i].begin);
    }
    while (log_lanes < 5 && (std::int64_t{1} << log_lanes) < longest && (last - first) << (log_lanes + 1) <= busy)
      ++log_lanes;
    const std::uint32_t most = warp >> log_lanes;
    const std::size_t solved = result_.diagonal.size() - (own ? last - first : 0);
    for (std::size_t i = first; i < last; i += most)
      result_.chunks.push_back({static_cast<std::uint32_t>(i),
                                static_cast<std::uint32_t>(own ? solved + (i - first) : 0),
                                static_cast<std::uint8_t>(std::min<std::size_t>(most, last - i)),
                                static_cast<std::uint8_t>(log_lanes), static_cast<std::uint8_t>(own)});
  }

  const Triangular& system_;
  const Levels& levels_;
  const std::vector<std::uint8_t>& owner_;
  std::uint8_t me_;
  Schedule result_;
  std::vector<Draft> drafts_;
  std::vector<bool> meets_;           ///< by level: rows of it take from slots
  std::vector<std::uint32_t> place_;  ///< of own rows' results
};

}  // namespace

Sharing parse_sharing(std::string_view name) {
  if (name == "contiguous") return Sharing::contiguous;
  if (name == "cyclic") return Sharing::cyclic;
  throw Error(ErrorCode::invalid_input, fmt::format("'{}': it must be contiguous or cyclic", name));
}

std::string_view name_of(Sharing sharing) { return sharing == Sharing::cyclic ? "cyclic" : "contiguous"; }

Levels levels_of(const Triangular& system) {
  Levels levels;
  levels.of.resize(index(system.rows));
  for (std::size_t row = 0; row < levels.of.size(); ++row) {
    std::uint32_t level = 0;
    for (std::int64_t e = system.begin[row]; e < system.begin[row + 1]; ++e)
      level = std::max(level, levels.of[system.column[index(e)]] + 1);
    levels.of[row] = level;
    levels.count = std::max(levels.count, level + 1);
  }
  return levels;
}

Shares share(const Triangular& system, const Levels& levels, int pes, std::optional<Sharing> sharing,
             std::int64_t block) {
  constexpr std::int64_t many = 16384;  // rows of a level and PE: as many as the lanes of a GPU that wait at once
  Shares shares{
      sharing.value_or(system.rows / levels.count >= many * pes ? Sharing::cyclic : Sharing::contiguous), 0, {}};
  shares.owner.resize(index(system.rows));
  if (shares.sharing == Sharing::cyclic) {
    shares.block = block > 0 ? block : std::max<std::int64_t>(system.rows / (std::int64_t{64} * pes), 1);
    for (std::int64_t row = 0; row < system.rows; ++row)
      shares.owner[index(row)] = static_cast<std::uint8_t>(row / shares.block % pes);
    return shares;
  }
  const std::int64_t all = system.entries() + system.rows;
  for (std::int64_t row = 0; row < system.rows; ++row) {
    const std::int64_t before = system.begin[index(row)] + row;
    shares.owner[index(row)] = static_cast<std::uint8_t>(static_cast<double>(before) / static_cast<double>(all) * pes);
  }
  return shares;
}

Schedule schedule_of(const Triangular& system, const Levels& levels, const Shares& shares, int pe) {
  return Maker(system, levels, shares, pe).make();
}

}  // namespace imbrex::apps::sparse
