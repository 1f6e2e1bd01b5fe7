// Changing one constant, by its place in a machine file.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.hpp"
#include "machine/fields.hpp"

namespace imbrex {
namespace {

using machine::Field;
using machine::fields;
using machine::Rule;

struct Place {
  std::string name;
  Constant* constant;
  Rule rule;
};

// Also the rates of types that the machine has none of yet, and links between hosts.
std::vector<Place> places_in(Machine& machine) {
  std::vector<Place> places;
  for (const Field& field : fields)
    places.push_back({fmt::format("{}.{}", field.section, field.key), &(machine.*field.member), field.rule});
  for (const Field& field : machine::host_fields)
    places.push_back({fmt::format("{}.{}", field.section, field.key), &(machine.*field.member), field.rule});
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    places.push_back({fmt::format("compute.sm_rate.{}", name_of(type)), &machine.sm_rate[type], Rule::rate});
  for (TileRate& tile : machine.tiles) {
    const std::string shape = fmt::format("compute.tiles.{}x{}.", tile.tile_m, tile.tile_n);
    places.push_back({shape + "efficiency", &tile.efficiency, Rule::ratio});
    places.push_back({shape + "prologue", &tile.prologue, Rule::time});
    places.push_back({shape + "epilogue", &tile.epilogue, Rule::time});
  }
  return places;
}

}  // namespace

void set_constant(Machine& machine, std::string_view place, const Constant& constant) {
  Machine changed = machine;
  const std::vector<Place> places = places_in(changed);
  const auto found = std::find_if(places.begin(), places.end(), [&](const Place& p) { return p.name == place; });
  std::vector<std::string_view> names;
  for (const Place& p : places) names.push_back(p.name);
  IMBREX_EXPECTS(found != places.end(), "'{}' is no constant of machine {}; it must be one of {}", place, machine.name,
                 fmt::join(names, ", "));
  IMBREX_EXPECTS(std::isfinite(constant.value), "{} is {}; it must be finite", place, constant.value);
  machine::check_rule(found->rule, constant, place);
  *found->constant = constant;
  std::erase_if(changed.sm_rate, [](const auto& rate) { return rate.second == Constant{}; });
  machine = std::move(changed);
}

}  // namespace imbrex
