// Rules of a machine's constants, and the collectives' curves.
#include "imbrex/machine.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/check.hpp"
#include "base/text.hpp"
#include "machine/fields.hpp"

namespace imbrex {
namespace {

struct NamedProvenance {
  Provenance value;
  std::string_view name;
};
constexpr std::array<NamedProvenance, 5> provenances{{{Provenance::measured, "measured"},
                                                      {Provenance::published, "published"},
                                                      {Provenance::derived, "derived"},
                                                      {Provenance::fitted, "fitted"},
                                                      {Provenance::unverified, "unverified"}}};

}  // namespace

std::string_view name_of(Provenance provenance) {
  for (const auto& entry : provenances)
    if (entry.value == provenance) return entry.name;
  return "?";
}

Provenance parse_provenance(std::string_view name) {
  for (const auto& entry : provenances)
    if (entry.name == name) return entry.value;
  IMBREX_EXPECTS(false, "'{}' is not a source; it must be measured, published, derived, fitted or unverified",
                 base::printable(name));
  return {};
}

namespace machine {

void check_rule(Rule rule, double value, std::string_view place) {
  const bool whole = value == std::floor(value) && value <= 65536;
  switch (rule) {
    case Rule::rate: IMBREX_EXPECTS(value >= 1, "{} is {}; a rate must be at least 1", place, value); break;
    case Rule::time:
      IMBREX_EXPECTS(value >= 0 && value <= 1e6, "{} is {}; a time must be 0 to 1e6 seconds", place, value);
      break;
    case Rule::ratio:
      IMBREX_EXPECTS(value >= 1e-6 && value <= 1, "{} is {}; a ratio must be 1e-6 to 1", place, value);
      break;
    case Rule::count:
      IMBREX_EXPECTS(value >= 1 && whole, "{} is {}; a count must be an integer from 1 to 65536", place, value);
      break;
    case Rule::tally:
      IMBREX_EXPECTS(value >= 0 && whole, "{} is {}; a count must be an integer from 0 to 65536", place, value);
      break;
    case Rule::size: IMBREX_EXPECTS(value >= 0, "{} is {}; a size must not be negative", place, value); break;
  }
}

bool has_hosts(const Machine& machine) {
  return std::any_of(host_fields.begin(), host_fields.end(),
                     [&](const Field& field) { return !(machine.*field.member == Constant{}); });
}

// Groups lie within those of the next level, and of a host. Collectives that know their ranks know their steps, too.
void check_levels(const Machine& machine) {
  double within = 1;
  for (std::size_t i = 0; i < machine.levels.size(); ++i) {
    const Level& level = machine.levels[i];
    const std::string place = fmt::format("levels[{}]", i);
    const bool plain = !level.name.empty() && std::all_of(level.name.begin(), level.name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_';
    });
    IMBREX_EXPECTS(plain, "{}.name is '{}'; it must be of letters, digits, '-' and '_'", place,
                   base::printable(level.name));
    for (std::size_t j = 0; j < i; ++j)
      IMBREX_EXPECTS(machine.levels[j].name != level.name, "{}.name is '{}', as of levels[{}]", place, level.name, j);
    for (const LevelField& field : level_fields)
      check_rule(field.rule, level.*field.member, fmt::format("{}.{}", place, field.key));
    IMBREX_EXPECTS(std::fmod(level.devices, within) == 0 && (i == 0 || level.devices > within),
                   "{}.devices is {}; it must be a multiple of the {} of the level before", place, level.devices.value,
                   within);
    within = level.devices;
  }
  const double all = machine.host_devices > 0 ? machine.host_devices.value : machine.devices;
  IMBREX_EXPECTS(machine.levels.empty() || std::fmod(all, within) == 0,
                 "levels[{}].devices is {}; it must divide the {} devices of {}", machine.levels.size() - 1, within,
                 all, machine.host_devices > 0 ? "a host" : "the machine");
}

void check_curve(const Curve& curve, std::string_view place) {
  IMBREX_EXPECTS(!curve.points.empty(), "{} has no points; a curve needs at least one", place);
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    const CurvePoint& point = curve.points[i];
    IMBREX_EXPECTS(point.bytes > 0 && std::isfinite(point.bytes), "{} point {} has {} bytes; it must be positive",
                   place, i, point.bytes);
    IMBREX_EXPECTS(point.seconds >= 0 && point.seconds <= 1e6, "{} point {} has {} seconds; it must be 0 to 1e6", place,
                   i, point.seconds);
    if (i == 0) continue;
    const CurvePoint& last = curve.points[i - 1];
    IMBREX_EXPECTS(point.bytes > last.bytes, "{} point {} has {} bytes; bytes must increase from point to point", place,
                   i, point.bytes);
    IMBREX_EXPECTS(point.seconds >= last.seconds, "{} point {} has {} seconds; seconds must not decrease", place, i,
                   point.seconds);
  }
}

}  // namespace machine

void validate(const Machine& machine) {
  using namespace machine;
  IMBREX_EXPECTS(machine.devices >= 1 && machine.devices <= 65536, "devices is {}; it must be 1 to 65536",
                 machine.devices);
  const auto check_gpu = [](std::string_view place, const std::string& name) {
    IMBREX_EXPECTS(!name.empty() && base::is_printable(name),
                   "{} is '{}'; it must be a GPU's name, one line without control characters", place,
                   base::printable(name));
  };
  for (const std::string& gpu : machine.gpus) check_gpu("gpus", gpu);
  if (!machine.tuned_like.empty()) check_gpu("tuned_like", machine.tuned_like);
  for (const Field& field : fields)
    check_rule(field.rule, machine.*field.member, fmt::format("{}.{}", field.section, field.key));
  for (const Field& field : optional_fields)
    if (!(machine.*field.member == Constant{}))
      check_rule(field.rule, machine.*field.member, fmt::format("{}.{}", field.section, field.key));
  if (has_hosts(machine)) {
    for (const Field& field : host_fields)
      check_rule(field.rule, machine.*field.member, fmt::format("{}.{}", field.section, field.key));
    IMBREX_EXPECTS(machine.devices % static_cast<int>(machine.host_devices) == 0,
                   "hosts.devices is {}; it must divide the {} devices", machine.host_devices.value, machine.devices);
  }
  check_levels(machine);
  IMBREX_EXPECTS(!machine.sm_rate.empty(), "compute.sm_rate is empty; it needs at least one element type");
  for (const auto& [type, rate] : machine.sm_rate)
    check_rule(Rule::rate, rate, fmt::format("compute.sm_rate.{}", name_of(type)));
  IMBREX_EXPECTS(!machine.tiles.empty(), "compute.tiles is empty; it needs at least one tile shape");
  for (std::size_t i = 0; i < machine.tiles.size(); ++i) {
    const TileRate& tile = machine.tiles[i];
    const std::string place = fmt::format("compute.tiles[{}]", i);
    IMBREX_EXPECTS(tile.tile_m >= 1 && tile.tile_m <= 65536 && tile.tile_n >= 1 && tile.tile_n <= 65536,
                   "{} is {} x {}; tile sizes must be 1 to 65536", place, tile.tile_m, tile.tile_n);
    for (std::size_t j = 0; j < i; ++j)
      IMBREX_EXPECTS(machine.tiles[j].tile_m != tile.tile_m || machine.tiles[j].tile_n != tile.tile_n,
                     "{} repeats the tile shape of compute.tiles[{}]", place, j);
    check_rule(Rule::ratio, tile.efficiency, place + ".efficiency");
    check_rule(Rule::time, tile.prologue, place + ".prologue");
    check_rule(Rule::time, tile.epilogue, place + ".epilogue");
    if (!(tile.sustained == Constant{})) check_rule(Rule::ratio, tile.sustained, place + ".sustained");
  }
  for (const CurveField& curve : curves) check_curve(machine.*curve.member, fmt::format("collectives.{}", curve.key));
  for (const CurveField& curve : row_curves)
    if (!(machine.*curve.member).points.empty())
      check_curve(machine.*curve.member, fmt::format("compute.{}", curve.key));
  if (!machine.short_rows.points.empty()) {
    IMBREX_EXPECTS(!machine.random_rows.points.empty(), "compute.short_rows stands without compute.random_rows");
    const CurvePoint &last = machine.short_rows.points.back(), &next = machine.random_rows.points.front();
    IMBREX_EXPECTS(last.bytes < next.bytes && last.seconds <= next.seconds,
                   "compute.short_rows ends at {} bytes and {} seconds; it must end below the first point of "
                   "compute.random_rows, {} bytes and {} seconds",
                   last.bytes, last.seconds, next.bytes, next.seconds);
  }
  for (const CurveField& curve : own_curves)
    if (!(machine.*curve.member).points.empty())
      check_curve(machine.*curve.member, fmt::format("collectives.{}", curve.key));
}

double seconds_of(const Curve& curve, double wire_bytes) {
  const auto& points = curve.points;
  IMBREX_EXPECTS(!points.empty(), "a curve needs at least one point");
  if (wire_bytes <= points.front().bytes) return points.front().seconds;
  // Past the measured range the last point's rate holds: the curve has flattened there.
  if (wire_bytes >= points.back().bytes) return points.back().seconds * (wire_bytes / points.back().bytes);
  const auto above = std::upper_bound(points.begin(), points.end(), wire_bytes,
                                      [](double bytes, const CurvePoint& point) { return bytes < point.bytes; });
  const CurvePoint& lo = *(above - 1);
  const CurvePoint& hi = *above;
  const double share = std::log(wire_bytes / lo.bytes) / std::log(hi.bytes / lo.bytes);
  if (lo.seconds <= 0) return lo.seconds + (hi.seconds - lo.seconds) * share;
  return lo.seconds * std::pow(hi.seconds / lo.seconds, share);
}

}  // namespace imbrex
