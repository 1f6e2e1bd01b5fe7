#include "choose/choose_gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/hash.hpp"
#include "choose/alike.hpp"
#include "choose/card.hpp"
#include "choose/kernel_tiles.hpp"
#include "choose/quick_times.hpp"
#include "choose/signaled_times.hpp"
#include "choose/strategies.hpp"
#include "collectives/cuda/wire/comm.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/tables/table_survey.hpp"
#include "execute/peer_access.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/registry.hpp"
#include "records/product_records.hpp"
#include "records/records.hpp"
#include "records/untuned.hpp"

namespace imbrex::choose {
namespace {

static_assert(most_own_ranks == static_cast<int>(cuda::max_comm_ranks));

bool are_hopper(const GpuKind& gpus) { return gpus.major == 9; }

// Several B are measured and predicted as one of all their columns, whose tiles are as many except those at each B's
// end.
Problem as_one_product(const Problem& problem) {
  if (plan::has_one_output(problem)) return problem;
  Problem one = plan::without_gaps(problem);
  for (int product = 1; product < plan::count_products(problem); ++product) one.n += plan::n_of(problem, product);
  one.more_n = {};
  one.gathered_a = false;
  return one;
}

bool calls_nccl(const Problem& problem, const plan::Candidate& c) {
  return problem.ranks > 1 && c.strategy != Strategy::fused && c.knobs.transport != Transport::store && !c.knobs.codec;
}

// What is to be chosen, and for what.
struct Question {
  Question(const Problem& of, std::optional<Strategy> asked, const GpuKind& on, const std::optional<CodecPair>& codes)
      : problem(of),
        one(as_one_product(of)),
        strategy(asked),
        codec(codes),
        gpus(on),
        card(card_of(on.name)),
        machine(card.machine(of.type, are_hopper(on))),
        reachable(of.ranks == 1 || execute::has_peer_access()),
        library_refusal(cuda::refusal_of_library_bias(of)),
        tensor_core_refusal(cuda::refusal_of_tma(of)) {
    // cuBLASLt takes no more of e4m3 than the kernels do.
    if (of.type == Type::e4m3 && library_refusal.empty())
      library_refusal = on.fp8 ? tensor_core_refusal : "cuBLASLt multiplies no e4m3 on this GPU";
    if (tensor_core_refusal.empty() && !has_kernel_tiles(of.type, are_hopper(on)))
      tensor_core_refusal = fmt::format("{} on this GPU", name_of(of.type));
  }

  const Problem& problem;
  Problem one;  // as_one_product
  std::optional<Strategy> strategy;
  std::optional<CodecPair> codec;
  const GpuKind& gpus;
  const Card& card;
  const Machine& machine;
  bool reachable = false;           // ranks reach each other's memory
  std::string library_refusal;      // of the product
  std::string tensor_core_refusal;  // of the product, by Imbrex' own kernels

  bool library_runs() const { return gpus.libraries && library_refusal.empty(); }
  // The plain kernel is far behind a library's, and runs where no library does.
  bool may_be_plain() const { return strategy || !library_runs(); }
  // What speaks against all plans in tiles; empty where nothing does.
  std::string objection_to_tiles() const {
    return may_be_plain() || tensor_core_refusal.empty()
               ? std::string()
               : fmt::format("no kernel of Imbrex' on tensor cores takes {}", tensor_core_refusal);
  }
};

// By which another tile than the measured one must be faster by the cost model.
constexpr double least_gain = 0.01;

// LIST: what may run, and how long it takes.

struct Candidates {
  std::vector<Expected> plans;
  std::string basis;     // why the best one is
  bool seconds = false;  // so are the times
};

Candidates measured_list(const Question& q, const KnownPlans& known, bool other_ranks) {
  const std::string& gpu = known.records().gpu;
  const bool hopper = are_hopper(q.gpus), lent = &known != q.card.known().front();
  if (const auto plan = measured_plan(known.records(), q.one, q.strategy, q.gpus.copies)) {
    Candidates list{{{*plan}}, fmt::format("measured as the fastest for this size on {}", gpu)};
    if (!lent) return list;
    if (const auto other = with_best_tile(*plan, q.one, q.machine, hopper)) {
      const auto seconds = [&](const plan::Candidate& c) { return quick_seconds(q.one, c, q.machine); };
      list.plans.front().doubted = seconds(*plan);
      list.plans.push_back({*other, 0, seconds(*other) * (1 + least_gain)});
      if (best_of(list.plans) == &list.plans.back())
        list.basis += fmt::format(", with tiles of {} x {} that suit {} better", other->knobs.tile_m,
                                  other->knobs.tile_n, q.gpus.name);
    }
    return list;
  }
  return {plans_alike(known, q.one, q.strategy, q.machine, hopper, other_ranks, q.gpus.copies, lent),
          fmt::format("the fastest by what was measured for sizes {} it on {}",
                      other_ranks ? "and ranks other than" : "like", gpu)};
}

// Plans without copies between ranks; large shards, which copies would bring, are stored. Where a transport is given,
// such plans go, unless there are no others: the executor says why they do not run.
void leave_out_copies(std::vector<plan::Candidate>& list, const plan::GivenKnobs& given) {
  if (!given.has("transport")) {
    for (plan::Candidate& c : list) {
      if (!copies_between_ranks(c)) continue;
      c.knobs.transport = Transport::store;
      if (!given.has("comm_rows")) c.knobs.comm_rows = 0;
    }
  } else if (!std::all_of(list.begin(), list.end(), copies_between_ranks)) {
    std::erase_if(list, copies_between_ranks);
  }
}

Candidates predicted_list(const Question& q, const plan::GivenKnobs& knobs) {
  if (q.one.ranks == 1 && !q.strategy && !q.codec && !knobs && q.library_runs())
    return {{{library_sequence(q.one)}}, "one rank has nothing to hide: what libraries do"};
  std::vector<plan::Candidate> candidates = choose::candidates(q.one, q.machine, q.strategy, knobs, q.codec);
  // Says what the strategy does not take.
  if (candidates.empty()) plan::validate_knobs(q.problem, q.strategy.value_or(Strategy::fused), knobs.over(Knobs{}));
  IMBREX_EXPECTS(!candidates.empty(), "no strategy takes knob nodes = {} here", knobs.values().nodes);
  if (!q.gpus.copies) leave_out_copies(candidates, knobs);
  // By NCCL, on SMs that are kept free: without some, nothing is hidden. Where GPUs reach each other's memory it was
  // never measured together with fused plans.
  const bool try_all = q.gpus.libraries && q.gpus.lanes && q.gpus.nccl && !execute::has_peer_access();
  if (!q.strategy)
    std::erase_if(candidates, [&](const plan::Candidate& c) {
      return choice_of(c.strategy).untried && (!try_all || c.knobs.kept_free == 0);
    });
  // Where no product was measured, of the card or of the kind, the model knows neither own kernels nor a library's:
  // users keep what they have.
  const auto sequence = std::find_if(candidates.begin(), candidates.end(), [&](const plan::Candidate& c) {
    return c.strategy == Strategy::sequential && (q.gpus.nccl || !calls_nccl(q.one, c));
  });
  const bool known = q.card.is_measured() && (q.codec || q.objection_to_tiles().empty());
  if (!q.strategy && !known && q.library_runs() && sequence != candidates.end()) {
    Candidates list{
        {{knobs || q.codec || sequence->knobs.transport == Transport::store ? *sequence : library_sequence(q.one)}},
        fmt::format("no plan was measured on {}: what libraries do; `imbrex tune` measures", q.gpus.name)};
    // The product is the same, so nothing can be lost.
    if (q.card.is_measured() && !knobs && !q.codec && q.reachable && own_collective_is_faster(q.one, q.machine))
      list.plans.front().candidate.knobs.transport = Transport::store;
    return list;
  }
  Candidates list{{}, fmt::format("predicted by the cost model for {}; `imbrex tune` measures", q.gpus.name), true};
  // What a library multiplies is what users have: it may be as far off, but nothing is lost by it.
  const auto doubt_of = [&](const plan::Candidate& c) {
    return c.strategy == Strategy::fused || c.strategy == Strategy::signaled ? 1 + q.machine.model_error : 1;
  };
  for (plan::Candidate& c : candidates) {
    const double seconds = quick_seconds(q.one, c, q.machine);
    if (!knobs && c.strategy == Strategy::fused)
      c.knobs = with_kernel_tile(c.knobs, q.problem.type, are_hopper(q.gpus));
    list.plans.push_back({c, seconds, seconds * doubt_of(c)});
  }
  return list;
}

// FILTER: what speaks against a plan; empty where nothing does.

std::string refusal_of(const Question& q, const plan::Candidate& c) {
  if (q.strategy) return {};
  const plan::StrategyEntry& entry = plan::entry_of(c.strategy);
  if (entry.one_output && !plan::has_one_output(q.problem)) return fmt::format("{} takes one B only", entry.name);
  if (!q.gpus.nccl && calls_nccl(q.problem, c))
    return "the environment keeps Imbrex from NCCL, which the fastest plan calls";
  return {};
}

// Against running it while others run.
std::string objection_to(const Question& q, const plan::Candidate& c) {
  // A library's product of rows that it loads slowly takes no parts of a few rows: it was never measured so.
  if (c.strategy == Strategy::decomposed && !q.strategy && !q.tensor_core_refusal.empty())
    return fmt::format("no kernel of Imbrex' on tensor cores takes {}", q.tensor_core_refusal);
  if (q.may_be_plain() || (c.strategy != Strategy::fused && c.strategy != Strategy::signaled)) return {};
  if (std::string all = q.objection_to_tiles(); !all.empty()) return all;
  // Tiles begin with a rank's columns.
  const bool suits =
      !plan::owns_columns(q.problem, c.knobs) || q.problem.n % (cuda::column_step(q.problem) * q.problem.ranks) == 0;
  return suits ? std::string()
               : fmt::format("no kernel of Imbrex' on tensor cores takes N = {} cut for {} ranks", q.problem.n,
                             q.problem.ranks);
}

// SCORE: the best plan of which nothing is said.

// `why`: what speaks against a better one, the first of all lists.
std::optional<plan::Candidate> best_that_runs(const Question& q, std::vector<Expected> plans, bool picky,
                                              std::string& why) {
  while (const Expected* best = best_of(plans)) {
    std::string against = refusal_of(q, best->candidate);
    if (picky && against.empty()) against = objection_to(q, best->candidate);
    if (against.empty()) return best->candidate;
    if (why.empty()) why = std::move(against);
    plans.erase(plans.begin() + (best - plans.data()));
  }
  return std::nullopt;
}

// What was measured on such GPUs, then on those that they are as fast as, then with other numbers of ranks; at last the
// cost model.
plan::Candidate best_of_all(const Question& q, const plan::GivenKnobs& knobs, Reason* reason) {
  if (q.strategy == Strategy::sequential && !q.codec && !knobs) return library_sequence(q.problem);
  // What was measured stores to peers, and sends no codes.
  const bool by_records = !knobs && !q.codec && (q.strategy || q.reachable);
  std::string why = q.objection_to_tiles();
  const auto take = [&](const Candidates& list, bool picky) {
    const auto best = best_that_runs(q, list.plans, picky, why);
    if (!best || reason == nullptr) return best;
    *reason = {why.empty() ? list.basis : why, {}};
    if (list.seconds)
      for (const Expected& e : list.plans) reason->add(e.candidate.strategy, e.time);
    return best;
  };
  for (const bool picky : {true, false}) {
    for (const bool other_ranks : {false, true})
      for (const KnownPlans* known : q.card.known())
        if (by_records)
          if (const auto best = take(measured_list(q, *known, other_ranks), picky)) return *best;
    const Candidates predicted = predicted_list(q, knobs);
    if (const auto best = take(predicted, picky)) return *best;
    // The executor says why it does not run.
    if (!picky) return best_of(predicted.plans)->candidate;
  }
  return library_sequence(q.problem);
}

// What the choice is with some knobs instead of its own; none where it cannot have them.
std::optional<plan::Candidate> with_some(const Question& q, const plan::Candidate& chosen,
                                         const plan::GivenKnobs& given) {
  if (given.in(chosen.knobs)) return chosen;
  const bool peers = plan::entry_of(chosen.strategy).reaches_peers;
  if (peers && given.values().nodes > 1) return std::nullopt;
  plan::Candidate with = with_given(q.problem, chosen, given, q.machine);
  if (peers) with.knobs = with_kernel_tile(with.knobs, q.problem.type, are_hopper(q.gpus), given);
  if (!q.gpus.copies && copies_between_ranks(with) && given.has("transport")) return std::nullopt;
  try {
    plan::validate_knobs(q.problem, with.strategy, with.knobs);
  } catch (const Error&) {
    return std::nullopt;
  }
  return with;
}

// The only strategy that computes the problem here, and why; none where several do. Codes are for library strategies:
// where those do not run, the executor says why.
std::optional<Strategy> only_strategy(const Question& q, Reason* reason) {
  if (q.strategy || q.codec || q.library_runs()) return q.strategy;
  if (reason != nullptr)
    *reason = {q.gpus.libraries ? q.library_refusal : "threads that share a GPU run no library collectives", {}};
  const bool lanes = q.gpus.libraries && q.gpus.lanes && plan::has_one_output(q.problem);
  return q.reachable || !lanes ? Strategy::fused : Strategy::signaled;
}

}  // namespace

std::string name_of_all(std::span<const std::string> names) {
  std::vector<std::string> unlike;
  for (const std::string& name : names)
    if (std::find(unlike.begin(), unlike.end(), name) == unlike.end()) unlike.push_back(name);
  return fmt::format("{}", fmt::join(unlike, " and "));
}

GpuKind kind_of(const GpuSurvey& survey, int ranks_per_gpu, bool processes) {
  GpuKind kind{{}, survey.gpus.front().major, ranks_per_gpu == 1, ranks_per_gpu == 1 || processes};
  std::vector<std::string> names;
  for (const Gpu& gpu : survey.gpus) {
    names.push_back(gpu.name);
    kind.major = std::min(kind.major, gpu.major);
    kind.fp8 = kind.fp8 && (gpu.major > 8 || (gpu.major == 8 && gpu.minor >= 9));
  }
  kind.name = name_of_all(names);
  return kind;
}

plan::Candidate choose_gpu_candidate(const Problem& problem, std::optional<Strategy> strategy,
                                     const plan::GivenKnobs& knobs, const GpuKind& gpus,
                                     const std::optional<CodecPair>& codec, Reason* reason) {
  Question q(problem, strategy, gpus, knobs.has("codec") ? knobs.values().codec : codec);
  if (!strategy) q.strategy = only_strategy(q, reason);
  if (q.strategy) reason = nullptr;
  if (knobs.all() && q.strategy) return {*q.strategy, knobs.values()};
  std::optional<plan::Candidate> chosen;
  if (knobs && !knobs.all()) chosen = with_some(q, best_of_all(q, {}, reason), knobs);
  if (!chosen) chosen = best_of_all(q, knobs, reason);
  if (knobs.all() || chosen->strategy != Strategy::sequential) return *chosen;
  // A record's tile is for another product.
  if (!plan::has_one_output(problem)) chosen->knobs.library_tile = 0, chosen->knobs.library_parts = 1;
  chosen = with_product_record(*chosen, problem, gpus);
  chosen->knobs = knobs.over(chosen->knobs);
  return *chosen;
}

Knobs packed_knobs(const Problem& problem, const GpuKind* gpus, const std::optional<CodecPair>& codec,
                   const plan::GivenKnobs& given) {
  const Machine machine =
      gpus != nullptr ? card_of(gpus->name).machine(problem.type, are_hopper(*gpus)) : nominal_host_machine();
  const Knobs* best = nullptr;
  double least = 0;
  std::vector<plan::Candidate> list = candidates(problem, machine, Strategy::signaled, given, codec);
  // These candidates have the tiles that suit the product best, whatever N is.
  const plan::Candidate first = list.front();
  for (const TileRate& tile : machine.tiles) {
    list.push_back(first);
    Knobs& knobs = list.back().knobs;
    knobs.tile_m = tile.tile_m, knobs.tile_n = tile.tile_n, knobs.split_k = 1;
  }
  for (plan::Candidate& candidate : list) {
    candidate.knobs = given.over(candidate.knobs);
    candidate.knobs.packed = true;
    if (problem.n % plan::packed_blocks(problem, candidate.knobs).cols != 0) continue;
    if (given.has("chunks") && !given.has("groups"))
      candidate.knobs.groups = {};
    else if (!given.has("groups"))
      set_groups(candidate.knobs, problem, machine);
    const double seconds = signaled_times(problem, candidate.knobs, machine).seconds;
    if (best != nullptr && seconds >= least) continue;
    best = &candidate.knobs;
    least = seconds;
  }
  IMBREX_EXPECTS(best != nullptr,
                 "packed with N = {}: it is no multiple of the columns of any tile that would be chosen; "
                 "knobs may name a tile_n that divides it",
                 problem.n);
  return *best;
}

std::uint64_t digest_of_tables(const GpuKind& gpus) {
  std::string text;
  for (const KnownPlans* known : card_of(gpus.name).known()) text += records::to_json(known->records());
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    text += to_json(card_of(gpus.name).machine(type, are_hopper(gpus)));
  return base::hash_of(std::as_bytes(std::span(text)));
}

plan::Candidate with_product_record(plan::Candidate candidate, const Problem& problem, const GpuKind& gpus) {
  if (candidate.strategy == Strategy::sequential)
    candidate.knobs = records::with_library_tile(candidate.knobs, records::records_of(gpus.name).products, problem);
  return candidate;
}

void note_untuned(const Problem& problem, const GpuKind& gpus) {
  records::untuned_sizes().note(problem, records::records_of(gpus.name));
}

Plan choose_gpu_plan(const Problem& problem, std::optional<Strategy> strategy, const plan::GivenKnobs& knobs,
                     const GpuKind& gpus, Reason* reason) {
  const plan::Candidate chosen = choose_gpu_candidate(problem, strategy, knobs, gpus, {}, reason);
  return make_plan(problem, chosen.strategy, chosen.knobs);
}

}  // namespace imbrex::choose
