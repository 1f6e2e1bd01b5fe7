#include "records/product_records.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "plan/json/names.hpp"
#include "records/records.hpp"

namespace imbrex::records {

std::int64_t least_rows_alike(std::int64_t m) {
  constexpr std::int64_t strip = 64;
  return std::max(m / 2 + 1, (base::ceil_div(m, strip) - 1) * strip + 1);
}

ProductRecord product_record_of(const plan::Node& n) {
  n.only({"type", "b_layout", "m", "n", "k", "from_m", "to_m", "tile", "parts", "us", "first_us"});
  const auto positive = [&](const char* name) {
    const auto value = n[name].integer<std::int64_t>();
    if (value < 1) n[name].refuse(fmt::format("{}: it must be positive", value));
    return value;
  };
  ProductRecord r;
  r.product = {positive("m"), positive("n"), positive("k"), n["type"].name(parse_type)};
  if (n.has("b_layout")) r.product.b_layout = n["b_layout"].name(plan::parse_layout);
  r.m_low = positive("from_m");
  r.m_high = n["to_m"].integer<std::int64_t>();
  if (r.m_high < r.m_low) n.refuse("from_m and to_m must be a range of positive numbers");
  for (const auto& [name, value] : {std::pair{"tile", &r.tile}, std::pair{"parts", &r.parts}}) {
    *value = n[name].integer<int>();
    if (*value < 1) n[name].refuse(fmt::format("{}: it must be positive", *value));
  }
  r.seconds = seconds_of(n["us"]);
  r.first_seconds = seconds_of(n["first_us"]);
  return r;
}

std::string to_json(const ProductRecord& r) {
  return fmt::format(
      R"({{"type": "{}"{}, "m": {}, "n": {}, "k": {}, "from_m": {}, "to_m": {}, "tile": {}, "parts": {}, )"
      R"("us": {:.1f}, "first_us": {:.1f}}})",
      name_of(r.product.type), b_layout_text(r.product.b_layout), r.product.m, r.product.n, r.product.k, r.m_low,
      r.m_high, r.tile, r.parts, r.seconds * 1e6, r.first_seconds * 1e6);
}

const ProductRecord* find_product(const std::vector<ProductRecord>& records, const plan::ProductSize& product) {
  const ProductRecord* best = nullptr;
  for (const ProductRecord& r : records) {
    const plan::ProductSize& p = r.product;
    const bool fits =
        p.type == product.type && p.n == product.n && p.k == product.k && r.m_low <= product.m && product.m <= r.m_high;
    if (!fits) continue;
    const bool own = p.b_layout == product.b_layout,
               better = best == nullptr || (best->product.b_layout == product.b_layout ? own && p.m < best->product.m
                                                                                       : own || p.m < best->product.m);
    if (better) best = &r;
  }
  return best;
}

Knobs with_library_tile(Knobs knobs, const std::vector<ProductRecord>& records, const Problem& problem) {
  // One algorithm for several products would be right for one of them.
  const bool one = knobs.library_tile == 0 && plan::count_products(problem) == 1;
  const ProductRecord* record = one ? find_product(records, plan::product_of_rank(problem)) : nullptr;
  if (record == nullptr) return knobs;
  knobs.library_tile = record->tile;
  knobs.library_parts = record->parts;
  return knobs;
}

}  // namespace imbrex::records
