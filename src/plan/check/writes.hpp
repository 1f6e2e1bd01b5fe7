// All writes of an epoch to one buffer of one rank, found by rectangle.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "imbrex/plan.hpp"
#include "plan/check/graph.hpp"
#include "plan/check/values.hpp"

namespace imbrex::plan {

struct Write {
  Region region;
  TaskId task = 0;
  Value value;  // set when the task is evaluated
};

inline bool overlap(const Region& x, const Region& y) {
  return x.row < y.row + y.rows && y.row < x.row + x.rows && x.col < y.col + y.cols && y.col < x.col + x.cols;
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
