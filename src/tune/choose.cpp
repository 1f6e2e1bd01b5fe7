#include "tune/choose.hpp"

#include <algorithm>
#include <limits>

namespace imbrex {
namespace {

std::int64_t tiles(const Extent& product, std::int64_t tile_m, std::int64_t tile_n) {
  return ((product.rows + tile_m - 1) / tile_m) * ((product.cols + tile_n - 1) / tile_n);
}

// The machine's tile shape that computes the product in the least time if all workers start together: whole waves, each
// as long as its largest tile.
TileRate tile_shape(const Problem& problem, const Machine& machine) {
  const Extent product = shapes_of(problem).product;
  const auto time = [&](const TileRate& t) {
    const double waves =
        static_cast<double>((tiles(product, t.tile_m, t.tile_n) + static_cast<std::int64_t>(machine.sms) - 1) /
                            static_cast<std::int64_t>(machine.sms));
    return waves * static_cast<double>(t.tile_m * t.tile_n) / t.efficiency;
  };
  // The kernels' tiles for e4m3, whose accumulators take twice the registers, end at 128 columns.
  const auto cost = [&](const TileRate& t) {
    return problem.type == Type::e4m3 && t.tile_n > 128 ? std::numeric_limits<double>::infinity() : time(t);
  };
  return *std::min_element(machine.tiles.begin(), machine.tiles.end(),
                           [&](const TileRate& x, const TileRate& y) { return cost(x) < cost(y); });
}

void add_fused(std::vector<Candidate>& list, const Problem& problem, const Knobs& base) {
  const auto add = [&](auto&& change) {
    Candidate c{Strategy::fused, base};
    change(c.knobs);
    list.push_back(c);
  };
  if (problem.op == Operator::all_gather_gemm) {
    const std::int64_t shard = problem.m / problem.ranks;
    for (std::int64_t pieces : {1, 2, 4})
      if (pieces == 1 || shard / pieces >= base.tile_m)
        add([&](Knobs& k) { k.transport = Transport::push, k.comm_rows = (shard + pieces - 1) / pieces; });
    if (shard < base.tile_m && problem.scales != Scales::tensor)
      add([](Knobs& k) { k.transport = Transport::push, k.span_shards = true; });
    return;
  }
  add([](Knobs& k) { k.transport = Transport::store; });
  for (int shift : {0, 8})
    add([&](Knobs& k) { k.transport = Transport::store, k.order = TileOrder::column_major, k.own_shift = shift; });
  if (problem.op == Operator::gemm_all_reduce)
    add([](Knobs& k) { k.transport = Transport::store, k.one_shot = true, k.reducer = Reducer::tail; });
}

}  // namespace

std::vector<Candidate> candidates(const Problem& problem, const Machine& machine, std::optional<Strategy> strategy) {
  const TileRate shape = tile_shape(problem, machine);
  Knobs base;
  base.tile_m = shape.tile_m;
  base.tile_n = shape.tile_n;
  base.partial = output_type(problem.type);
  std::vector<Candidate> list;
  const auto wanted = [&](Strategy s) { return !strategy || *strategy == s; };
  if (wanted(Strategy::fused)) {
    add_fused(list, problem, base);
    const RankShapes shapes = shapes_of(problem);
    base.split_k = parts_of_k(tiles(shapes.product, shape.tile_m, shape.tile_n), static_cast<std::int64_t>(machine.sms),
                              shapes.depth);
    if (base.split_k > 1) add_fused(list, problem, base);
    base.split_k = 1;
  }
  if (wanted(Strategy::sequential)) list.push_back({Strategy::sequential, base});
  if (wanted(Strategy::decomposed))
    for (int chunks : {2, 4}) {
      Candidate c{Strategy::decomposed, base};
      c.knobs.chunks = chunks;
      list.push_back(c);
    }
  return list;
}

int parts_of_k(std::int64_t tiles, std::int64_t workers, std::int64_t depth) {
  constexpr std::int64_t besides =
      512;  // a tile's begin and end, in columns of A: about what two warpgroups do not hide
  const auto cost = [&](std::int64_t parts) {
    return static_cast<double>((tiles * parts + workers - 1) / workers) * static_cast<double>(depth / parts + besides);
  };
  int best = 1;
  for (int parts = 2; parts <= 4 && depth / parts >= besides; ++parts)
    if (cost(parts) < cost(best)) best = parts;
  return cost(best) < 0.95 * cost(1) ? best : 1;
}

Candidate with_few_tiles(Candidate candidate) {
  if (candidate.strategy != Strategy::fused) candidate.knobs.tile_m = candidate.knobs.tile_n = std::int64_t{1} << 15;
  return candidate;
}

Plan choose(const Problem& problem, const std::vector<Candidate>& candidates,
            const std::function<double(const Plan&)>& cost) {
  Plan best = make_plan(problem, candidates.front().strategy, candidates.front().knobs);
  if (candidates.size() == 1) return best;
  double least = cost(best);
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    Plan plan = make_plan(problem, candidates[i].strategy, candidates[i].knobs);
    const double seconds = cost(plan);
    if (seconds < least) {
      least = seconds;
      best = std::move(plan);
    }
  }
  return best;
}

}  // namespace imbrex
