#include "plan/given_knobs.hpp"

#include <fmt/format.h>

#include "base/check.hpp"

namespace imbrex::plan {
namespace {

// (name, member) of each knob, in the order of Knobs. A test compares the names with those of add_fields.
template <typename Visit>
constexpr void for_each_knob(Visit&& visit) {
  visit("tile_m", &Knobs::tile_m);
  visit("tile_n", &Knobs::tile_n);
  visit("cluster", &Knobs::cluster);
  visit("cluster_k", &Knobs::cluster_k);
  visit("group", &Knobs::group);
  visit("order", &Knobs::order);
  visit("transport", &Knobs::transport);
  visit("reducer", &Knobs::reducer);
  visit("comm_rows", &Knobs::comm_rows);
  visit("k_slices", &Knobs::k_slices);
  visit("split_k", &Knobs::split_k);
  visit("chunks", &Knobs::chunks);
  visit("groups", &Knobs::groups);
  visit("packed", &Knobs::packed);
  visit("kept_free", &Knobs::kept_free);
  visit("nodes", &Knobs::nodes);
  visit("library_tile", &Knobs::library_tile);
  visit("library_parts", &Knobs::library_parts);
  visit("own_shift", &Knobs::own_shift);
  visit("abreast", &Knobs::abreast);
  visit("span_shards", &Knobs::span_shards);
  visit("one_shot", &Knobs::one_shot);
  visit("partial", &Knobs::partial);
  visit("codec", &Knobs::codec);
}

constexpr std::uint32_t every = [] {
  std::uint32_t bits = 0;
  for_each_knob([&](const char*, auto) { bits = bits << 1 | 1; });
  return bits;
}();

std::uint32_t bit_of(std::string_view name) {
  std::uint32_t found = 0, bit = 1;
  for_each_knob([&](std::string_view knob, auto) {
    if (knob == name) found = bit;
    bit <<= 1;
  });
  IMBREX_EXPECTS(found != 0, "'{}' is not a knob; a plan file names them", name);
  return found;
}

}  // namespace

GivenKnobs::GivenKnobs(const Knobs& all) : values_(all), given_(every) {}

GivenKnobs::GivenKnobs(const std::optional<Knobs>& all) : values_(all.value_or(Knobs{})), given_(all ? every : 0) {}

GivenKnobs::GivenKnobs(const std::optional<Knobs>& values, std::span<const std::string> names) : GivenKnobs(values) {
  if (names.empty()) return;
  IMBREX_EXPECTS(values, "'{}' is a knob to be kept, and no knobs are given", names.front());
  given_ = 0;
  for (const std::string& name : names) given_ |= bit_of(name);
  values_ = over(Knobs{});
}

bool GivenKnobs::all() const { return given_ == every; }

bool GivenKnobs::has(std::string_view name) const { return (given_ & bit_of(name)) != 0; }

std::vector<std::string> GivenKnobs::names() const {
  std::vector<std::string> names;
  std::uint32_t bit = 1;
  for_each_knob([&](const char* name, auto) {
    if ((given_ & bit) != 0) names.emplace_back(name);
    bit <<= 1;
  });
  return names;
}

std::optional<Knobs> GivenKnobs::optional() const { return given_ != 0 ? std::optional(values_) : std::nullopt; }

bool GivenKnobs::in(const Knobs& knobs) const { return over(knobs) == knobs; }

Knobs GivenKnobs::over(Knobs base) const {
  std::uint32_t bit = 1;
  for_each_knob([&](const char*, auto member) {
    if ((given_ & bit) != 0) base.*member = values_.*member;
    bit <<= 1;
  });
  return base;
}

}  // namespace imbrex::plan
