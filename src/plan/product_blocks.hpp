// A product cut into blocks, for those who compute it block by block.
#pragma once

#include <algorithm>

#include "base/ceil_div.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::plan {

class ProductBlocks {
 public:
  /// `block` has no side of 0. The product outlives it.
  ProductBlocks(const Product& product, const Extent& block, Scales scales)
      : product_(product),
        block_(block),
        scales_(scales),
        rows_(base::ceil_div(product.a.rows, block.rows)),
        cols_(base::ceil_div(product.b.cols, block.cols)) {}

  /// Over the whole batch.
  std::int64_t count() const { return rows_ * cols_ * product_.batch; }

  /// Product by product; each in swizzle groups, columns outer, rows inner, as libraries take their blocks, too.
  Tile at(std::int64_t i) const {
    const std::int64_t one = rows_ * cols_, in_batch = i / one, rest = i % one;
    const std::int64_t super = rest / (super_row * cols_), place = rest % (super_row * cols_),
                       tall = std::min(super_row, rows_ - super * super_row);
    const std::int64_t row = (super * super_row + place % tall) * block_.rows, col = place / tall * block_.cols,
                       rows = std::min(block_.rows, product_.a.rows - row),
                       cols = std::min(block_.cols, product_.b.cols - col);
    Tile tile{product_.a, product_.b, {}, 0, {}};
    tile.a.row += in_batch * product_.a_step + row;
    tile.a.rows = rows;
    tile.b.col += col;
    tile.b.cols = cols;
    Region to = product_.to;
    to.row += in_batch * product_.to_step + row;
    to.col += col;
    to.rows = rows;
    to.cols = cols;
    tile.stores.push_back({to});
    if (!product_.bias.empty()) {
      Region bias = product_.bias;
      bias.col += col;
      bias.cols = cols;
      tile.adds.push_back(bias);
    }
    tile.a_scale = product_.a_scale;
    if (scales_ == Scales::row) {
      tile.a_scale.row += row;
      tile.a_scale.rows = rows;
    }
    return tile;
  }

 private:
  static constexpr std::int64_t super_row = 8;

  const Product& product_;
  Extent block_;
  Scales scales_;
  std::int64_t rows_, cols_;
};

}  // namespace imbrex::plan
