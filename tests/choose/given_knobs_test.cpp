// A knob that is given is fixed, and the others are chosen as without it.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "choose/choose.hpp"
#include "choose/choose_gpu.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/ops.hpp"
#include "plan/fields.hpp"
#include "plan/given_knobs.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using plan::GivenKnobs;

const std::vector<std::string>& names() {
  static const std::vector<std::string> all = GivenKnobs(Knobs{}).names();
  return all;
}

Plan chosen(const Problem& p, const Machine& machine, std::optional<Strategy> strategy, const Knobs& knobs = {},
            const std::vector<std::string>& fixed = {}) {
  OperatorOptions options{.strategy = strategy, .knobs = std::nullopt, .cpu = {}};
  if (!fixed.empty()) options.knobs = knobs;
  options.fixed_knobs = fixed;
  return choose_plan(p, machine, options);
}

double seconds_on(const Plan& plan, const Machine& machine) {
  return make_simulator(machine)->prepare(plan)->run({}).seconds;
}

TEST(GivenKnobs, NameEveryKnob) {
  plan::Fields fields;
  plan::add_fields(fields, Knobs{});
  std::vector<std::string> known;
  for (const auto& [name, value] : fields) known.push_back(name);
  EXPECT_EQ(names(), known);
}

TEST(GivenKnobs, ReplaceOnlyWhatIsGiven) {
  const Knobs given{.tile_n = 64, .group = 3};
  const GivenKnobs some(given, std::vector<std::string>{"group"});
  EXPECT_TRUE(some);
  EXPECT_FALSE(some.all());
  EXPECT_TRUE(some.has("group"));
  EXPECT_FALSE(some.has("tile_n"));
  EXPECT_EQ(some.over(Knobs{.tile_m = 64, .tile_n = 256}), (Knobs{.tile_m = 64, .tile_n = 256, .group = 3}));
  EXPECT_TRUE(some.in(Knobs{.tile_m = 64, .group = 3}));
  EXPECT_FALSE(some.in(Knobs{}));
  EXPECT_FALSE(GivenKnobs());
  EXPECT_TRUE(GivenKnobs(given).all());
}

TEST(GivenKnobs, RefuseUnknownNames) {
  try {
    static_cast<void>(GivenKnobs(Knobs{}, std::vector<std::string>{"tile"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_STREQ(error.what(), "'tile' is not a knob; a plan file names them");
  }
  EXPECT_THROW(static_cast<void>(GivenKnobs(std::nullopt, std::vector<std::string>{"tile_n"})), Error);
}

// Each was a plan of other tiles and another transport.
TEST(GivenKnobs, DefaultsLeaveThePlanOfFourH200s) {
  const Problem p{Operator::gemm_reduce_scatter, 8192, 8192, 28672, 4, Type::bf16};
  const Machine machine = load_machine("4xh200");
  const Plan free = chosen(p, machine, Strategy::fused);
  for (const char* name : {"chunks", "group", "nodes"}) {
    const Plan with = chosen(p, machine, Strategy::fused, {}, {name});
    EXPECT_EQ(with.knobs, free.knobs) << name;
    EXPECT_EQ(with.strategy, free.strategy) << name;
  }
  const Plan other = chosen(p, machine, Strategy::fused, {.group = 4}, {"group"});
  EXPECT_EQ(other.knobs.group, 4);
  EXPECT_EQ(other.knobs.transport, free.knobs.transport);
  EXPECT_EQ(other.knobs.tile_n, free.knobs.tile_n);
}

// The best tile of the rows that are asked for.
TEST(GivenKnobs, ChooseTheRestOfATile) {
  const Problem p{Operator::gemm_all_reduce, 512, 8192, 8192, 4, Type::bf16};
  const Machine machine = load_machine("4xh200");
  const Plan with = chosen(p, machine, Strategy::sequential, {.tile_m = 64}, {"tile_m"});
  EXPECT_EQ(with.knobs.tile_m, 64);
  EXPECT_TRUE(std::any_of(machine.tiles.begin(), machine.tiles.end(),
                          [&](const TileRate& t) { return t.tile_m == 64 && t.tile_n == with.knobs.tile_n; }));
}

TEST(GivenKnobs, CutSignaledPlansAsAsked) {
  const Problem p{Operator::gemm_all_reduce, 4096, 4096, 4096, 4, Type::bf16};
  const Machine machine = load_machine("4xh200");
  const Plan equal = chosen(p, machine, Strategy::signaled, {.chunks = 3}, {"chunks"});
  EXPECT_EQ(equal.knobs.chunks, 3);
  EXPECT_EQ(equal.knobs.groups, GroupSizes{});
  EXPECT_GT(equal.knobs.kept_free, 0);
  const Plan kept = chosen(p, machine, Strategy::signaled, {.kept_free = 8}, {"kept_free"});
  EXPECT_EQ(kept.knobs.kept_free, 8);
  EXPECT_NE(kept.knobs.groups, GroupSizes{});
}

TEST(GivenKnobs, StillRefuseWhatNoPlanTakes) {
  const Problem p{Operator::all_gather_gemm, 512, 512, 512, 4, Type::bf16};
  const Machine machine = load_machine("4xh200");
  const Knobs store{.transport = Transport::store};
  EXPECT_THROW(chosen(p, machine, Strategy::decomposed, store, {"transport"}), Error);
  EXPECT_THROW(chosen(p, machine, Strategy::fused, {.nodes = 2}, {"nodes"}), Error);
  EXPECT_NE(chosen(p, machine, std::nullopt, {.nodes = 2}, {"nodes"}).strategy, Strategy::fused);
  EXPECT_NE(chosen(p, machine, std::nullopt, store, {"transport"}).strategy, Strategy::decomposed);
}

// The GPUs' choice, from tables and by prediction.
TEST(GivenKnobs, LeaveTheGpusChoice) {
  for (const choose::GpuKind& gpus : {choose::GpuKind{"NVIDIA H200", 9}, choose::GpuKind{"NVIDIA A100-SXM4-80GB", 8}})
    for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce})
      for (const std::int64_t m : {64, 512, 4096})
        for (const std::optional<Strategy> strategy :
             {std::optional<Strategy>{}, std::optional{Strategy::fused}, std::optional{Strategy::sequential}}) {
          const Problem p{op, m, 8192, 8192, 4, Type::bf16};
          const plan::Candidate free = choose::choose_gpu_candidate(p, strategy, {}, gpus);
          for (const std::string& name : names()) {
            const std::vector<std::string> one{name};
            const plan::Candidate with = choose::choose_gpu_candidate(p, strategy, GivenKnobs(free.knobs, one), gpus);
            EXPECT_EQ(with.strategy, free.strategy) << name;
            EXPECT_EQ(with.knobs, free.knobs) << name;
          }
          Knobs other = free.knobs;
          other.group = 5;
          const plan::Candidate with =
              choose::choose_gpu_candidate(p, strategy, GivenKnobs(other, std::vector<std::string>{"group"}), gpus);
          EXPECT_EQ(with.strategy, free.strategy);
          EXPECT_EQ(with.knobs, other);
        }
}

// Whatever is given, on whatever GPUs: a plan that has it, or a refusal. IMBREX_TEST_COUNT=100000: as many calls.
TEST(GivenKnobs, AreKeptOrRefusedOnGpus) {
  test::Random random(test::seed_from_environment());
  const char* const asked = std::getenv("IMBREX_TEST_COUNT");
  const int count = asked != nullptr ? std::atoi(asked) : 4000;
  int kept = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    choose::GpuKind gpus{random.one_of<std::string>({"NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H20",
                                                     "NVIDIA A100-SXM4-80GB", "another GPU"}),
                         static_cast<int>(random.between(8, 9))};
    for (bool* has : {&gpus.copies, &gpus.libraries, &gpus.nccl, &gpus.lanes, &gpus.fp8}) *has = random.chance(0.6);
    const auto strategy =
        random.chance(0.4) ? std::nullopt : std::optional(static_cast<Strategy>(random.between(0, 3)));
    const test::RandomCase c =
        test::random_case(random, {.max_ranks = 8, .max_size = 4096, .bias = true, .e4m3 = true, .lists = true});
    const Knobs values = test::random_knobs(random, c.problem, strategy.value_or(c.strategy));
    std::vector<std::string> given;
    for (const std::string& name : names())
      if (random.chance(0.1)) given.push_back(name);
    const std::string what = fmt::format("call {}: {}, given {}, strategy {}, {}", i, describe(c),
                                         fmt::join(given, " "), strategy ? name_of(*strategy) : "free", gpus.name);
    SCOPED_TRACE(what);
    try {
      const GivenKnobs knobs = given.empty() ? GivenKnobs() : GivenKnobs(values, given);
      const plan::Candidate with = choose::choose_gpu_candidate(c.problem, strategy, knobs, gpus);
      ASSERT_TRUE(knobs.in(with.knobs));
      if (c.problem.op == Operator::gemm_all_reduce && !knobs.has("packed")) {
        const Knobs packed = choose::packed_knobs(c.problem, random.chance(0.5) ? &gpus : nullptr, {}, knobs);
        ASSERT_TRUE(knobs.in(packed));
      }
      ++kept;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(kept, refused);
  EXPECT_GT(refused, 0);
}

Machine random_machine(std::mt19937_64& random, std::vector<std::string>& said) {
  static const std::vector<std::string> all = machine_names();
  Machine machine = load_machine(all[random() % all.size()]);
  said.push_back(machine.name);
  static constexpr const char* places[] = {"links.egress_bandwidth",   "links.ingress_bandwidth", "links.latency",
                                           "compute.memory_bandwidth", "copy_engine.bandwidth",   "stores.bandwidth",
                                           "signals.flag_latency",     "compute.launch_gap"};
  static constexpr Constant Machine::*members[] = {
      &Machine::egress_bandwidth, &Machine::ingress_bandwidth, &Machine::link_latency, &Machine::memory_bandwidth,
      &Machine::copy_bandwidth,   &Machine::store_bandwidth,   &Machine::flag_latency, &Machine::launch_gap};
  for (int i = static_cast<int>(random() % 3); i > 0; --i) {
    const std::size_t at = random() % std::size(places);
    const double value = (machine.*members[at]).value * (0.25 + static_cast<double>(random() % 1000) / 250);
    set_constant(machine, places[at], {value, Provenance::unverified, "a test"});
    said.push_back(fmt::format("{}={}", places[at], value));
  }
  validate(machine);
  // What is set to the value that it has changes no other figure.
  const Machine before = machine;
  const std::size_t at = random() % std::size(places);
  set_constant(machine, places[at], machine.*members[at]);
  EXPECT_EQ(machine, before) << places[at];
  return machine;
}

// IMBREX_TEST_COUNT=5000: as many calls.
TEST(GivenKnobs, DefaultsChangeNothing) {
  std::mt19937_64 random(test::seed_from_environment());
  const char* const asked = std::getenv("IMBREX_TEST_COUNT");
  const int count = asked != nullptr ? std::atoi(asked) : 150;
  for (int i = 0; i < count; ++i) {
    std::vector<std::string> said;
    const Machine machine = random_machine(random, said);
    const int ranks = 2 << random() % (machine.devices >= 8 ? 3 : 2);
    const Problem p{static_cast<Operator>(random() % 4),
                    ranks * (std::int64_t{1} << random() % 9),
                    ranks * 8 * (1 + static_cast<std::int64_t>(random() % 128)),
                    ranks * 64 * (1 + static_cast<std::int64_t>(random() % 16)),
                    ranks,
                    Type::bf16};
    const std::size_t which = random() % 5;
    const std::optional<Strategy> strategy = which == 4 ? std::nullopt : std::optional(static_cast<Strategy>(which));
    const bool apart = machine.peer_access > 0 && machine.peer_access < ranks;
    if (strategy == Strategy::fused && apart) continue;
    const Plan free = chosen(p, machine, strategy);
    std::vector<std::string> fixed;
    for (const std::string& name : names())
      if (random() % 4 == 0) fixed.push_back(name);
    if (fixed.empty()) fixed.push_back(names()[random() % names().size()]);
    const Plan with = chosen(p, machine, strategy, free.knobs, fixed);
    ASSERT_EQ(with.knobs, free.knobs) << fmt::format("call {}: {}, {}", i, fmt::join(said, " "), fmt::join(fixed, " "));
    ASSERT_EQ(with.strategy, free.strategy) << i;
    ASSERT_GT(seconds_on(with, machine), 0);
    // A plan of strategy fused stays where it was, whatever is said of chunks and of hosts.
    if (free.strategy == Strategy::fused) {
      const Plan chunks = chosen(p, machine, free.strategy, {.chunks = 7}, {"chunks"});
      ASSERT_EQ(chunks.ranks, free.ranks) << i;
    }
  }
}

}  // namespace
}  // namespace imbrex
