// Row operations on packed matrices in host memory: the reference for GPUs.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/convert.hpp"
#include "collectives/put_back.hpp"
#include "collectives/rms_norm.hpp"

namespace imbrex::collectives {
namespace {

std::size_t size(std::int64_t i) { return static_cast<std::size_t>(i); }

class Rows {
 public:
  explicit Rows(const RowWork& work) : w_(work), bytes_(size_of(work.type)), x_(size(work.layout.cols)) {
    if (w_.weight != nullptr) read(w_.weight, 0, weight_);
    if (w_.bias != nullptr) read(w_.bias, 0, bias_);
  }

  void run() {
    for (std::int64_t row = 0; row < w_.layout.rows; ++row) {
      for_each_piece(row, [&](const std::byte* piece, std::int64_t col, std::int64_t count) {
        if (w_.operation == RowOperation::copy)
          std::copy_n(piece, size(count) * bytes_, at(w_.out, row * w_.layout.cols + col));
        else
          base::to_float(w_.type, piece, x_.data() + col, count);
      });
      if (w_.operation == RowOperation::rms_norm) normalise(row);
      if (w_.operation == RowOperation::silu_multiply || w_.operation == RowOperation::gelu) activate(row);
    }
  }

 private:
  // Stretches of a row that lie together.
  template <typename Visit>
  void for_each_piece(std::int64_t row, Visit&& visit) const {
    const PackedLayout& l = w_.layout;
    const auto* in = static_cast<const std::byte*>(w_.in);
    if (l.first_rows == nullptr) return visit(in + size(row * l.cols) * bytes_, std::int64_t{0}, l.cols);
    const std::int64_t across = l.cols / l.block_cols;
    for (std::int64_t j = 0; j < across; ++j) {
      const std::int64_t packed = l.first_rows[row / l.block_rows * across + j] + row % l.block_rows;
      visit(in + size(packed * l.block_cols) * bytes_, j * l.block_cols, l.block_cols);
    }
  }

  std::byte* at(void* matrix, std::int64_t element) const {
    return static_cast<std::byte*>(matrix) + size(element) * bytes_;
  }

  void read(const void* matrix, std::int64_t first, std::vector<float>& to) const {
    to.resize(x_.size());
    base::to_float(w_.type, static_cast<const std::byte*>(matrix) + size(first) * bytes_, to.data(), w_.layout.cols);
  }

  void normalise(std::int64_t row) {
    const std::int64_t cols = w_.layout.cols, first = row * cols;
    if (w_.residual != nullptr) {
      read(w_.residual, first, other_);
      for (std::size_t i = 0; i < x_.size(); ++i) x_[i] += other_[i];
      base::from_float(w_.type, x_.data(), at(w_.residual_out, first), cols);
      read(w_.residual_out, first, x_);
    }
    const float scale = row_scale(squares_of(x_.data(), cols, w_.type), static_cast<float>(cols), w_.eps);
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = normalised(x_[i], scale, weight_[i]);
    base::from_float(w_.type, x_.data(), at(w_.out, first), cols);
  }

  void activate(std::int64_t row) {
    for (std::size_t i = 0; i < bias_.size(); ++i) x_[i] += bias_[i];
    const bool halves = w_.operation == RowOperation::silu_multiply;
    const std::int64_t wide = halves ? w_.layout.cols / 2 : w_.layout.cols;
    for (std::size_t i = 0; i < size(wide); ++i)
      x_[i] = halves ? x_[i] / (1.0f + std::exp(-x_[i])) * x_[i + size(wide)]
                     : 0.5f * x_[i] * (1.0f + std::erf(x_[i] * 0.70710678f));
    base::from_float(w_.type, x_.data(), at(w_.out, row * wide), wide);
  }

  const RowWork& w_;
  std::size_t bytes_;
  std::vector<float> x_, other_, weight_, bias_;
};

}  // namespace

void put_back_on_cpu(const RowWork& work) { Rows(work).run(); }

}  // namespace imbrex::collectives
