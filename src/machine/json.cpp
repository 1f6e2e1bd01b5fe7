// Machine files: strict reading, and writing with one constant a line.
#include <cmath>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "machine/fields.hpp"

namespace imbrex {
namespace {

using machine::CurveField;
using machine::curves;
using machine::Field;
using machine::fields;
using machine::host_fields;
using machine::level_fields;
using machine::LevelField;
using machine::optional_fields;
using machine::own_curves;
using machine::row_curves;
using machine::Rule;
using Json = nlohmann::json;

constexpr std::size_t max_bytes = std::size_t{1} << 20;
constexpr std::string_view format_name = "imbrex-machine-1";

// A JSON value and where it stands, for messages. Every accessor throws Error(invalid_input) naming that place.
class Node {
 public:
  Node(const Json& json, std::string place) : json_(json), place_(std::move(place)) {}
  const std::string& place() const { return place_; }

  // Checks that this is an object with exactly these keys, and perhaps `others`.
  void keys(const std::vector<std::string_view>& allowed, const std::vector<std::string_view>& others = {}) const {
    IMBREX_EXPECTS(json_.is_object(), "{} must be an object, not {}", place_, json_.type_name());
    for (const auto& item : json_.items()) {
      bool known = false;
      for (std::string_view key : allowed) known = known || item.key() == key;
      for (std::string_view key : others) known = known || item.key() == key;
      IMBREX_EXPECTS(known, "{} has the unknown key '{}'; it takes {}", place_, base::printable(item.key()),
                     fmt::join(allowed, ", "));
    }
    for (std::string_view key : allowed)
      IMBREX_EXPECTS(json_.contains(std::string(key)), "{} lacks the key '{}'", place_, key);
  }

  bool has(std::string_view key) const { return json_.contains(std::string(key)); }

  Node operator[](std::string_view key) const {
    return {json_.at(std::string(key)), fmt::format("{}.{}", place_, key)};
  }

  std::vector<std::pair<std::string, Node>> members() const {
    IMBREX_EXPECTS(json_.is_object(), "{} must be an object, not {}", place_, json_.type_name());
    std::vector<std::pair<std::string, Node>> result;
    for (const auto& item : json_.items())
      result.emplace_back(item.key(), Node(item.value(), fmt::format("{}.{}", place_, base::printable(item.key()))));
    return result;
  }

  std::vector<Node> elements(std::size_t most) const {
    IMBREX_EXPECTS(json_.is_array(), "{} must be an array, not {}", place_, json_.type_name());
    IMBREX_EXPECTS(json_.size() <= most, "{} has {} elements; at most {} are allowed", place_, json_.size(), most);
    std::vector<Node> result;
    for (std::size_t i = 0; i < json_.size(); ++i) result.emplace_back(json_[i], fmt::format("{}[{}]", place_, i));
    return result;
  }

  double number() const {
    IMBREX_EXPECTS(json_.is_number(), "{} must be a number, not {}", place_, json_.type_name());
    const double value = json_.get<double>();
    IMBREX_EXPECTS(std::isfinite(value), "{} must be finite", place_);
    return value;
  }

  std::int64_t integer(std::int64_t low, std::int64_t high) const {
    const double value = number();
    IMBREX_EXPECTS(
        value == std::floor(value) && value >= static_cast<double>(low) && value <= static_cast<double>(high),
        "{} is {}; it must be an integer from {} to {}", place_, value, low, high);
    return static_cast<std::int64_t>(value);
  }

  std::string string() const {
    IMBREX_EXPECTS(json_.is_string(), "{} must be a string, not {}", place_, json_.type_name());
    return json_.get<std::string>();
  }

 private:
  const Json& json_;
  std::string place_;
};

Provenance read_source(const Node& node) {
  try {
    return parse_provenance(node.string());
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", node.place(), error.what()));
  }
}

Constant read_constant(const Node& node, std::string_view unit, Rule rule) {
  node.keys({"value", "unit", "source", "from"});
  const std::string given = node["unit"].string();
  IMBREX_EXPECTS(given == unit, "{}.unit is '{}'; it must be '{}'", node.place(), base::printable(given), unit);
  Constant constant{node["value"].number(), read_source(node["source"]), node["from"].string()};
  machine::check_rule(rule, constant, node.place() + ".value");
  return constant;
}

Curve read_curve(const Node& node) {
  node.keys({"points", "unit", "source", "from"});
  const std::string unit = node["unit"].string();
  IMBREX_EXPECTS(unit == "[bytes, s]", "{}.unit is '{}'; it must be '[bytes, s]'", node.place(), base::printable(unit));
  Curve curve{{}, read_source(node["source"]), node["from"].string()};
  for (const Node& point : node["points"].elements(1024)) {
    const auto pair = point.elements(2);
    IMBREX_EXPECTS(pair.size() == 2, "{} must be [bytes, seconds]", point.place());
    curve.points.push_back({pair[0].number(), pair[1].number()});
  }
  machine::check_curve(curve, node.place());
  return curve;
}

std::vector<std::string_view> section_keys(std::string_view section) {
  std::vector<std::string_view> keys;
  for (const Field& field : fields)
    if (field.section == section) keys.push_back(field.key);
  if (section == "compute") keys.insert(keys.end(), {"sm_rate", "tiles"});
  if (section == "collectives")
    for (const auto& curve : curves) keys.push_back(curve.key);
  return keys;
}

std::span<const CurveField> optional_curves(std::string_view section) {
  if (section == "compute") return row_curves;
  if (section == "collectives") return own_curves;
  return {};
}

constexpr std::string_view sections[] = {"compute", "copy_engine", "stores", "links", "signals", "collectives"};

Machine read_machine(const Node& root) {
  root.keys(
      {"format", "name", "about", "devices", "compute", "copy_engine", "stores", "links", "signals", "collectives"},
      {"gpus", "tuned_like", "levels", "hosts"});
  const std::string format = root["format"].string();
  IMBREX_EXPECTS(format == format_name, "{}.format is '{}'; this version reads '{}'", root.place(),
                 base::printable(format), format_name);
  Machine machine;
  machine.name = root["name"].string();
  IMBREX_EXPECTS(base::is_printable(machine.name), "{}.name is '{}'; it must be one line without control characters",
                 root.place(), base::printable(machine.name));
  machine.about = root["about"].string();
  machine.devices = static_cast<int>(root["devices"].integer(1, 65536));
  if (root.has("gpus")) {
    for (const Node& gpu : root["gpus"].elements(64)) machine.gpus.push_back(gpu.string());
    IMBREX_EXPECTS(!machine.gpus.empty(), "{} has no names; a file of no GPUs leaves it out", root["gpus"].place());
  }
  if (root.has("tuned_like")) machine.tuned_like = root["tuned_like"].string();
  for (std::string_view section : sections) {
    std::vector<std::string_view> others;
    for (const auto& curve : optional_curves(section)) others.push_back(curve.key);
    for (const Field& field : optional_fields)
      if (field.section == section) others.push_back(field.key);
    root[section].keys(section_keys(section), others);
  }
  for (const Field& field : fields)
    machine.*field.member = read_constant(root[field.section][field.key], field.unit, field.rule);
  for (const Field& field : optional_fields)
    if (root[field.section].has(field.key))
      machine.*field.member = read_constant(root[field.section][field.key], field.unit, field.rule);
  if (root.has("levels"))
    for (const Node& node : root["levels"].elements(16)) {
      node.keys({"name", "devices", "bandwidth", "latency"});
      Level level{.name = node["name"].string(), .devices = {}, .bandwidth = {}, .latency = {}};
      for (const LevelField& field : level_fields)
        level.*field.member = read_constant(node[field.key], field.unit, field.rule);
      machine.levels.push_back(std::move(level));
    }
  if (root.has("hosts")) {
    std::vector<std::string_view> keys;
    for (const Field& field : host_fields) keys.push_back(field.key);
    root["hosts"].keys(keys);
    for (const Field& field : host_fields)
      machine.*field.member = read_constant(root["hosts"][field.key], field.unit, field.rule);
  }
  for (const auto& [type, node] : root["compute"]["sm_rate"].members()) {
    IMBREX_EXPECTS(type == "bf16" || type == "fp16" || type == "fp32" || type == "e4m3",
                   "{} must be bf16, fp16, fp32 or e4m3", node.place());
    machine.sm_rate[parse_type(type)] = read_constant(node, "flop/s", Rule::rate);
  }
  for (const Node& node : root["compute"]["tiles"].elements(256)) {
    node.keys({"tile_m", "tile_n", "efficiency", "prologue", "epilogue"}, {"sustained"});
    machine.tiles.push_back(
        {node["tile_m"].integer(1, 65536), node["tile_n"].integer(1, 65536),
         read_constant(node["efficiency"], "ratio", Rule::ratio), read_constant(node["prologue"], "s", Rule::time),
         read_constant(node["epilogue"], "s", Rule::time),
         node.has("sustained") ? read_constant(node["sustained"], "ratio", Rule::ratio) : Constant{}});
  }
  for (const auto& curve : curves) machine.*curve.member = read_curve(root["collectives"][curve.key]);
  for (std::string_view section : sections)
    for (const auto& curve : optional_curves(section))
      if (root[section].has(curve.key)) machine.*curve.member = read_curve(root[section][curve.key]);
  try {
    validate(machine);
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_input, fmt::format("{}.{}", root.place(), error.what()));
  }
  return machine;
}

std::string text_of(const std::string& value) {
  return Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
}
// The shortest text that reads back as the same double.
std::string text_of(double value) { return fmt::format("{}", value); }

std::string text_of(const Constant& constant, std::string_view unit) {
  return fmt::format(R"({{"value": {}, "unit": "{}", "source": "{}", "from": {}}})", text_of(constant.value), unit,
                     name_of(constant.source), text_of(constant.from));
}

std::string text_of(const Curve& curve) {
  std::string points;
  for (std::size_t i = 0; i < curve.points.size(); ++i)
    points += fmt::format("{}[{}, {}]",
                          i == 0       ? ""
                          : i % 6 == 0 ? ",\n        "
                                       : ", ",
                          text_of(curve.points[i].bytes), text_of(curve.points[i].seconds));
  return fmt::format(
      "{{\n      \"unit\": \"[bytes, s]\", \"source\": \"{}\",\n      \"from\": {},\n      \"points\": [\n        "
      "{}]\n    }}",
      name_of(curve.source), text_of(curve.from), points);
}

void add_optional(std::vector<std::string>& lines, const Machine& machine, std::string_view section) {
  for (const auto& curve : optional_curves(section))
    if (!(machine.*curve.member).points.empty())
      lines.push_back(fmt::format("    \"{}\": {}", curve.key, text_of(machine.*curve.member)));
}

}  // namespace

std::string to_json(const Machine& machine) {
  std::string out = fmt::format("{{\n  \"format\": \"{}\",\n  \"name\": {},\n  \"about\": {},\n  \"devices\": {}",
                                format_name, text_of(machine.name), text_of(machine.about), machine.devices);
  std::vector<std::string> gpus;
  for (const std::string& gpu : machine.gpus) gpus.push_back(text_of(gpu));
  if (!gpus.empty()) out += fmt::format(",\n  \"gpus\": [{}]", fmt::join(gpus, ", "));
  if (!machine.tuned_like.empty()) out += fmt::format(",\n  \"tuned_like\": {}", text_of(machine.tuned_like));
  for (std::string_view section : sections) {
    std::vector<std::string> lines;
    for (const Field& field : fields)
      if (field.section == section)
        lines.push_back(fmt::format("    \"{}\": {}", field.key, text_of(machine.*field.member, field.unit)));
    for (const Field& field : optional_fields)
      if (field.section == section && !(machine.*field.member == Constant{}))
        lines.push_back(fmt::format("    \"{}\": {}", field.key, text_of(machine.*field.member, field.unit)));
    if (section == "compute") {
      std::vector<std::string> rates, tiles;
      for (const auto& [type, rate] : machine.sm_rate)
        rates.push_back(fmt::format("      \"{}\": {}", name_of(type), text_of(rate, "flop/s")));
      for (const TileRate& tile : machine.tiles)
        tiles.push_back(fmt::format(
            "      {{\"tile_m\": {}, \"tile_n\": {},\n       \"efficiency\": {},\n       \"prologue\": {},\n"
            "       \"epilogue\": {}{}}}",
            tile.tile_m, tile.tile_n, text_of(tile.efficiency, "ratio"), text_of(tile.prologue, "s"),
            text_of(tile.epilogue, "s"),
            tile.sustained == Constant{}
                ? std::string()
                : fmt::format(",\n       \"sustained\": {}", text_of(tile.sustained, "ratio"))));
      lines.push_back(fmt::format("    \"sm_rate\": {{\n{}\n    }}", fmt::join(rates, ",\n")));
      add_optional(lines, machine, section);
      lines.push_back(fmt::format("    \"tiles\": [\n{}\n    ]", fmt::join(tiles, ",\n")));
    }
    if (section == "collectives") {
      for (const auto& curve : curves)
        lines.push_back(fmt::format("    \"{}\": {}", curve.key, text_of(machine.*curve.member)));
      add_optional(lines, machine, section);
    }
    out += fmt::format(",\n  \"{}\": {{\n{}\n  }}", section, fmt::join(lines, ",\n"));
    if (section != "links") continue;
    lines.clear();
    for (const Level& level : machine.levels) {
      std::string text = fmt::format("    {{\"name\": {}", text_of(level.name));
      for (const LevelField& field : level_fields)
        text += fmt::format(",\n     \"{}\": {}", field.key, text_of(level.*field.member, field.unit));
      lines.push_back(text + "}");
    }
    if (!lines.empty()) out += fmt::format(",\n  \"levels\": [\n{}\n  ]", fmt::join(lines, ",\n"));
    if (!machine::has_hosts(machine)) continue;
    lines.clear();
    for (const Field& field : host_fields)
      lines.push_back(fmt::format("    \"{}\": {}", field.key, text_of(machine.*field.member, field.unit)));
    out += fmt::format(",\n  \"hosts\": {{\n{}\n  }}", fmt::join(lines, ",\n"));
  }
  return out + "\n}\n";
}

Machine parse_machine(std::string_view json, std::string_view origin) {
  IMBREX_EXPECTS(json.size() <= max_bytes, "{} has {} bytes; a machine file may have {}", origin, json.size(),
                 max_bytes);
  const Json parsed = base::parse_json(json, origin);
  return read_machine(Node(parsed, std::string(origin)));
}

}  // namespace imbrex
