// Products that cuBLASLt multiplies faster by another algorithm than the one that it suggests first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "imbrex/plan.hpp"
#include "plan/json/node.hpp"
#include "plan/problem.hpp"

namespace imbrex::records {

/// Measured for `product`; taken for as many columns and K, and from m_low to m_high rows.
struct ProductRecord {
  plan::ProductSize product;
  std::int64_t m_low = 0, m_high = 0;
  int tile = 0, parts = 1;                ///< Knobs::library_tile and library_parts
  double seconds = 0, first_seconds = 0;  ///< the latter: of cuBLASLt's first suggestion

  bool operator==(const ProductRecord&) const = default;
};

/// Down to more than half of m rows, in as many strips of 64: the same tiles, which do as much.
std::int64_t least_rows_alike(std::int64_t m);

/// Throws Error(invalid_input) naming the place and the rule.
ProductRecord product_record_of(const plan::Node& n);

/// As product_record_of reads it, on one line.
std::string to_json(const ProductRecord& record);

/// Among those that are for the product, of its layout of B if there are any, the one measured with the fewest rows;
/// null where there is none.
const ProductRecord* find_product(const std::vector<ProductRecord>& records, const plan::ProductSize& product);

/// The knobs of strategy `sequential`, with what is recorded of the problem's product, unless they name a tile.
Knobs with_library_tile(Knobs knobs, const std::vector<ProductRecord>& records, const Problem& problem);

}  // namespace imbrex::records
