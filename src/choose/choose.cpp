#include "choose/choose.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "choose/signaled_times.hpp"
#include "choose/strategies.hpp"
#include "execute/peer_access.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/registry.hpp"
#include "plan/strategies/strategies.hpp"

namespace imbrex::choose {
namespace {

std::int64_t tiles(const Extent& product, std::int64_t tile_m, std::int64_t tile_n) {
  return base::ceil_div(product.rows, tile_m) * base::ceil_div(product.cols, tile_n);
}

constexpr std::int64_t besides = 512;  // a tile's begin and end, in columns of A: what is not hidden behind others

// The time of a product of so many tiles, each cut along K, in that of a column of A: whole waves of the workers.
double wave_time(std::int64_t tiles, std::int64_t workers, std::int64_t depth, std::int64_t parts) {
  return static_cast<double>(base::ceil_div(tiles * parts, workers)) * static_cast<double>(depth / parts + besides);
}

// A tile shape of the machine's, and its split-K.
struct Cut {
  std::int64_t tile_m = 0, tile_n = 0;
  int parts = 1;
};

// The one that computes the product in the least time if all workers start together: whole waves, each as long as its
// largest tile. Where that is a wave at most, what tiles load may take longer than that, and the next best one is worth
// a prediction, too, which costs little then.
std::vector<Cut> best_cuts(const Problem& problem, const Machine& machine, bool split) {
  const RankShapes shapes = shapes_of(problem);
  const auto workers = static_cast<std::int64_t>(machine.sms);
  std::vector<std::pair<double, Cut>> cuts;
  for (const TileRate& t : machine.tiles) {
    // The kernels' tiles for e4m3, whose accumulators take twice the registers, end at 128 columns.
    if (problem.type == Type::e4m3 && t.tile_n > 128) continue;
    const std::int64_t count = tiles(shapes.product, t.tile_m, t.tile_n);
    const int parts = split ? parts_of_k(count, workers, shapes.depth) : 1;
    const double time =
        wave_time(count, workers, shapes.depth, parts) * static_cast<double>(t.tile_m * t.tile_n) / t.efficiency;
    cuts.push_back({time, {t.tile_m, t.tile_n, parts}});
  }
  if (cuts.empty()) return {{machine.tiles.front().tile_m, machine.tiles.front().tile_n, 1}};
  std::stable_sort(cuts.begin(), cuts.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<Cut> best{cuts.front().second};
  const bool few = tiles(shapes.product, best.front().tile_m, best.front().tile_n) * best.front().parts <= workers;
  if (few && cuts.size() > 1) best.push_back(cuts[1].second);
  return best;
}

Knobs cut_as(Knobs knobs, const Cut& cut) {
  knobs.tile_m = cut.tile_m;
  knobs.tile_n = cut.tile_n;
  knobs.split_k = cut.parts;
  return knobs;
}

void add_fused(std::vector<plan::Candidate>& list, const Problem& problem, const Knobs& base) {
  const auto add = [&](auto&& change) {
    plan::Candidate c{Strategy::fused, base};
    change(c.knobs);
    list.push_back(c);
  };
  if (problem.op == Operator::all_gather_gemm) {
    const std::int64_t shard = problem.m / problem.ranks;
    for (std::int64_t pieces : {1, 2, 4})
      if (pieces == 1 || shard / pieces >= base.tile_m)
        add([&](Knobs& k) { k.transport = Transport::push, k.comm_rows = base::ceil_div(shard, pieces); });
    if (shard >= base.tile_m || problem.scales == Scales::tensor) return;
    add([](Knobs& k) { k.transport = Transport::push, k.span_shards = true; });
    add([](Knobs& k) {
      k.transport = Transport::store, k.span_shards = true, k.order = TileOrder::column_major, k.k_slices = 4;
    });
    return;
  }
  if (problem.op != Operator::gemm_all_reduce && problem.m / problem.ranks < base.tile_m)
    add([](Knobs& k) { k.transport = Transport::store, k.span_shards = true, k.reducer = Reducer::tail; });
  add([](Knobs& k) { k.transport = Transport::store; });
  for (int shift : {0, 8})
    add([&](Knobs& k) { k.transport = Transport::store, k.order = TileOrder::column_major, k.own_shift = shift; });
  // A single step takes a workspace of the whole product for every rank, which its latency is worth while there are few
  // rows.
  if (problem.op == Operator::gemm_all_reduce && problem.m <= 512)
    add([](Knobs& k) { k.transport = Transport::store, k.one_shot = true, k.reducer = Reducer::tail; });
}

// Groups of rows of tiles; and of tiles where these may be any, which is worth putting them back where few rows of
// tiles make few groups.
void add_signaled(std::vector<plan::Candidate>& list, const Problem& problem, const Machine& machine, Knobs knobs) {
  const auto sms = static_cast<int>(std::min(machine.collective_sms.value, machine.sms.value - 1));
  knobs.kept_free = std::max(sms, 0);
  const auto add = [&] {
    list.push_back({Strategy::signaled, knobs});
    list.back().knobs.groups = choose_groups(problem, knobs, machine);
  };
  add();
  if (problem.op != Operator::gemm_all_reduce || problem.ranks == 1) return;
  if (knobs.codec && problem.n > knobs.tile_n && problem.n % knobs.tile_n != 0) return;
  knobs.packed = true;
  add();
}

}  // namespace

void add_fused(const Search& search, std::vector<plan::Candidate>& list) {
  for (const Knobs& knobs : search.tiles) add_fused(list, search.problem, knobs);
  for (const Cut& cut : best_cuts(search.problem, search.machine, true))
    if (cut.parts > 1) add_fused(list, search.problem, cut_as(search.tiles.front(), cut));
}

void add_sequential(const Search& search, std::vector<plan::Candidate>& list) {
  list.push_back({Strategy::sequential, search.tiles.front()});
  // Asked for, it is what everybody has.
  if (search.asked || list.back().knobs.codec || search.unreachable || !may_suit_own_collectives(search.problem) ||
      search.machine.own_one_step.points.empty())
    return;
  list.push_back(list.back());
  list.back().knobs.transport = Transport::store;
}

void add_decomposed(const Search& search, std::vector<plan::Candidate>& list) {
  for (const int chunks : usual_chunks(search.problem.op)) {
    list.push_back({Strategy::decomposed, search.tiles.front()});
    list.back().knobs.chunks = chunks;
  }
}

void add_signaled(const Search& search, std::vector<plan::Candidate>& list) {
  for (const Knobs& knobs : search.tiles) add_signaled(list, search.problem, search.machine, knobs);
}

plan::Candidate library_sequence(const Problem& problem) {
  plan::Candidate sequence;
  sequence.knobs.partial = output_type(problem.type);
  return sequence;
}

namespace {

// Operators without products: what each strategy does for a few sizes of its parts, where it takes the problem.
std::vector<plan::Candidate> plain_candidates(const Problem& problem, std::optional<Strategy> strategy,
                                              const std::optional<Knobs>& knobs, bool unreachable) {
  std::vector<plan::Candidate> list;
  std::string why;
  const auto add = [&](Strategy s, const Knobs& k) {
    try {
      plan::validate_knobs(problem, s, k);
      static_cast<void>(make_plan(problem, s, k));
      list.push_back({s, k});
    } catch (const Error& error) {
      why = error.what();
    }
  };
  for (const StrategyChoice& choice : strategy_choices()) {
    if (strategy ? *strategy != choice.strategy : unreachable && plan::entry_of(choice.strategy).reaches_peers)
      continue;
    if (knobs) {
      add(choice.strategy, *knobs);
      continue;
    }
    for (const int parts : {2, 4, 8}) {
      Knobs own;
      own.tile_m = base::ceil_div(problem.m, std::int64_t{problem.ranks} * parts);
      own.chunks = parts;
      add(choice.strategy, own);
      if (choice.strategy == Strategy::sequential) break;
    }
  }
  IMBREX_EXPECTS(!list.empty(), "{}", why);
  return list;
}

}  // namespace

std::vector<plan::Candidate> candidates(const Problem& problem, const Machine& machine,
                                        std::optional<Strategy> strategy, const std::optional<Knobs>& knobs,
                                        const std::optional<CodecPair>& codec) {
  if (!problem::multiplies(problem))
    return plain_candidates(problem, strategy, knobs, problem.ranks > 1 && !execute::has_peer_access());
  std::vector<plan::Candidate> list;
  Search search{problem, machine, strategy.has_value(), problem.ranks > 1 && !execute::has_peer_access(), {}};
  const bool outputs = !plan::has_one_output(problem);
  if (!knobs) {
    Knobs base;
    base.partial = output_type(problem.type);
    base.codec = codec;
    for (const Cut& cut : best_cuts(problem, machine, false)) search.tiles.push_back(cut_as(base, cut));
  }
  for (const StrategyChoice& choice : strategy_choices()) {
    if (strategy && *strategy != choice.strategy) continue;
    const plan::StrategyEntry& entry = plan::entry_of(choice.strategy);
    // Asked for, a strategy that does not take the problem is refused by name.
    if (!strategy && entry.one_output && outputs) continue;
    if (knobs) {
      // Neither several hosts nor codes are for plans that reach peers.
      const bool library = knobs->nodes > 1 || ((knobs->codec || search.unreachable) && !strategy);
      if (entry.reaches_peers && library) continue;
      // A ring is NCCL's.
      const bool ring = choice.strategy == Strategy::decomposed && problem.op == Operator::all_gather_gemm;
      if (ring && knobs->transport == Transport::store && !strategy) continue;
      plan::validate_knobs(problem, choice.strategy, *knobs);
      list.push_back({choice.strategy, *knobs});
    } else if (strategy ||
               (!(entry.reaches_peers && (codec || search.unreachable)) && !(choice.hides && problem.ranks == 1))) {
      choice.add(search, list);
    }
  }
  return list;
}

bool may_suit_own_collectives(const Problem& problem) {
  return problem.m <= 1024 && problem.ranks <= most_own_ranks &&
         !(problem.type == Type::e4m3 && problem.op == Operator::all_gather_gemm);
}

int parts_of_k(std::int64_t tiles, std::int64_t workers, std::int64_t depth) {
  int best = 1;
  for (int parts = 2; parts <= 4 && depth / parts >= besides; ++parts)
    if (wave_time(tiles, workers, depth, parts) < wave_time(tiles, workers, depth, best)) best = parts;
  return wave_time(tiles, workers, depth, best) < 0.95 * wave_time(tiles, workers, depth, 1) ? best : 1;
}

Plan choose(const Problem& problem, const std::vector<plan::Candidate>& candidates,
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

}  // namespace imbrex::choose
