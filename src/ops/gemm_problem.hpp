// The problem that an operator's shape stands for.
#pragma once

#include "imbrex/ops.hpp"

namespace imbrex::ops {

inline Problem problem_of(Operator op, const GemmShape& shape, int ranks) {
  // B of e4m3 has one layout, which a problem's default stands for.
  const Layout b_layout =
      shape.type == Type::e4m3 && shape.b_layout == Layout::column_major ? Layout::row_major : shape.b_layout;
  return {op, shape.m, shape.n, shape.k, ranks, shape.type, shape.bias, shape.scales, b_layout};
}

}  // namespace imbrex::ops
