#include "plan/check/values.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/narrow.hpp"

namespace imbrex::plan {
namespace {

constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();

// In order, those that meet joined; nothing if two overlap.
std::optional<std::vector<Stretch>> joined(std::vector<Stretch> all) {
  std::sort(all.begin(), all.end(), [](const Stretch& p, const Stretch& q) { return p.begin < q.begin; });
  std::vector<Stretch> merged;
  for (const Stretch& s : all) {
    if (merged.empty() || merged.back().end < s.begin)
      merged.push_back(s);
    else if (merged.back().end == s.begin)
      merged.back().end = s.end;
    else
      return std::nullopt;
  }
  return merged;
}

}  // namespace

int Sums::intern(std::vector<Stretch> set) {
  std::vector<std::pair<std::int64_t, std::int64_t>> key;
  for (const Stretch& s : set) key.emplace_back(s.begin, s.end);
  const auto [place, fresh] = index_.insert({std::move(key), base::narrow<int>(sets_.size(), "sums")});
  if (fresh) sets_.push_back(std::move(set));
  return place->second;
}

int Sums::of(std::vector<Stretch> stretches) {
  if (stretches.empty()) return -1;
  return intern(joined(std::move(stretches)).value());
}

std::optional<int> Sums::add(int x, int y) {
  const auto known = added_.find({x, y});
  if (known != added_.end()) return known->second;
  std::vector<Stretch> all = stretches(x);
  all.insert(all.end(), stretches(y).begin(), stretches(y).end());
  std::optional<int> sum;
  if (auto both = joined(std::move(all))) sum = intern(*std::move(both));
  added_[{x, y}] = sum;
  return sum;
}

std::int64_t Sums::first_common(int x, int y) const {
  std::int64_t first = endless;
  for (const Stretch& s : stretches(x))
    for (const Stretch& t : stretches(y))
      if (s.begin < t.end && t.begin < s.end) first = std::min(first, std::max(s.begin, t.begin));
  return first;
}

std::vector<Stretch> Sums::part(int sum, std::int64_t begin, std::int64_t end) const {
  std::vector<Stretch> part;
  if (sum < 0) return part;
  for (const Stretch& s : stretches(sum))
    if (s.begin < end && begin < s.end) part.push_back({std::max(s.begin, begin), std::min(s.end, end)});
  return part;
}

std::string Sums::text(const std::vector<Stretch>& stretches) {
  std::string text;
  for (const Stretch& s : stretches) text += fmt::format("{}{}..{}", text.empty() ? "" : ", ", s.begin, s.end - 1);
  return text.empty() ? "nothing" : text;
}

Value value_of(const problem::Held& held, Sums& sums) { return {held.space, held.row, held.col, sums.of(held.terms)}; }

TermNames::TermNames(const Problem& problem) : count(endless) {
  const problem::OperatorDescriptor& op = problem::descriptor_of(problem.op);
  term = op.term;
  last = op.last_term;
  axis = op.multiplies ? "K" : "terms";
  if (op.count_terms != nullptr) count = op.count_terms(problem);
}

std::string TermNames::twice(const Sums& sums, int added, std::int64_t common) const {
  return common < count ? fmt::format("the sum over {} {}", term, Sums::text(sums.part(added, 0, count)))
                        : fmt::format("the {}", last);
}

std::string TermNames::difference(const Sums& sums, int sum, int wanted) const {
  const std::vector<Stretch> own = sums.part(sum, 0, count), all = sums.part(wanted, 0, count);
  if (own != all) return fmt::format("with the sum over {} {} instead of {}", term, Sums::text(own), Sums::text(all));
  return sums.part(sum, count, endless).empty() ? fmt::format("without the {}", last)
                                                : fmt::format("with another rank's {}", last);
}

}  // namespace imbrex::plan
