// Plans from JSON. Shapes and indices are check_format's business.
#include <algorithm>

#include "base/json.hpp"
#include "plan/json/names.hpp"
#include "plan/json/node.hpp"
#include "plan/wave_groups.hpp"

namespace imbrex {
namespace {

Region region_of(const plan::Node& n, std::size_t fields = 6) {
  if (n.size() != fields)
    n.refuse(fmt::format("a list of {} numbers is needed: rank, buffer, row, col, rows, cols{}", fields,
                         fields > 6 ? ", row and col in the tile" : ""));
  return {n.at(0).integer<int>(),          n.at(1).integer<int>(),          n.at(2).integer<std::int64_t>(),
          n.at(3).integer<std::int64_t>(), n.at(4).integer<std::int64_t>(), n.at(5).integer<std::int64_t>()};
}

std::vector<Region> regions_of(const plan::Node& n) {
  std::vector<Region> regions;
  n.each([&](const plan::Node& r) { regions.push_back(region_of(r)); });
  return regions;
}

Tile tile_of(const plan::Node& n) {
  n.only({"a", "b", "a_scale", "adds", "own", "stores"});
  Tile tile{region_of(n["a"]), region_of(n["b"]), regions_of(n["adds"]), n["own"].integer<int>(), {}, {}};
  if (n.has("a_scale")) tile.a_scale = region_of(n["a_scale"]);
  n["stores"].each([&](const plan::Node& s) {
    tile.stores.push_back({region_of(s, 8), s.at(6).integer<std::int64_t>(), s.at(7).integer<std::int64_t>()});
  });
  return tile;
}

Transfer transfer_of(const plan::Node& n) {
  n.only({"from", "to"});
  return {region_of(n["from"]), region_of(n["to"])};
}

Reduction reduction_of(const plan::Node& n) {
  n.only({"from", "to"});
  return {regions_of(n["from"]), regions_of(n["to"])};
}

Collective collective_of(const plan::Node& n) {
  n.only({"kind", "backend", "group", "from", "to", "ranks", "codec"});
  Collective collective{
      n["kind"].name(parse_collective_kind), n["group"].integer<int>(), region_of(n["from"]), region_of(n["to"]), {}};
  if (n.has("ranks")) n["ranks"].each([&](const plan::Node& rank) { collective.ranks.push_back(rank.integer<int>()); });
  if (n.has("backend")) collective.backend = n["backend"].name(parse_backend);
  if (n.has("codec")) collective.codec = n["codec"].name(parse_codec_pair);
  return collective;
}

Product product_of(const plan::Node& n) {
  n.only({"a", "b", "to", "batch", "a_step", "to_step", "bias", "a_scale", "algorithm"});
  Product product{region_of(n["a"]), region_of(n["b"]), region_of(n["to"])};
  if (n.has("batch")) product.batch = n["batch"].integer<int>();
  if (n.has("a_step")) product.a_step = n["a_step"].integer<std::int64_t>();
  if (n.has("to_step")) product.to_step = n["to_step"].integer<std::int64_t>();
  if (n.has("bias")) product.bias = region_of(n["bias"]);
  if (n.has("a_scale")) product.a_scale = region_of(n["a_scale"]);
  if (n.has("algorithm")) {
    const plan::Node algorithm = n["algorithm"];
    if (algorithm.size() != 2) algorithm.refuse("a list of 2 is needed: tile, parts");
    product.algorithm = {algorithm.at(0).integer<int>(), algorithm.at(1).integer<int>()};
  }
  return product;
}

Task task_of(const plan::Node& n) {
  n.only({"tile", "transfer", "reduction", "collective", "product", "waits", "posts", "mate"});
  Task task;
  const int kinds = n.has("tile") + n.has("transfer") + n.has("reduction") + n.has("collective") + n.has("product");
  if (kinds != 1) n.refuse("a task is one of tile, transfer, reduction, collective, product");
  if (n.has("tile"))
    task.work = tile_of(n["tile"]);
  else if (n.has("transfer"))
    task.work = transfer_of(n["transfer"]);
  else if (n.has("reduction"))
    task.work = reduction_of(n["reduction"]);
  else if (n.has("product"))
    task.work = product_of(n["product"]);
  else
    task.work = collective_of(n["collective"]);
  n["waits"].each([&](const plan::Node& w) {
    if (w.size() != 4) w.refuse("a list of 4 is needed: signal, count, point, k_begin");
    task.waits.push_back({w.at(0).integer<int>(), w.at(1).integer<std::uint32_t>(),
                          w.at(2).name(plan::parse_wait_point), w.at(3).integer<std::int64_t>()});
  });
  n["posts"].each([&](const plan::Node& p) {
    if (p.size() != 2) p.refuse("a list of 2 is needed: rank, signal");
    task.posts.push_back({p.at(0).integer<int>(), p.at(1).integer<int>()});
  });
  if (n.has("mate")) task.mate = n["mate"].integer<int>();  // files of before had no pairs
  return task;
}

// The block of a queue that names none: files of before did not.
Extent largest_tile(const std::vector<Task>& tasks) {
  Extent largest;
  for (const Task& task : tasks)
    if (const auto* tile = std::get_if<Tile>(&task.work))
      largest = {std::max(largest.rows, tile->a.rows), std::max(largest.cols, tile->b.cols)};
  return largest;
}

std::array<std::int64_t, max_products - 1> list_of(const plan::Node& n, const char* what) {
  std::array<std::int64_t, max_products - 1> list{};
  if (n.size() < 1 || n.size() > list.size())
    n.refuse(fmt::format("a list of 1 to {} numbers is needed: {} of each further B", list.size(), what));
  for (std::size_t i = 0; i < n.size(); ++i) list[i] = n.at(i).integer<std::int64_t>();
  return list;
}

Plan plan_of(const plan::Node& n) {
  n.only({"imbrex_plan", "problem", "strategy", "knobs", "signal_copies", "buffers", "ranks"});
  const int version = n["imbrex_plan"].integer<int>();
  if (version != plan::plan_format_version)
    n["imbrex_plan"].refuse(
        fmt::format("format {} is not known; this library reads format {}", version, plan::plan_format_version));
  Plan plan;
  const plan::Node p = n["problem"];
  p.only({"op", "m", "n", "k", "ranks", "type", "bias", "scales", "b_layout", "more_n", "gathered_a", "lda", "ldb",
          "ldo", "more_ldb", "more_ldo", "packed"});
  plan.problem = {p["op"].name(parse_operator),   p["m"].integer<std::int64_t>(), p["n"].integer<std::int64_t>(),
                  p["k"].integer<std::int64_t>(), p["ranks"].integer<int>(),      p["type"].name(parse_type)};
  if (p.has("bias")) plan.problem.bias = p["bias"].boolean();
  if (p.has("scales")) plan.problem.scales = p["scales"].name(parse_scales);
  if (p.has("b_layout")) plan.problem.b_layout = p["b_layout"].name(plan::parse_layout);
  if (p.has("more_n")) plan.problem.more_n = list_of(p["more_n"], "N");
  if (p.has("gathered_a")) plan.problem.gathered_a = p["gathered_a"].boolean();
  if (p.has("lda")) plan.problem.lda = p["lda"].integer<std::int64_t>();
  if (p.has("ldb")) plan.problem.ldb = p["ldb"].integer<std::int64_t>();
  if (p.has("ldo")) plan.problem.ldo = p["ldo"].integer<std::int64_t>();
  if (p.has("more_ldb")) plan.problem.more_ldb = list_of(p["more_ldb"], "the leading dimension");
  if (p.has("more_ldo")) plan.problem.more_ldo = list_of(p["more_ldo"], "the output's leading dimension");
  if (p.has("packed")) {
    const plan::Node packed = p["packed"];
    if (packed.size() != 2) packed.refuse("a list of 2 is needed: rows, cols of a block");
    plan.problem.packed = {packed.at(0).integer<std::int64_t>(), packed.at(1).integer<std::int64_t>()};
  }
  plan.strategy = n["strategy"].name(parse_strategy);
  plan.knobs = plan::knobs_of(n["knobs"]);
  plan.signal_copies = n["signal_copies"].integer<int>();
  n["buffers"].each([&](const plan::Node& b) {
    b.only({"name", "role", "layout", "type", "rows", "cols", "copies"});
    plan.buffers.push_back({b["name"].string(), b["role"].name(plan::parse_buffer_role),
                            b["layout"].name(plan::parse_layout), b["type"].name(parse_type),
                            b["rows"].integer<std::int64_t>(), b["cols"].integer<std::int64_t>(),
                            b["copies"].integer<int>()});
  });
  n["ranks"].each([&](const plan::Node& r) {
    r.only({"signals", "queues"});
    RankPlan rank{r["signals"].integer<int>(), {}};
    r["queues"].each([&](const plan::Node& q) {
      q.only({"engine", "workers", "tile", "cluster", "kept_free", "tasks"});
      Queue queue{q["engine"].name(parse_engine), q["workers"].integer<int>()};
      if (q.has("tile")) {
        const plan::Node tile = q["tile"];
        if (tile.size() != 2) tile.refuse("a list of 2 is needed: rows, cols");
        queue.tile = {tile.at(0).integer<std::int64_t>(), tile.at(1).integer<std::int64_t>()};
      }
      if (q.has("cluster")) queue.cluster = q["cluster"].name(parse_cluster_mode);
      if (q.has("kept_free")) queue.kept_free = q["kept_free"].integer<int>();
      q["tasks"].each([&](const plan::Node& t) { queue.tasks.push_back(task_of(t)); });
      if (!q.has("tile")) queue.tile = largest_tile(queue.tasks);
      rank.queues.push_back(std::move(queue));
    });
    plan.ranks.push_back(std::move(rank));
  });
  return plan;
}

}  // namespace

static GroupSizes groups_of(const plan::Node& n) {
  std::vector<std::int64_t> sizes;
  n.each([&](const plan::Node& size) { sizes.push_back(size.integer<std::int64_t>()); });
  try {
    return plan::group_sizes(sizes);
  } catch (const Error& error) {
    n.refuse(error.what());
  }
}

Knobs plan::knobs_of(const plan::Node& n) {
  n.only({"tile_m",    "tile_n",      "cluster",  "cluster_k", "group", "order",        "transport",     "reducer",
          "comm_rows", "k_slices",    "split_k",  "chunks",    "nodes", "library_tile", "library_parts", "own_shift",
          "abreast",   "span_shards", "one_shot", "partial",   "codec", "groups",       "packed",        "kept_free"});
  Knobs k;
  k.tile_m = n["tile_m"].integer<std::int64_t>();
  k.tile_n = n["tile_n"].integer<std::int64_t>();
  k.cluster = n["cluster"].integer<int>();
  if (n.has("cluster_k")) k.cluster_k = n["cluster_k"].integer<int>();  // files of before shared no tile
  k.group = n["group"].integer<int>();
  k.order = n["order"].name(parse_tile_order);
  k.transport = n["transport"].name(parse_transport);
  k.reducer = n["reducer"].name(parse_reducer);
  k.comm_rows = n["comm_rows"].integer<std::int64_t>();
  k.k_slices = n["k_slices"].integer<int>();
  if (n.has("split_k")) k.split_k = n["split_k"].integer<int>();  // files of before had one part
  k.chunks = n["chunks"].integer<int>();
  if (n.has("nodes")) k.nodes = n["nodes"].integer<int>();  // files of before had one
  if (n.has("library_tile")) k.library_tile = n["library_tile"].integer<int>();
  if (n.has("library_parts")) k.library_parts = n["library_parts"].integer<int>();
  k.own_shift = n["own_shift"].integer<int>();
  k.abreast = n["abreast"].integer<int>();
  k.span_shards = n["span_shards"].boolean();
  k.one_shot = n["one_shot"].boolean();
  k.partial = n["partial"].name(parse_type);
  if (n.has("groups")) k.groups = groups_of(n["groups"]);
  if (n.has("packed")) k.packed = n["packed"].boolean();
  if (n.has("kept_free")) k.kept_free = n["kept_free"].integer<int>();
  if (n.has("codec")) k.codec = n["codec"].name(parse_codec_pair);
  return k;
}

Plan parse_plan(std::string_view text) {
  const nlohmann::json json = base::parse_json(text, "plan");
  return plan_of({json, "plan"});
}

}  // namespace imbrex
