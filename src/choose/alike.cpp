#include "choose/alike.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/ceil_div.hpp"
#include "choose/kernel_tiles.hpp"
#include "choose/quick_times.hpp"
#include "machine/rates.hpp"
#include "plan/problem.hpp"

namespace imbrex::choose {
namespace {

// Ratios of sizes beyond which a record tells nothing. Few rows are all alike, since a tile has more, and so are many.
constexpr double far_in_m = 4, far_elsewhere = 8;
constexpr std::int64_t few_rows = 64, many_rows = 16384;
// By which a plan's advantage is lessened for each e-fold of distance: its knobs suit another problem.
constexpr double doubt = 0.08;
// A plan of other GPUs in this one's best tile, as a distance; and one for rows that are loaded at another rate.
constexpr double own_tile_doubt = 0.1, unlike_rows = 0.5;
// By which copies in parts must be faster, by the cost model.
constexpr double finer_gain = 0.03;
// Imbrex' own collectives after a product: where they were found fastest for problems near, they are as fast as the
// library's at least.
constexpr std::int64_t measured_own_rows = 1024;  // that tables have Imbrex' own collectives for
constexpr double own_at_worst = 0.995;

double log_ratio(std::int64_t x, std::int64_t y) {
  return std::abs(std::log(static_cast<double>(x) / static_cast<double>(y)));
}

bool is_measured(const records::Record& record, const Problem& problem) {
  const Problem& of = record.problem;
  if (of.m != problem.m || of.n != problem.n || of.k != problem.k || of.op != problem.op) return false;
  Problem p = plan::without_gaps(problem);
  p.bias = record.problem.bias;          // costs little
  p.b_layout = record.problem.b_layout;  // told of the one, it serves the other
  return p == record.problem;
}

// Their sizes and numbers of ranks aside.
bool are_of_a_kind(const Problem& x, const Problem& y) { return x.op == y.op && size_of(x.type) == size_of(y.type); }

// The nearest number of ranks, as a ratio, and of two the larger, of which there are records of the problem's kind; its
// own if there are none.
template <typename F>
int nearest_ranks(const std::vector<records::Record>& records, const Problem& problem, F&& counts) {
  int best = problem.ranks;
  double least = std::numeric_limits<double>::infinity();
  for (const records::Record& r : records) {
    if (!are_of_a_kind(r.problem, problem) || !counts(r)) continue;
    const double away = log_ratio(r.problem.ranks, problem.ranks);
    if (away > least || (away == least && r.problem.ranks <= best)) continue;
    best = r.problem.ranks;
    least = away;
  }
  return best;
}

// A problem of so many ranks, of which each multiplies the same. It sends nearly as much, too.
Problem among(const Problem& of, int ranks) {
  Problem problem = plan::without_gaps(of);
  const auto& [splits_m, splits_n, splits_k] = problem::descriptor_of(problem.op).splits;
  if (splits_n) problem.n = problem.n / problem.ranks * ranks;
  if (splits_k) problem.k = problem.k / problem.ranks * ranks;
  problem.ranks = ranks;
  return problem;
}

// None: another kind of problem, or too far, unless `anywhere` is near enough.
std::optional<double> distance_to(const records::Record& record, const Problem& problem, bool anywhere) {
  const Problem& p = record.problem;
  if (!are_of_a_kind(p, problem) || p.ranks != problem.ranks) return std::nullopt;
  const auto rows = [](std::int64_t m) { return std::clamp(m, few_rows, many_rows); };
  const double in_n = log_ratio(p.n, problem.n), in_k = log_ratio(p.k, problem.k);
  double in_m = log_ratio(rows(p.m), rows(problem.m));
  const bool far = in_m > std::log(far_in_m) || in_n > std::log(far_elsewhere) || in_k > std::log(far_elsewhere);
  if (far && !anywhere) return std::nullopt;
  if (record.m_low <= problem.m && problem.m <= record.m_high) in_m = 0;
  // The problem's own type and kind of scales are better than their like.
  const bool own = p.type == problem.type && p.scales == problem.scales;
  return 2 * in_m + in_n + in_k + (own ? 0 : 0.1);
}

// Whether SMs load the rows of both operands at their full rate, as in nearly all records.
bool are_rows_aligned(const Problem& problem, const Machine& machine) {
  const RankShapes shapes = shapes_of(problem);
  const double rate = machine.sm_memory_bandwidth;
  return machine::load_rate(machine, plan::pitch_of_a(problem, shapes)) == rate &&
         machine::load_rate(machine, plan::pitch_of_b(problem, shapes)) == rate;
}

// Kinds of plans, for whose times the analytical cost model errs alike.
enum Kind : std::uint8_t { fused, own_collectives, by_library, kinds };

Kind kind_of(const plan::Candidate& candidate) {
  if (candidate.strategy == Strategy::fused) return fused;
  return candidate.knobs.transport == Transport::store ? own_collectives : by_library;
}

// Another problem's plan, except what depends on the number of tiles. None: it was fast because few tiles shared K, or
// there are more rows than suit it.
std::optional<plan::Candidate> suited(plan::Candidate candidate, const Problem& problem, const Machine& machine,
                                      bool hopper) {
  if (kind_of(candidate) == own_collectives && !may_suit_own_collectives(problem)) return std::nullopt;
  Knobs& k = candidate.knobs;
  if (k.partial != Type::fp32) k.partial = output_type(problem.type);
  if (candidate.strategy != Strategy::fused) {
    k.library_tile = 0, k.library_parts = 1;  // the record's are for another product
    return candidate;
  }
  // The record may be of another kind of scales; of those a tensor, a tile has one of A.
  if (problem.op == Operator::all_gather_gemm && problem.scales == Scales::tensor) k.span_shards = false;
  if (k.cluster_k > 1 && fused_tiles(problem, k) > static_cast<std::int64_t>(machine.sms.value) / 2)
    return std::nullopt;
  k = with_kernel_tile(k, problem.type, hopper);
  // Whether pairs of tiles come out even, the executor sees.
  if (k.cluster_k == 1 && has_kernel_tile(problem.type, hopper, k.tile_m, k.tile_n, 1)) k.cluster = 0;
  return candidate;
}

struct Near {
  plan::Candidate candidate;
  double distance;
};

// Keeps a few plans, each once, by increasing distance: what they take is worked out for each.
void put_nearest(std::vector<Near>& nears, const Near& near) {
  constexpr std::size_t most = 16;
  const auto same = [&](const Near& other) {
    return other.candidate.strategy == near.candidate.strategy && other.candidate.knobs == near.candidate.knobs;
  };
  if (const auto known = std::find_if(nears.begin(), nears.end(), same); known != nears.end()) {
    if (known->distance <= near.distance) return;
    nears.erase(known);
  }
  const auto farther = [&](const Near& other) { return other.distance > near.distance; };
  nears.insert(std::find_if(nears.begin(), nears.end(), farther), near);
  if (nears.size() > most) nears.pop_back();
}

// A shard whose copy takes longer than the product that it hides behind is better copied, and waited for, in parts: of
// its rows, or, where all tiles run at once, of its columns. Records have shards that are copied whole.
void add_finer_copies(const Problem& problem, const Machine& machine, std::vector<Near>& nears) {
  if (problem.op != Operator::all_gather_gemm || problem.ranks == 1) return;
  const std::int64_t shard = problem.m / problem.ranks;
  for (std::size_t i = 0, count = nears.size(); i < count; ++i) {
    const plan::Candidate whole = nears[i].candidate;
    const Knobs& knobs = whole.knobs;
    if (whole.strategy != Strategy::fused || knobs.transport != Transport::push || knobs.comm_rows > 0 ||
        knobs.span_shards)
      continue;
    for (const auto& [pieces, slices] : {std::pair{2, 1}, {4, 1}, {8, 1}, {1, 2}, {1, 4}}) {
      plan::Candidate finer = whole;
      // Whole tiles, lest one waits for two copies.
      if (pieces > 1)
        finer.knobs.comm_rows = base::ceil_div(base::ceil_div(shard, pieces), knobs.tile_m) * knobs.tile_m;
      finer.knobs.k_slices = std::max(slices, knobs.k_slices);
      if (finer.knobs.comm_rows >= shard || finer.knobs == knobs) continue;
      if (quick_seconds(problem, finer, machine) < (1 - finer_gain) * quick_seconds(problem, whole, machine))
        nears.push_back({finer, nears[i].distance});
    }
  }
}

}  // namespace

bool copies_between_ranks(const plan::Candidate& c) {
  return c.strategy == Strategy::fused && c.knobs.transport != Transport::store;
}

KnownPlans::KnownPlans(const records::Records& records, const Machine& machine) : records_(&records) {
  for (const records::Record& r : records.list) {
    const double ratio =
        quick_seconds(r.problem, r.candidate, machine) / quick_seconds(r.problem, library_sequence(r.problem), machine);
    errors_.push_back(std::log(r.seconds / r.sequential_seconds / ratio));
    aligned_.push_back(are_rows_aligned(r.problem, machine));
  }
}

std::optional<plan::Candidate> measured_plan(const records::Records& records, const Problem& problem,
                                             std::optional<Strategy> strategy, bool copies) {
  const records::Record* measured = nullptr;
  for (const records::Record& r : records.list)
    if ((copies || !copies_between_ranks(r.candidate)) &&
        strategy.value_or(r.candidate.strategy) == r.candidate.strategy && is_measured(r, problem) &&
        (measured == nullptr ||
         (measured->problem.b_layout != problem.b_layout && r.problem.b_layout == problem.b_layout)))
      measured = &r;
  return measured != nullptr ? std::optional(measured->candidate) : std::nullopt;
}

std::optional<plan::Candidate> with_best_tile(plan::Candidate candidate, const Problem& problem, const Machine& machine,
                                              bool hopper) {
  const Extent best = best_tile(problem, machine);
  Knobs& k = candidate.knobs;
  if (candidate.strategy != Strategy::fused || k.cluster_k > 1 || (k.tile_m == best.rows && k.tile_n == best.cols) ||
      !has_kernel_tile(problem.type, hopper, best.rows, best.cols))
    return std::nullopt;
  k.tile_m = best.rows, k.tile_n = best.cols, k.cluster = 0;
  return candidate;
}

const Expected* best_of(const std::vector<Expected>& list) {
  const Expected *best = nullptr, *baseline = nullptr;
  for (const Expected& e : list) {
    if (e.baseline)
      baseline = &e;
    else if (best == nullptr || e.doubted < best->doubted)
      best = &e;
  }
  return best == nullptr || (baseline != nullptr && best->time > baseline->time) ? baseline : best;
}

std::vector<Expected> plans_alike(const KnownPlans& known, const Problem& problem, std::optional<Strategy> strategy,
                                  const Machine& machine, bool hopper, bool other_ranks, bool copies, bool lent) {
  const auto counts = [&](const records::Record& r) { return copies || !copies_between_ranks(r.candidate); };
  const auto eligible = [&](const records::Record& r) {
    return strategy.value_or(r.candidate.strategy) == r.candidate.strategy;
  };
  std::vector<Near> nears;
  const bool aligned = are_rows_aligned(problem, machine);
  double error[kinds] = {}, weight[kinds] = {};
  // Where there is one rank, nothing travels.
  const bool borrows = other_ranks && problem.ranks > 1;
  const Problem like = borrows ? among(problem, nearest_ranks(known.list(), problem, counts)) : problem;
  const bool borrowed = like.ranks != problem.ranks;
  bool has_own = false, told_of_rows = false;
  for (std::size_t i = 0; i < known.list().size(); ++i) {
    const records::Record& r = known.list()[i];
    if (!counts(r)) continue;
    has_own |= kind_of(r.candidate) == own_collectives && r.problem.op == problem.op && r.problem.ranks == like.ranks;
    std::optional<double> distance = distance_to(r, like, borrowed);
    if (!distance || !eligible(r)) continue;
    if (known.aligned(i) == aligned)
      told_of_rows = true;
    else
      *distance += unlike_rows;
    const double w = std::exp(-*distance);
    const Kind kind = kind_of(r.candidate);
    error[kind] += w * known.error(i);
    weight[kind] += w;
    const auto candidate = suited(r.candidate, problem, machine, hopper);
    if (!candidate) continue;
    put_nearest(nears, {*candidate, *distance});
  }
  // Records of another card, or none of rows that are loaded so, tell of no tile: the cost model may know a better one.
  if (lent || (!aligned && !told_of_rows))
    for (const Near& near : std::vector<Near>(nears))
      if (const auto other = with_best_tile(near.candidate, problem, machine, hopper))
        put_nearest(nears, {*other, near.distance + own_tile_doubt});
  std::vector<Expected> list;
  const double library = quick_seconds(problem, library_sequence(problem), machine);
  add_finer_copies(problem, machine, nears);
  for (const Near& near : nears) {
    const Kind kind = kind_of(near.candidate);
    double time = quick_seconds(problem, near.candidate, machine) / library * std::exp(error[kind] / weight[kind]);
    if (kind == own_collectives) time = std::min(time, own_at_worst);
    list.push_back({near.candidate, time, kind == own_collectives ? time : time * (1 + doubt * near.distance)});
  }
  if (strategy || (nears.empty() && !borrowed)) return list;
  list.push_back({library_sequence(problem), 1, 1, true});
  // The table knows it of few rows, the machine of many.
  if (problem.m <= measured_own_rows ? has_own && may_suit_own_collectives(problem)
                                     : own_collective_is_faster(problem, machine)) {
    Expected& baseline = list.back();
    baseline.candidate.knobs.transport = Transport::store;
    if (problem.m > measured_own_rows)
      baseline.time = baseline.doubted = std::min(1.0, quick_seconds(problem, baseline.candidate, machine) / library);
  }
  return list;
}

std::optional<plan::Candidate> choose_alike(const records::Records& records, const Problem& problem,
                                            std::optional<Strategy> strategy, const Machine& machine, bool hopper,
                                            bool other_ranks) {
  if (auto measured = measured_plan(records, problem, strategy)) return measured;
  const std::vector<Expected> list =
      plans_alike(KnownPlans(records, machine), problem, strategy, machine, hopper, other_ranks);
  const Expected* best = best_of(list);
  return best != nullptr ? std::optional(best->candidate) : std::nullopt;
}

}  // namespace imbrex::choose
