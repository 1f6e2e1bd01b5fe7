#include "choose/choose.hpp"

#include <algorithm>
#include <memory>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "choose/cost_model.hpp"
#include "choose/signaled_times.hpp"
#include "choose/strategies.hpp"
#include "execute/peer_access.hpp"
#include "imbrex/advanced/execute.hpp"
#include "machine/rates.hpp"
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

// The one that computes the product in the least time if all workers start together: whole waves, each as long as its
// largest tile. Where that is a wave at most, what tiles load may take longer than that, and the next best one is worth
// a prediction, too, which costs little then.
std::vector<Cut> best_cuts(const Problem& problem, const Machine& machine, bool split) {
  const RankShapes shapes = shapes_of(problem);
  const auto workers = static_cast<std::int64_t>(machine.sms);
  std::vector<std::pair<double, Cut>> cuts;
  // Power that a shape draws tells once the product takes long enough: about so long.
  const double busy = 2 * static_cast<double>(shapes.product.rows) * static_cast<double>(shapes.product.cols) *
                      static_cast<double>(shapes.depth) /
                      (sm_flops(machine, problem.type) * static_cast<double>(workers));
  for (const TileRate& t : machine.tiles) {
    // The kernels' tiles for e4m3, whose accumulators take twice the registers, end at 128 columns.
    if (problem.type == Type::e4m3 && t.tile_n > 128) continue;
    const std::int64_t count = tiles(shapes.product, t.tile_m, t.tile_n);
    const int parts = split ? parts_of_k(count, workers, shapes.depth) : 1;
    const double time =
        wave_time(count, workers, shapes.depth, parts) *
        tile_seconds(problem, shapes, machine, t, static_cast<double>(t.tile_m), static_cast<double>(t.tile_n), 1) *
        (t.sustained > 0 ? machine::mean_heat(machine, {}, busy) / machine::mean_heat(machine, t, busy) : 1);
    cuts.push_back({time, {count, t.tile_m, t.tile_n, parts}});
  }
  if (cuts.empty()) return {{0, machine.tiles.front().tile_m, machine.tiles.front().tile_n, 1}};
  std::stable_sort(cuts.begin(), cuts.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<Cut> best{cuts.front().second};
  const bool few = best.front().tiles * best.front().parts <= workers;
  if (few && cuts.size() > 1) best.push_back(cuts[1].second);
  return best;
}

Knobs cut_as(Knobs knobs, const Cut& cut) {
  knobs.tile_m = cut.tile_m;
  knobs.tile_n = cut.tile_n;
  knobs.split_k = static_cast<int>(cut.parts);
  return knobs;
}

void add_fused_orders(std::vector<plan::Candidate>& list, const Problem& problem, const Knobs& base) {
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
void add_signaled_groups(std::vector<plan::Candidate>& list, const Problem& problem, const Machine& machine,
                         Knobs knobs) {
  const auto sms = static_cast<int>(std::min(machine.collective_sms.value, machine.sms.value - 1));
  knobs.kept_free = std::max(sms, 0);
  const auto add = [&] {
    list.push_back({Strategy::signaled, knobs});
    set_groups(list.back().knobs, problem, machine);
  };
  add();
  if (problem.op != Operator::gemm_all_reduce || problem.ranks == 1) return;
  if (knobs.codec && problem.n > knobs.tile_n && problem.n % knobs.tile_n != 0) return;
  knobs.packed = true;
  add();
}

}  // namespace

void add_fused(const Search& search, std::vector<plan::Candidate>& list) {
  for (const Knobs& knobs : search.tiles) add_fused_orders(list, search.problem, knobs);
  for (const Cut& cut : best_cuts(search.problem, search.machine, true))
    if (cut.parts > 1) add_fused_orders(list, search.problem, cut_as(search.tiles.front(), cut));
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
  for (const Knobs& knobs : search.tiles) add_signaled_groups(list, search.problem, search.machine, knobs);
}

plan::Candidate library_sequence(const Problem& problem) {
  plan::Candidate sequence;
  sequence.knobs.partial = output_type(problem.type);
  return sequence;
}

namespace {

// What a strategy's candidates are with some knobs given: those that have them anyway, as before; or else all with
// these knobs, except what breaks a rule; or else what Knobs has where nothing is given.
void add_given(std::vector<plan::Candidate>& list, const Search& search, const StrategyChoice& choice,
               const plan::GivenKnobs& given) {
  std::vector<plan::Candidate> free;
  choice.add(search, free);
  const std::size_t before = list.size();
  std::copy_if(free.begin(), free.end(), std::back_inserter(list),
               [&](const plan::Candidate& c) { return given.in(c.knobs); });
  if (list.size() > before) return;
  // The best shapes that have them.
  Machine narrow = search.machine;
  std::erase_if(narrow.tiles, [&](const TileRate& t) {
    return (given.has("tile_m") && t.tile_m != given.values().tile_m) ||
           (given.has("tile_n") && t.tile_n != given.values().tile_n);
  });
  if (!narrow.tiles.empty() && narrow.tiles.size() < search.machine.tiles.size()) {
    Search others{search.problem, narrow, search.asked, search.unreachable, {}};
    for (const Cut& cut : best_cuts(search.problem, narrow, false))
      others.tiles.push_back(cut_as(search.tiles.front(), cut));
    free.clear();
    choice.add(others, free);
  }
  for (const plan::Candidate& c : free) {
    const plan::Candidate with = with_given(search.problem, c, given, search.machine);
    try {
      plan::validate_knobs(search.problem, with.strategy, with.knobs);
    } catch (const Error&) {
      continue;
    }
    if (std::none_of(list.begin() + static_cast<std::ptrdiff_t>(before), list.end(),
                     [&](const plan::Candidate& other) { return other.knobs == with.knobs; }))
      list.push_back(with);
  }
  if (list.size() > before) return;
  Knobs plain;
  plain.partial = output_type(search.problem.type);
  plain = given.over(plain);
  plan::validate_knobs(search.problem, choice.strategy, plain);
  list.push_back({choice.strategy, plain});
}

// Operators without products: what each strategy does for a few sizes of its parts, where it takes the problem.
std::vector<plan::Candidate> plain_candidates(const Problem& problem, std::optional<Strategy> strategy,
                                              const plan::GivenKnobs& given, bool unreachable) {
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
    std::vector<Knobs> all;
    for (const int parts : {2, 4, 8}) {
      Knobs own;
      own.tile_m = base::ceil_div(problem.m, std::int64_t{problem.ranks} * parts);
      // Stores go slice by slice, of whatever number of chunks.
      if (choice.strategy != Strategy::fused || given.values().nodes > 1) own.chunks = parts;
      all.push_back(own);
      if (choice.strategy == Strategy::sequential) break;
    }
    const bool some = std::any_of(all.begin(), all.end(), [&](const Knobs& k) { return given.in(k); });
    std::vector<Knobs> tried;
    const std::size_t before = list.size();
    for (const Knobs& own : all) {
      if (some && !given.in(own)) continue;
      const Knobs k = given.over(own);
      if (std::find(tried.begin(), tried.end(), k) == tried.end()) add(choice.strategy, tried.emplace_back(k));
    }
    if (given && list.size() == before) add(choice.strategy, given.over(Knobs{}));
  }
  IMBREX_EXPECTS(!list.empty(), "{}", why);
  return list;
}

}  // namespace

plan::Candidate with_given(const Problem& problem, plan::Candidate candidate, const plan::GivenKnobs& given,
                           const Machine& machine) {
  if (given.in(candidate.knobs)) return candidate;
  candidate.knobs = given.over(candidate.knobs);
  if (candidate.strategy != Strategy::signaled || problem.ranks == 1 || given.has("groups")) return candidate;
  // So many chunks are groups as equal as can be.
  if (given.has("chunks"))
    candidate.knobs.groups = {};
  else
    set_groups(candidate.knobs, problem, machine);
  return candidate;
}

std::vector<plan::Candidate> candidates(const Problem& problem, const Machine& machine,
                                        std::optional<Strategy> strategy, const plan::GivenKnobs& knobs,
                                        const std::optional<CodecPair>& given_codec) {
  std::vector<plan::Candidate> list;
  const bool unreachable =
      problem.ranks > 1 && (!execute::has_peer_access() || !machine::all_reach(machine, problem.ranks));
  Search search{problem, machine, strategy.has_value(), unreachable, {}};
  if (!problem::multiplies(problem)) return plain_candidates(problem, strategy, knobs, unreachable);
  const bool outputs = !plan::has_one_output(problem);
  const std::optional<CodecPair> codec = knobs.has("codec") ? knobs.values().codec : given_codec;
  Knobs base;
  base.partial = output_type(problem.type);
  base.codec = codec;
  for (const Cut& cut : best_cuts(problem, machine, false)) search.tiles.push_back(cut_as(base, cut));
  for (const StrategyChoice& choice : strategy_choices()) {
    if (strategy && *strategy != choice.strategy) continue;
    const plan::StrategyEntry& entry = plan::entry_of(choice.strategy);
    // Asked for, a strategy that does not take the problem is refused by name.
    if (!strategy && entry.one_output && outputs) continue;
    if (!strategy && entry.reaches_peers && (codec || search.unreachable)) continue;
    // Stores end at the host.
    if (entry.reaches_peers && knobs.values().nodes > 1) continue;
    // A ring is NCCL's.
    const bool ring = choice.strategy == Strategy::decomposed && problem.op == Operator::all_gather_gemm;
    if (ring && knobs.values().transport == Transport::store && !strategy) continue;
    if (knobs.all()) {
      plan::validate_knobs(problem, choice.strategy, knobs.values());
      list.push_back({choice.strategy, knobs.values()});
    } else if (strategy || !(choice.hides && problem.ranks == 1)) {
      if (knobs)
        add_given(list, search, choice, knobs);
      else
        choice.add(search, list);
    }
  }
  return list;
}

bool may_suit_own_collectives(const Problem& problem) {
  return problem.ranks <= most_own_ranks && !(problem.type == Type::e4m3 && problem.op == Operator::all_gather_gemm);
}

bool own_collective_is_faster(const Problem& problem, const Machine& machine) {
  if (problem.ranks == 1 || !may_suit_own_collectives(problem) || machine.own_one_step.points.empty()) return false;
  const auto seconds = [&](bool own) {
    return machine::collective_seconds(machine, curve_of(problem.op), own, problem.ranks, plan::wire_bytes(problem));
  };
  return seconds(true) < seconds(false);
}

int parts_of_k(std::int64_t tiles, std::int64_t workers, std::int64_t depth) {
  int best = 1;
  for (int parts = 2; parts <= 4 && depth / parts >= besides; ++parts)
    if (wave_time(tiles, workers, depth, parts) < wave_time(tiles, workers, depth, best)) best = parts;
  return wave_time(tiles, workers, depth, best) < 0.95 * wave_time(tiles, workers, depth, 1) ? best : 1;
}

Extent best_tile(const Problem& problem, const Machine& machine) {
  const Cut cut = best_cuts(problem, machine, false).front();
  return {cut.tile_m, cut.tile_n};
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

Plan choose(const Problem& problem, const Machine& machine, std::optional<Strategy> strategy,
            const plan::GivenKnobs& knobs, const std::optional<CodecPair>& codec,
            const std::function<double(const Plan&)>& cost, const std::function<void()>& begins) {
  // With a strategy, its own candidates that have the knobs are kept before all others.
  if (knobs && !knobs.all() && !strategy) {
    Plan free = choose(problem, candidates(problem, machine, {}, {}, codec), cost);
    if (knobs.in(free.knobs)) return free;
    if (begins) begins();
  }
  const std::vector<plan::Candidate> list = candidates(problem, machine, strategy, knobs, codec);
  // Says what the strategy does not take.
  if (list.empty()) plan::validate_knobs(problem, strategy.value_or(Strategy::fused), knobs.over(Knobs{}));
  IMBREX_EXPECTS(!list.empty(), "no strategy takes knob nodes = {} here", knobs.values().nodes);
  Plan plan = choose(problem, list, cost);
  const std::string refusal = execute::refusal_without_peer_access(plan, machine);
  IMBREX_EXPECTS(refusal.empty(), "{}", refusal);
  return plan;
}

std::function<double(const Plan&)> simulated_seconds(const Machine& machine) {
  return [simulator = std::shared_ptr(make_simulator(machine))](const Plan& plan) {
    return simulator->prepare(plan)->run({}).seconds;
  };
}

}  // namespace imbrex::choose
