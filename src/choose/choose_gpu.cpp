#include "choose/choose_gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.hpp"
#include "choose/alike.hpp"
#include "choose/kernel_tiles.hpp"
#include "choose/quick_times.hpp"
#include "choose/signaled_times.hpp"
#include "choose/strategies.hpp"
#include "collectives/cuda/wire/comm.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/tables/table_survey.hpp"
#include "execute/cuda/tables/translate.hpp"
#include "execute/peer_access.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/machine.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/registry.hpp"
#include "records/product_records.hpp"
#include "records/records.hpp"

namespace imbrex::choose {
namespace {

static_assert(most_own_ranks == static_cast<int>(cuda::max_comm_ranks));

constexpr std::string_view h200 = "NVIDIA H200";

const Machine& four_h200() {
  static const Machine machine = load_machine("4xh200");
  return machine;
}

// The GPU's records, and what is known of them, worked out once in this process. Any thread may call it.
const KnownPlans& known_plans_of(const std::string& gpu) {
  static std::mutex lock;
  static std::map<std::string, KnownPlans> known;
  const std::lock_guard guard(lock);
  const auto found = known.find(gpu);
  return found != known.end() ? found->second
                              : known.emplace(gpu, KnownPlans(records::records_of(gpu), four_h200())).first->second;
}

// What the tables of these GPUs do not know, others of Hopper take from the H200's: tensor cores and links are the
// same. Numbers of ranks without measurements take the nearest number's: those are nearer than what the
// analytical cost model predicts.
std::optional<plan::Candidate> measured_choice(const GpuKind& gpus, const Problem& problem,
                                               std::optional<Strategy> strategy, Reason* reason) {
  const bool hopper = gpus.major == 9;
  const auto ask = [&](const std::string& gpu, bool other_ranks) {
    const auto chosen = choose_alike(known_plans_of(gpu), problem, strategy, hopper, other_ranks, gpus.copies);
    if (chosen && reason != nullptr)
      reason->basis = measured_plan(records::records_of(gpu), problem, strategy, gpus.copies)
                          ? fmt::format("measured as the fastest for this size on {}", gpu)
                          : fmt::format("the fastest by what was measured for sizes {} it on {}",
                                        other_ranks ? "and ranks other than" : "like", gpu);
    return chosen;
  };
  for (const bool other_ranks : {false, true}) {
    if (auto chosen = ask(gpus.name, other_ranks)) return chosen;
    if (!hopper || gpus.name == h200) continue;
    if (auto chosen = ask(std::string(h200), other_ranks)) return chosen;
  }
  return std::nullopt;
}

// A machine of such GPUs, without what they do not run.
Machine machine_for(const Problem& problem, bool hopper) {
  Machine machine = four_h200();
  if (!hopper) machine.own_one_step = machine.own_two_steps = {};
  if (has_kernel_tiles(problem.type, hopper))
    std::erase_if(machine.tiles, [&](const TileRate& tile) {
      return !has_kernel_tile(problem.type, hopper, tile.tile_m, tile.tile_n);
    });
  return machine;
}

// Candidates without copies between ranks; large shards, which copies would bring, are stored.
void leave_out_copies(std::vector<plan::Candidate>& list, bool given_transport) {
  if (given_transport) return static_cast<void>(std::erase_if(list, copies_between_ranks));
  for (plan::Candidate& c : list)
    if (copies_between_ranks(c)) c.knobs.transport = Transport::store, c.knobs.comm_rows = 0;
}

bool calls_nccl(const Problem& problem, const plan::Candidate& c) {
  return problem.ranks > 1 && c.strategy != Strategy::fused && c.knobs.transport != Transport::store && !c.knobs.codec;
}

// Whether the cost model's rates hold for them, about. It knows no other GPU, neither own tiles nor a library's: users
// keep there what they have until plans were measured.
bool is_modelled(const GpuKind& gpus) { return gpus.major == 9; }

// By the analytical cost model, which chooses as the simulator would, and at once.
plan::Candidate predicted_choice(const Problem& problem, std::optional<Strategy> strategy,
                                 const plan::GivenKnobs& knobs, const GpuKind& gpus, Reason* reason,
                                 const std::optional<CodecPair>& codec = {}) {
  const Machine machine = machine_for(problem, gpus.major == 9);
  std::vector<plan::Candidate> list = candidates(problem, machine, strategy, knobs, codec);
  // By NCCL, on SMs that are kept free: without some, nothing is hidden. Where GPUs reach each other's memory it was
  // never measured together with fused plans.
  const bool try_all = gpus.libraries && gpus.lanes && gpus.nccl && !execute::has_peer_access();
  if (!strategy)
    std::erase_if(list, [&](const plan::Candidate& c) {
      return choice_of(c.strategy).untried && (!try_all || c.knobs.kept_free == 0);
    });
  const auto by_nccl = [&](const plan::Candidate& c) { return calls_nccl(problem, c); };
  if (!strategy && !gpus.nccl && !std::all_of(list.begin(), list.end(), by_nccl)) std::erase_if(list, by_nccl);
  if (!gpus.copies) leave_out_copies(list, knobs.has("transport"));
  const auto sequence = std::find_if(list.begin(), list.end(),
                                     [](const plan::Candidate& c) { return c.strategy == Strategy::sequential; });
  if (!strategy && !is_modelled(gpus) && sequence != list.end()) {
    if (reason != nullptr)
      *reason = {fmt::format("no plan was measured on {}: what libraries do; `imbrex tune` measures", gpus.name), {}};
    return *sequence;
  }
  const auto seconds = [&](const plan::Candidate& c) { return quick_seconds(problem, c, machine); };
  if (reason != nullptr) {
    *reason = {"predicted by the cost model for H200s; `imbrex tune` measures", {}};
    for (const plan::Candidate& c : list) reason->add(c.strategy, seconds(c));
  }
  return *std::min_element(list.begin(), list.end(),
                           [&](const plan::Candidate& x, const plan::Candidate& y) { return seconds(x) < seconds(y); });
}

// By what was measured, or else predicted.
plan::Candidate fastest(const Problem& problem, std::optional<Strategy> strategy, const GpuKind& gpus, Reason* reason) {
  const std::optional<plan::Candidate> measured = measured_choice(gpus, problem, strategy, reason);
  if (!measured && strategy == Strategy::sequential) return library_sequence(problem);
  if (!measured) return predicted_choice(problem, strategy, {}, gpus, reason);
  plan::Candidate found = *measured;
  if (found.knobs.partial != Type::fp32) found.knobs.partial = output_type(problem.type);
  // What was measured may be of another kind of scales; of those a tensor, a tile has one of A.
  if (problem.op == Operator::all_gather_gemm && problem.scales == Scales::tensor) found.knobs.span_shards = false;
  return found;
}

// Whether some kernel on tensor cores takes the operands; if not, fused plans run on the plain one.
bool suits_tensor_cores(const Problem& problem, bool hopper) {
  return has_kernel_tiles(problem.type, hopper) && cuda::refusal_of_tma(problem).empty();
}

// Whether, with these knobs, the tiles do, too; they begin with a rank's columns.
bool tiles_suit_tensor_cores(const Problem& problem, const Knobs& knobs) {
  return !plan::owns_columns(problem, knobs) || problem.n % (cuda::column_step(problem) * problem.ranks) == 0;
}

// Knobs where the caller gave none.
plan::Candidate chosen_freely(const Problem& problem, std::optional<Strategy> strategy, const GpuKind& gpus,
                              Reason* reason) {
  const auto by_library = [&](std::string_view why) {
    const plan::Candidate sequence = fastest(problem, Strategy::sequential, gpus, nullptr);
    if (reason != nullptr) *reason = {fmt::format("no kernel of Imbrex' on tensor cores takes {}", why), {}};
    return sequence;
  };
  const bool hopper = gpus.major == 9;
  if (strategy == Strategy::sequential) return library_sequence(problem);
  // The plain kernel is far behind a library's. What it takes of e4m3, cuBLASLt does not.
  const bool may_be_plain = strategy || problem.type == Type::e4m3;
  if (!may_be_plain && !suits_tensor_cores(problem, hopper)) {
    const std::string refusal = cuda::refusal_of_tma(problem);
    return by_library(refusal.empty() ? fmt::format("{} on this GPU", name_of(problem.type)) : refusal);
  }
  plan::Candidate chosen = fastest(problem, strategy, gpus, reason);
  if (chosen.strategy != Strategy::fused) return chosen;
  chosen.knobs = with_kernel_tile(chosen.knobs, problem.type, hopper);
  if (may_be_plain || tiles_suit_tensor_cores(problem, chosen.knobs)) return chosen;
  return by_library(fmt::format("N = {} cut for {} ranks", problem.n, problem.ranks));
}

// A fused plan, or, where that would run on the plain kernel, the library's product and Imbrex' own collectives, if
// there are some for the problem.
plan::Candidate without_nccl(const Problem& problem, const GpuKind& gpus, Reason* reason) {
  if (reason != nullptr) *reason = {"the environment keeps Imbrex from NCCL, which the fastest plan calls", {}};
  const bool hopper = gpus.major == 9;
  if (suits_tensor_cores(problem, hopper) || !hopper || !may_suit_own_collectives(problem))
    return chosen_freely(problem, Strategy::fused, gpus, nullptr);
  plan::Candidate sequence = library_sequence(problem);
  sequence.knobs.transport = Transport::store;
  return sequence;
}

}  // namespace

GpuKind kind_of(const GpuSurvey& survey, int ranks_per_gpu, bool processes) {
  GpuKind kind{survey.gpus.front().name, survey.gpus.front().major, ranks_per_gpu == 1,
               ranks_per_gpu == 1 || processes};
  for (const Gpu& gpu : survey.gpus) kind.major = std::min(kind.major, gpu.major);
  return kind;
}

namespace {

// Several B are chosen for as one of all their columns, whose tiles are as many but for those at each B's end. Nothing
// else is measured yet.
plan::Candidate choose_for_outputs(const Problem& problem, std::optional<Strategy> strategy,
                                   const plan::GivenKnobs& knobs, const GpuKind& gpus, Reason* reason) {
  const bool libraries = gpus.libraries && cuda::refusal_of_library_bias(problem).empty(), open = !strategy;
  if (!strategy && !libraries) strategy = Strategy::fused;
  if (reason != nullptr && strategy) reason->basis = "no library computes this product here";
  // Where one B of all the columns suits, each of them may not.
  if (!strategy && !suits_tensor_cores(problem, gpus.major == 9)) {
    strategy = Strategy::sequential;
    if (reason != nullptr) reason->basis = "no kernel of Imbrex' on tensor cores takes the operands";
  }
  Problem one = plan::without_gaps(problem);
  for (int product = 1; product < plan::count_products(problem); ++product) one.n += plan::n_of(problem, product);
  one.more_n = {};
  one.gathered_a = false;
  plan::Candidate chosen = choose_gpu_candidate(one, strategy, knobs, gpus, {}, reason);
  // Strategies with one output take one B.
  if (!strategy && plan::entry_of(chosen.strategy).one_output) {
    if (reason != nullptr) *reason = {fmt::format("{} takes one B only", name_of(chosen.strategy)), {}};
    chosen =
        choose_gpu_candidate(one, execute::has_peer_access() ? Strategy::fused : Strategy::sequential, knobs, gpus);
  }
  if (open && !knobs && !gpus.nccl && calls_nccl(one, chosen)) chosen = without_nccl(one, gpus, reason);
  if (knobs.all() || chosen.strategy != Strategy::sequential) return chosen;
  chosen.knobs.library_tile = 0, chosen.knobs.library_parts = 1;  // the record's are for another product
  chosen = with_product_record(chosen, problem, gpus);
  chosen.knobs = knobs.over(chosen.knobs);
  return chosen;
}

// What the choice is with some knobs in the place of its own; none where it cannot have them.
std::optional<plan::Candidate> with_some(const Problem& problem, const plan::Candidate& chosen,
                                         const plan::GivenKnobs& given, const GpuKind& gpus) {
  if (given.in(chosen.knobs)) return chosen;
  const bool hopper = gpus.major == 9, peers = plan::entry_of(chosen.strategy).reaches_peers;
  if (peers && given.values().nodes > 1) return std::nullopt;
  plan::Candidate with = with_given(problem, chosen, given, machine_for(problem, hopper));
  if (peers) with.knobs = with_kernel_tile(with.knobs, problem.type, hopper, given);
  if (!gpus.copies && copies_between_ranks(with) && given.has("transport")) return std::nullopt;
  try {
    plan::validate_knobs(problem, with.strategy, with.knobs);
  } catch (const Error&) {
    return std::nullopt;
  }
  return with;
}

}  // namespace

plan::Candidate choose_gpu_candidate(const Problem& problem, std::optional<Strategy> strategy,
                                     const plan::GivenKnobs& knobs, const GpuKind& gpus,
                                     const std::optional<CodecPair>& codec, Reason* reason) {
  if (strategy) reason = nullptr;
  if (knobs && !knobs.all() && plan::has_one_output(problem)) {
    const std::optional<CodecPair> codes = knobs.has("codec") ? knobs.values().codec : codec;
    const plan::Candidate chosen = choose_gpu_candidate(problem, strategy, {}, gpus, codes, reason);
    if (const auto with = with_some(problem, chosen, knobs, gpus)) return *with;
    return predicted_choice(problem, strategy, knobs, gpus, reason, codes);
  }
  if (!plan::has_one_output(problem)) return choose_for_outputs(problem, strategy, knobs, gpus, reason);
  // Codes are for library strategies: where those do not run, the executor says why.
  const bool reachable = problem.ranks == 1 || execute::has_peer_access();
  if (!strategy && !codec && (!gpus.libraries || !cuda::refusal_of_library_bias(problem).empty())) {
    strategy = reachable || !gpus.libraries || !gpus.lanes ? Strategy::fused : Strategy::signaled;
    if (reason != nullptr)
      *reason = {gpus.libraries ? cuda::refusal_of_library_bias(problem)
                                : "threads that share a GPU run no library collectives",
                 {}};
    reason = nullptr;
  }
  if (knobs && strategy) return {*strategy, knobs.values()};
  // What was measured stores to peers.
  if (knobs || (!strategy && !codec && !reachable)) return predicted_choice(problem, strategy, knobs, gpus, reason);
  if (codec) return with_product_record(predicted_choice(problem, strategy, {}, gpus, reason, codec), problem, gpus);
  plan::Candidate chosen = chosen_freely(problem, strategy, gpus, reason);
  if (!strategy && !gpus.nccl && calls_nccl(problem, chosen)) chosen = without_nccl(problem, gpus, reason);
  return with_product_record(chosen, problem, gpus);
}

Knobs packed_knobs(const Problem& problem, const GpuKind* gpus, const std::optional<CodecPair>& codec,
                   const plan::GivenKnobs& given) {
  const Machine machine = gpus != nullptr ? machine_for(problem, gpus->major == 9) : nominal_host_machine();
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
  const std::string text =
      records::to_json(records::records_of(gpus.name)) + records::to_json(records::records_of(std::string(h200)));
  return base::hash_of(std::as_bytes(std::span(text)));
}

plan::Candidate with_product_record(plan::Candidate candidate, const Problem& problem, const GpuKind& gpus) {
  if (candidate.strategy == Strategy::sequential)
    candidate.knobs = records::with_library_tile(candidate.knobs, records::records_of(gpus.name).products, problem);
  return candidate;
}

Plan choose_gpu_plan(const Problem& problem, std::optional<Strategy> strategy, const plan::GivenKnobs& knobs,
                     const GpuKind& gpus, Reason* reason) {
  const plan::Candidate chosen = choose_gpu_candidate(problem, strategy, knobs, gpus, {}, reason);
  return make_plan(problem, chosen.strategy, chosen.knobs);
}

}  // namespace imbrex::choose
