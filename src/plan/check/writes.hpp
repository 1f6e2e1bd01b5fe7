// All writes of an epoch to one buffer of one rank, found by rectangle.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "imbrex/plan.hpp"
#include "plan/check/graph.hpp"
#include "plan/check/values.hpp"

namespace imbrex::plan {

/// A rectangle of a buffer, and what it holds.
struct Piece {
  Region region;
  Value value;
};

struct Write {
  Region region;
  TaskId task = 0;
  Value value{};                 // set when the task is evaluated
  std::vector<Piece> pieces{};   // in place of the value, where parts of the region hold different ones, by row; what
                                 // none of them covers was not written
  std::int64_t tallest = 0;      // rows of a piece, at most
  std::vector<TaskId> beside{};  // the other shares of the block: it is complete once they have ended, too
};

inline bool overlap(const Region& x, const Region& y) {
  return x.row < y.row + y.rows && y.row < x.row + x.rows && x.col < y.col + y.cols && y.col < x.col + x.cols;
}

inline Region intersection(const Region& x, const Region& y) {
  Region both = x;
  both.row = std::max(x.row, y.row);
  both.col = std::max(x.col, y.col);
  both.rows = std::min(x.row + x.rows, y.row + y.rows) - both.row;
  both.cols = std::min(x.col + x.cols, y.col + y.cols) - both.col;
  return both;
}

/// Calls f(region, value) for what a write has left, piece by piece.
template <typename F>
void for_each_piece(const Write& write, F&& f) {
  if (write.pieces.empty()) return f(write.region, write.value);
  for (const Piece& piece : write.pieces) f(piece.region, piece.value);
}

/// Calls it for what overlaps `region`, cut to it.
template <typename F>
void for_each_piece(const Write& write, const Region& region, F&& f) {
  if (write.pieces.empty()) return f(intersection(write.region, region), write.value);
  const auto above = [](const Piece& piece, std::int64_t row) { return piece.region.row < row; };
  const std::int64_t first = region.row - write.tallest + 1;
  for (auto piece = std::lower_bound(write.pieces.begin(), write.pieces.end(), first, above);
       piece != write.pieces.end() && piece->region.row < region.row + region.rows; ++piece)
    if (overlap(piece->region, region)) f(intersection(piece->region, region), piece->value);
}

/// A uniform grid, with cells about as large as the smallest writes and about as many as there are writes.
class WriteIndex {
 public:
  void add(const Write& write) { writes_.push_back(write); }
  std::vector<Write>& writes() { return writes_; }

  /// Call once, after all writes are added. Stops at one that overlaps another, and returns both, the later one first:
  /// the index is of no use then.
  std::optional<std::pair<Write, Write>> build(const Buffer& buffer);

  /// Calls f(write) for every write that overlaps `region`, once each.
  template <typename F>
  void for_each_overlap(const Region& region, F&& f) {
    if (cells_.empty() || region.empty()) return;
    ++stamp_;
    const std::int64_t row_end = (region.row + region.rows - 1) / cell_rows_,
                       col_end = (region.col + region.cols - 1) / cell_cols_;
    for (std::int64_t i = region.row / cell_rows_; i <= row_end; ++i)
      for (std::int64_t j = region.col / cell_cols_; j <= col_end; ++j)
        for (std::uint32_t w : cells_[static_cast<std::size_t>(i * grid_cols_ + j)]) {
          if (stamps_[w] == stamp_) continue;
          stamps_[w] = stamp_;
          if (overlap(writes_[w].region, region)) f(writes_[w]);
        }
  }

 private:
  std::vector<Write> writes_;
  std::vector<std::vector<std::uint32_t>> cells_;
  std::vector<std::uint32_t> stamps_;
  std::uint32_t stamp_ = 0;
  std::int64_t cell_rows_ = 1, cell_cols_ = 1, grid_cols_ = 1;
};

}  // namespace imbrex::plan
