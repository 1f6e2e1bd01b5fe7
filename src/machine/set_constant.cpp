// Changing one constant, by its place in a machine file.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "machine/fields.hpp"
#include "machine/scaling.hpp"

namespace imbrex {
namespace {

using machine::Field;
using machine::fields;
using machine::Rule;
using machine::scaled_with;
using machine::scaling_of;

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
  for (const Field& field : machine::optional_fields)
    places.push_back({fmt::format("{}.{}", field.section, field.key), &(machine.*field.member), field.rule});
  for (const Field& field : machine::host_fields)
    places.push_back({fmt::format("{}.{}", field.section, field.key), &(machine.*field.member), field.rule});
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    places.push_back({fmt::format("compute.sm_rate.{}", name_of(type)), &machine.sm_rate[type], Rule::rate});
  for (Level& level : machine.levels)
    for (const machine::LevelField& field : machine::level_fields)
      places.push_back({fmt::format("levels.{}.{}", level.name, field.key), &(level.*field.member), field.rule});
  for (TileRate& tile : machine.tiles) {
    const std::string shape = fmt::format("compute.tiles.{}x{}.", tile.tile_m, tile.tile_n);
    places.push_back({shape + "efficiency", &tile.efficiency, Rule::ratio});
    places.push_back({shape + "prologue", &tile.prologue, Rule::time});
    places.push_back({shape + "epilogue", &tile.epilogue, Rule::time});
    places.push_back({shape + "sustained", &tile.sustained, Rule::ratio});
  }
  return places;
}

// What a transfer gets of the links at most.
double wire_rate(const Machine& machine) { return std::min(machine.egress_bandwidth, machine.ingress_bandwidth); }

// Each point's time as another that was measured on the changed machine would be.
template <typename Time>
void change(Curve& curve, std::string_view place, Time&& time) {
  if (curve.points.empty()) return;
  const Curve before = curve;
  for (CurvePoint& point : curve.points) point.seconds = time(before.points.front().seconds, point.seconds);
  if (curve.points == before.points) return;
  curve.source = Provenance::unverified;
  const std::string_view known = scaling_of(curve);
  if (known.empty())
    curve.from = fmt::format("{}{}; before: {}", scaled_with, place, curve.from);
  else if (known.find(place) == std::string_view::npos)
    curve.from = fmt::format("{}{}, {}", scaled_with, place, curve.from.substr(scaled_with.size()));
}

// The first point is latency, which no bandwidth changes; what longer calls take besides is bytes on the links. A
// ring of R ranks has R - 1 steps, an all-reduce twice as many, and each pays the latency.
void change_with_links(Machine& changed, const Machine& before, std::string_view place) {
  const double old = wire_rate(before), ratio = old > 0 ? old / wire_rate(changed) : 1,
               later = changed.link_latency - before.link_latency, ring = changed.devices - 1;
  if (ratio == 1 && later == 0) return;
  const std::pair<Curve Machine::*, double> steps[] = {
      {&Machine::all_gather, ring}, {&Machine::reduce_scatter, ring}, {&Machine::all_reduce, 2 * ring},
      {&Machine::all_to_all, 1},    {&Machine::own_one_step, 1},      {&Machine::own_two_steps, 2},
      {&Machine::own_coded, 2}};
  for (const auto& [curve, count] : steps)
    change(changed.*curve, place, [&, more = count * later](double first, double seconds) {
      return std::min(std::max(first + more, 0.0) + (seconds - first) * ratio, machine::most_seconds);
    });
}

void change_with_memory(Machine& changed, const Machine& before, std::string_view place) {
  const double ratio = before.memory_bandwidth > 0 ? before.memory_bandwidth / changed.memory_bandwidth : 1;
  for (const machine::CurveField& field : machine::row_curves)
    change(changed.*field.member, place,
           [&](double, double seconds) { return std::min(seconds * ratio, machine::most_seconds); });
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
  if (found->constant == &changed.memory_bandwidth)
    change_with_memory(changed, machine, place);
  else if (place.starts_with("links."))
    change_with_links(changed, machine, place);
  machine = std::move(changed);
}

}  // namespace imbrex
