// What a region holds, as a formula: which space, which rows and columns of it, and, of sums, which terms have been
// added. src/problem/descriptor.hpp says what spaces and terms are. The terms run through all ranks, so a partial
// product of rank r is the sum over r's stretch of K, and a complete one is the sum over all of K, each stretch once.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "imbrex/plan.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::plan {

using problem::Stretch;

/// Element (i, j) of a buffer holds element (i + row, j + col) of the space.
struct Value {
  int space = 0;
  std::int64_t row = 0, col = 0;
  int sum = -1;                               ///< index of the terms added; -1: it is no sum
  std::int64_t tile_rows = 0, tile_cols = 0;  ///< fragment slots: shape of the tile that was stored

  bool operator==(const Value&) const = default;
};

/// Sets of stretches of terms, each set stored once.
class Sums {
 public:
  static constexpr std::size_t most_stretches = 1024;  ///< of a set that is still followed

  int of(Stretch stretch) { return intern({stretch}); }
  /// Any order; -1 for none. They do not overlap.
  int of(std::vector<Stretch> stretches);

  /// Nothing if the two share a term, which would then count twice.
  std::optional<int> add(int x, int y);

  /// The first term that both have.
  std::int64_t first_common(int x, int y) const;

  /// Stretches of the terms from `begin` to before `end`.
  std::vector<Stretch> part(int sum, std::int64_t begin, std::int64_t end) const;
  static std::string text(const std::vector<Stretch>& stretches);

  const std::vector<Stretch>& stretches(int sum) const { return sets_[static_cast<std::size_t>(sum)]; }

 private:
  int intern(std::vector<Stretch> set);

  std::vector<std::vector<Stretch>> sets_;
  std::map<std::vector<std::pair<std::int64_t, std::int64_t>>, int> index_;
  std::map<std::pair<int, int>, std::optional<int>> added_;
};

Value value_of(const problem::Held& held, Sums& sums);

/// How many of the terms messages count, and names of those, of the ones behind, and of all.
struct TermNames {
  std::string_view term, last, axis;
  std::int64_t count = 0;

  explicit TermNames(const Problem& problem);

  /// "the sum over k 0..63", or "the bias" where the term is one behind.
  std::string twice(const Sums& sums, int added, std::int64_t common) const;
  /// How a sum differs from the expected one: "with the sum over k 0..3 instead of 0..7", "without the bias".
  std::string difference(const Sums& sums, int sum, int wanted) const;
};

}  // namespace imbrex::plan
