// Whether two tables are one.
#pragma once

#include "embedding/bags.hpp"

namespace imbrex::embedding {

inline bool same_table(const Table& a, const Table& b) {
  return a.rows == b.rows && a.count == b.count && a.pitch == b.pitch && a.scale == b.scale && a.dim == b.dim &&
         a.column == b.column;
}

}  // namespace imbrex::embedding
