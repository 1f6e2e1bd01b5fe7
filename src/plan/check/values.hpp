// What a region holds, as a formula: which operand or product, which rows and columns of it, and for products which
// stretches of K have been summed. The problem's K axis runs through all ranks, so a partial product of rank r is the
// sum over r's stretch, and a complete one is the sum over all of K, each stretch once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::plan {

struct Stretch {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Stretch&) const = default;
};

/// Element (i, j) of a buffer holds element (i + row, j + col) of `what`: A is (row, k), B is (k, col), products
/// (row, col), the bias (0, col), where the columns of several products are counted side by side, all ranks' of the
/// first one's, then of the next; scales of A (row, first k of the stretch that they hold for), where a rank has one
/// for all its rows with the first of these, and B's (first k of the stretch, col).
struct Value {
  enum class What : std::uint8_t { a, b, product, bias, a_scale, b_scale } what = What::a;
  std::int64_t row = 0, col = 0;
  int sum = -1;                               ///< products: index of the stretches summed
  std::int64_t tile_rows = 0, tile_cols = 0;  ///< fragment slots: shape of the tile that was stored
  int bias = -1;                              ///< products: rank whose bias has been added; -1: none

  bool operator==(const Value&) const = default;
};

/// Sets of stretches of K, each set stored once.
class Sums {
 public:
  static constexpr std::size_t most_stretches = 1024;  ///< of a set that is still followed

  int of(Stretch stretch) { return intern({stretch}); }

  /// Nothing if the two share a part of K, which would then count twice.
  std::optional<int> add(int x, int y);

  std::string text(int sum) const;
  const std::vector<Stretch>& stretches(int sum) const { return sets_[static_cast<std::size_t>(sum)]; }

 private:
  int intern(std::vector<Stretch> set);

  std::vector<std::vector<Stretch>> sets_;
  std::map<std::vector<std::pair<std::int64_t, std::int64_t>>, int> index_;
  std::map<std::pair<int, int>, std::optional<int>> added_;
};

/// What the caller's input holds on `rank`; buffer is one of A, the B, the biases and the scales.
Value input_value(const Problem& problem, int rank, int buffer);

/// What rows row.. of the output of that product must hold on `rank` (for an all-to-all: the value of the block that
/// `row` is in, and where that block ends), and the stretch of K that must have been summed.
struct Wanted {
  Value value;  ///< sum is not set
  Stretch k;
  std::int64_t rows_end = 0;  ///< first row of the output that wants something else

  /// Whether the bias of rank `from` (-1: none) is the one to be added. Where ranks add up, all have the same.
  bool wants_bias(const Problem& problem, int from) const;
  int bias_of = -1;  ///< rank whose own bias it must be; -1: any
};
Wanted wanted_output(const Problem& problem, int rank, std::int64_t row, int product = 0);

}  // namespace imbrex::plan
