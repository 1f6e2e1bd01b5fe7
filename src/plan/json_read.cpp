// Plans from JSON. Strict: an unknown or missing key, a wrong type or a number outside its type's range is an error
// that names its place. Shapes and indices are check_format's business.
#include <fmt/format.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "plan/json_names.hpp"

namespace imbrex {
namespace {

using Json = nlohmann::json;

// A value and the way to it, for messages; the way is put together only when something is wrong.
class Node {
 public:
  Node(const Json& json, const Node* parent, std::string_view key, std::size_t index)
      : json_(json), parent_(parent), key_(key), index_(index) {}

  Node operator[](std::string_view key) const {
    const auto place = object().find(key);
    if (place == json_.end()) refuse(fmt::format("the key '{}' is missing", key));
    return {*place, this, key, 0};
  }
  template <typename F>
  void each(F&& f) const {
    for (std::size_t i = 0; i < array().size(); ++i) f(Node(json_[i], this, {}, i));
  }
  Node at(std::size_t i) const { return {array().at(i), this, {}, i}; }
  std::size_t size() const { return array().size(); }

  void only(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, value] : object().items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        refuse(fmt::format("the key '{}' is not known here", key));
  }

  template <typename T>
  T integer() const {
    if (!json_.is_number_integer()) refuse(fmt::format("{} is not an integer", excerpt()));
    const bool large = json_.is_number_unsigned() &&
                       json_.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    const std::int64_t value = large ? 0 : json_.get<std::int64_t>();
    if (large || value < static_cast<std::int64_t>(std::numeric_limits<T>::min()) ||
        value > static_cast<std::int64_t>(std::numeric_limits<T>::max()))
      refuse(fmt::format("{} is out of range", excerpt()));
    return static_cast<T>(value);
  }
  bool boolean() const {
    if (!json_.is_boolean()) refuse(fmt::format("{} is not true or false", excerpt()));
    return json_.get<bool>();
  }
  const std::string& string() const {
    if (!json_.is_string()) refuse(fmt::format("{} is not a string", excerpt()));
    return json_.get_ref<const std::string&>();
  }
  template <typename Parse>
  auto name(Parse&& parse) const {
    try {
      return parse(string());
    } catch (const Error& error) {
      refuse(error.what());
    }
  }

  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(ErrorCode::invalid_input, fmt::format("plan: {}: {}", way(), rule));
  }

  bool has(std::string_view key) const { return object().contains(key); }

 private:
  const Json& object() const {
    if (!json_.is_object()) refuse(fmt::format("{} is not an object", excerpt()));
    return json_;
  }
  const Json& array() const {
    if (!json_.is_array()) refuse(fmt::format("{} is not a list", excerpt()));
    return json_;
  }
  std::string excerpt() const {
    std::string text = json_.is_structured() ? std::string(json_.type_name())
                                             : json_.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    return text;
  }
  std::string way() const {
    if (parent_ == nullptr) return "the file";
    const std::string above = parent_->parent_ == nullptr ? "" : parent_->way();
    return key_.empty() ? fmt::format("{}[{}]", above, index_)
                        : fmt::format("{}{}{}", above, above.empty() ? "" : ".", key_);
  }

  const Json& json_;
  const Node* parent_;
  std::string_view key_;
  std::size_t index_;
};

Region region_of(const Node& n, std::size_t fields = 6) {
  if (n.size() != fields)
    n.refuse(fmt::format("a list of {} numbers is needed: rank, buffer, row, col, rows, cols{}", fields,
                         fields > 6 ? ", row and col in the tile" : ""));
  return {n.at(0).integer<int>(),          n.at(1).integer<int>(),          n.at(2).integer<std::int64_t>(),
          n.at(3).integer<std::int64_t>(), n.at(4).integer<std::int64_t>(), n.at(5).integer<std::int64_t>()};
}

std::vector<Region> regions_of(const Node& n) {
  std::vector<Region> regions;
  n.each([&](const Node& r) { regions.push_back(region_of(r)); });
  return regions;
}

Tile tile_of(const Node& n) {
  n.only({"a", "b", "adds", "own", "stores"});
  Tile tile{region_of(n["a"]), region_of(n["b"]), regions_of(n["adds"]), n["own"].integer<int>(), {}};
  n["stores"].each([&](const Node& s) {
    tile.stores.push_back({region_of(s, 8), s.at(6).integer<std::int64_t>(), s.at(7).integer<std::int64_t>()});
  });
  return tile;
}

Transfer transfer_of(const Node& n) {
  n.only({"from", "to"});
  return {region_of(n["from"]), region_of(n["to"])};
}

Reduction reduction_of(const Node& n) {
  n.only({"from", "to"});
  return {regions_of(n["from"]), regions_of(n["to"])};
}

Collective collective_of(const Node& n) {
  n.only({"kind", "group", "from", "to"});
  return {n["kind"].name(parse_collective_kind), n["group"].integer<int>(), region_of(n["from"]), region_of(n["to"])};
}

Task task_of(const Node& n) {
  n.only({"tile", "transfer", "reduction", "collective", "waits", "posts"});
  Task task;
  const int kinds = n.has("tile") + n.has("transfer") + n.has("reduction") + n.has("collective");
  if (kinds != 1) n.refuse("a task is one of tile, transfer, reduction, collective");
  if (n.has("tile"))
    task.work = tile_of(n["tile"]);
  else if (n.has("transfer"))
    task.work = transfer_of(n["transfer"]);
  else if (n.has("reduction"))
    task.work = reduction_of(n["reduction"]);
  else
    task.work = collective_of(n["collective"]);
  n["waits"].each([&](const Node& w) {
    if (w.size() != 4) w.refuse("a list of 4 is needed: signal, count, point, k_begin");
    task.waits.push_back({w.at(0).integer<int>(), w.at(1).integer<std::uint32_t>(), w.at(2).name(parse_wait_point),
                          w.at(3).integer<std::int64_t>()});
  });
  n["posts"].each([&](const Node& p) {
    if (p.size() != 2) p.refuse("a list of 2 is needed: rank, signal");
    task.posts.push_back({p.at(0).integer<int>(), p.at(1).integer<int>()});
  });
  return task;
}

Knobs knobs_of(const Node& n) {
  n.only({"tile_m", "tile_n", "group", "order", "transport", "reducer", "comm_rows", "k_slices", "chunks", "own_shift",
          "span_shards", "one_shot", "partial"});
  Knobs k;
  k.tile_m = n["tile_m"].integer<std::int64_t>();
  k.tile_n = n["tile_n"].integer<std::int64_t>();
  k.group = n["group"].integer<int>();
  k.order = n["order"].name(parse_tile_order);
  k.transport = n["transport"].name(parse_transport);
  k.reducer = n["reducer"].name(parse_reducer);
  k.comm_rows = n["comm_rows"].integer<std::int64_t>();
  k.k_slices = n["k_slices"].integer<int>();
  k.chunks = n["chunks"].integer<int>();
  k.own_shift = n["own_shift"].integer<int>();
  k.span_shards = n["span_shards"].boolean();
  k.one_shot = n["one_shot"].boolean();
  k.partial = n["partial"].name(parse_type);
  return k;
}

Plan plan_of(const Node& n) {
  n.only({"imbrex_plan", "problem", "strategy", "knobs", "signal_copies", "buffers", "ranks"});
  const int version = n["imbrex_plan"].integer<int>();
  if (version != plan_format_version)
    n["imbrex_plan"].refuse(
        fmt::format("format {} is not known; this library reads format {}", version, plan_format_version));
  Plan plan;
  const Node p = n["problem"];
  p.only({"op", "m", "n", "k", "ranks", "type"});
  plan.problem = {p["op"].name(parse_operator),   p["m"].integer<std::int64_t>(), p["n"].integer<std::int64_t>(),
                  p["k"].integer<std::int64_t>(), p["ranks"].integer<int>(),      p["type"].name(parse_type)};
  plan.strategy = n["strategy"].name(parse_strategy);
  plan.knobs = knobs_of(n["knobs"]);
  plan.signal_copies = n["signal_copies"].integer<int>();
  n["buffers"].each([&](const Node& b) {
    b.only({"name", "role", "layout", "type", "rows", "cols", "copies"});
    plan.buffers.push_back({b["name"].string(), b["role"].name(parse_buffer_role), b["layout"].name(parse_layout),
                            b["type"].name(parse_type), b["rows"].integer<std::int64_t>(),
                            b["cols"].integer<std::int64_t>(), b["copies"].integer<int>()});
  });
  n["ranks"].each([&](const Node& r) {
    r.only({"signals", "queues"});
    RankPlan rank{r["signals"].integer<int>(), {}};
    r["queues"].each([&](const Node& q) {
      q.only({"engine", "workers", "tasks"});
      Queue queue{q["engine"].name(parse_engine), q["workers"].integer<int>(), {}};
      q["tasks"].each([&](const Node& t) { queue.tasks.push_back(task_of(t)); });
      rank.queues.push_back(std::move(queue));
    });
    plan.ranks.push_back(std::move(rank));
  });
  return plan;
}

}  // namespace

Plan parse_plan(std::string_view text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::invalid_input, fmt::format("plan: this is not JSON: {}", error.what()));
  }
  return plan_of(Node(json, nullptr, {}, 0));
}

}  // namespace imbrex
