// Plans from JSON. check_format checks shapes and indices.
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

std::vector<Store> stores_of(const plan::Node& n) {
  std::vector<Store> stores;
  n.each([&](const plan::Node& s) {
    stores.push_back({region_of(s, 8), s.at(6).integer<std::int64_t>(), s.at(7).integer<std::int64_t>()});
  });
  return stores;
}

Tile tile_of(const plan::Node& n) {
  n.only({"a", "b", "a_scale", "adds", "own", "stores"});
  Tile tile{region_of(n["a"]), region_of(n["b"]), regions_of(n["adds"]), n["own"].integer<int>(), {}, {}};
  if (n.has("a_scale")) tile.a_scale = region_of(n["a_scale"]);
  tile.stores = stores_of(n["stores"]);
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
  n.only({"kind", "backend", "group", "from", "to", "ranks", "codec", "send_to", "receive_from"});
  Collective collective{
      n["kind"].name(parse_collective_kind), n["group"].integer<int>(), region_of(n["from"]), region_of(n["to"]), {}};
  if (n.has("ranks")) n["ranks"].each([&](const plan::Node& rank) { collective.ranks.push_back(rank.integer<int>()); });
  if (n.has("backend")) collective.backend = n["backend"].name(parse_backend);
  if (n.has("codec")) collective.codec = n["codec"].name(parse_codec_pair);
  if (n.has("send_to")) collective.send_to = n["send_to"].integer<int>();
  if (n.has("receive_from")) collective.receive_from = n["receive_from"].integer<int>();
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

Block block_of(const plan::Node& n) {
  n.only({"kind", "reads", "args", "stores", "share", "shares"});
  Block block;
  block.kind = n["kind"].name(parse_work_kind);
  if (n.has("reads")) block.reads = regions_of(n["reads"]);
  const plan::Node args = n["args"];
  if (args.size() != block.args.size()) args.refuse(fmt::format("a list of {} numbers is needed", block.args.size()));
  for (std::size_t i = 0; i < block.args.size(); ++i) block.args[i] = args.at(i).integer<std::int64_t>();
  block.stores = stores_of(n["stores"]);
  if (n.has("share")) block.share = n["share"].integer<int>();
  if (n.has("shares")) block.shares = n["shares"].integer<int>();
  return block;
}

Task task_of(const plan::Node& n) {
  n.only({"tile", "transfer", "reduction", "collective", "product", "block", "waits", "posts", "mate"});
  Task task;
  const int kinds =
      n.has("tile") + n.has("transfer") + n.has("reduction") + n.has("collective") + n.has("product") + n.has("block");
  if (kinds != 1) n.refuse("a task is one of tile, transfer, reduction, collective, product, block");
  if (n.has("tile"))
    task.work = tile_of(n["tile"]);
  else if (n.has("transfer"))
    task.work = transfer_of(n["transfer"]);
  else if (n.has("reduction"))
    task.work = reduction_of(n["reduction"]);
  else if (n.has("product"))
    task.work = product_of(n["product"]);
  else if (n.has("block"))
    task.work = block_of(n["block"]);
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

Plan plan_of(const plan::Node& n) {
  n.only({"imbrex_plan", "problem", "strategy", "knobs", "signal_copies", "buffers", "ranks"});
  const int version = n["imbrex_plan"].integer<int>();
  if (version != plan::plan_format_version)
    n["imbrex_plan"].refuse(
        fmt::format("format {} is not known; this library reads format {}", version, plan::plan_format_version));
  Plan plan;
  plan.problem = plan::problem_of(n["problem"]);
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
