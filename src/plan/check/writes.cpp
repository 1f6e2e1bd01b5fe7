#include "plan/check/writes.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "base/narrow.hpp"

namespace imbrex::plan {

std::optional<std::pair<Write, Write>> WriteIndex::build(const Buffer& buffer) {
  if (writes_.empty()) return std::nullopt;
  cell_rows_ = buffer.rows;
  cell_cols_ = buffer.cols;
  for (const Write& write : writes_) {
    cell_rows_ = std::min(cell_rows_, write.region.rows);
    cell_cols_ = std::min(cell_cols_, write.region.cols);
  }
  const std::int64_t most = 4 * std::ssize(writes_) + 16;
  while (base::ceil_div(buffer.rows, cell_rows_) > most / base::ceil_div(buffer.cols, cell_cols_)) {
    if (base::ceil_div(buffer.rows, cell_rows_) >= base::ceil_div(buffer.cols, cell_cols_))
      cell_rows_ *= 2;
    else
      cell_cols_ *= 2;
  }
  grid_cols_ = base::ceil_div(buffer.cols, cell_cols_);
  cells_.resize(static_cast<std::size_t>(base::ceil_div(buffer.rows, cell_rows_) * grid_cols_));
  stamps_.resize(writes_.size());
  for (std::size_t w = 0; w < writes_.size(); ++w) {
    const Region& r = writes_[w].region;
    // Writes that do not overlap fill few cells each, in the mean. Those that do could fill all of them.
    const Write* earlier = nullptr;
    for_each_overlap(r, [&](const Write& other) { earlier = earlier != nullptr ? earlier : &other; });
    if (earlier != nullptr) return std::pair(writes_[w], *earlier);
    for (std::int64_t i = r.row / cell_rows_; i <= (r.row + r.rows - 1) / cell_rows_; ++i)
      for (std::int64_t j = r.col / cell_cols_; j <= (r.col + r.cols - 1) / cell_cols_; ++j)
        cells_[static_cast<std::size_t>(i * grid_cols_ + j)].push_back(base::narrow<std::uint32_t>(w, "writes"));
  }
  return std::nullopt;
}

}  // namespace imbrex::plan
