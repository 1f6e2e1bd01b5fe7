// The checker refutes plans that were broken on purpose. Mutants are also run without the check, with delays and over
// several epochs: what it accepts must come out right. One in four of those that it refutes runs, which shows that
// mutants do harm. A mutant that breaks the format cannot be run, so it says nothing of the checker and another takes
// its place.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "execute/mutate.hpp"
#include "support/exact_run.hpp"

namespace imbrex {
namespace {

constexpr int epochs = 5, lanes = 4;

int run_mutant(const Plan& plan, std::uint64_t seed, double wait_limit) {
  return test::run_ranks_of(plan, wait_limit,
                            [&](World& w) { return test::run_exact(w, plan, test::mutant_options(seed), epochs); });
}

struct Tally {
  int made = 0, refuted = 0, refuted_run = 0, harmful = 0;  // harmful: of refuted_run
};

struct Mutant {
  test::RandomCase origin;
  Plan plan;
  test::Mutation kind;
  std::string where;
};

// What mutants are made of: that strategy's plans, or any strategy's; those of that operator, or of any. With
// `outputs`: of problems with further B, the gathered A, or both.
struct Origin {
  std::optional<Strategy> strategy{};
  bool outputs = false;
  std::optional<Operator> op{};
};

Mutant make_mutant(test::Random& random, const Origin& origin) {
  const auto& [strategy, outputs, op] = origin;
  for (;;) {
    Mutant m{test::random_case(random, {.max_ranks = 4, .max_size = 40, .bias = true, .lists = true}), {}, {}, {}};
    if (m.origin.problem.ranks == 1 || (op && m.origin.problem.op != *op)) continue;
    if (outputs && m.origin.problem.more_n.front() == 0 && !m.origin.problem.gathered_a) continue;
    if (strategy == Strategy::signaled) {
      m.origin.problem.more_n = {};
      m.origin.problem.gathered_a = false;
    }
    if (strategy) m.origin = {m.origin.problem, *strategy, test::random_knobs(random, m.origin.problem, *strategy)};
    m.origin.problem.type = m.origin.knobs.partial = Type::fp32;
    if (random.chance(0.3)) {  // cut along K
      m.origin.problem.k = 4 * 128 * m.origin.problem.ranks;
      m.origin.knobs.split_k = static_cast<int>(random.between(2, 4));
      m.origin.knobs.cluster_k = 1;
    }
    m.origin.knobs.cluster = 1;  // pairs are nothing to this executor, and would be at fault wherever tasks change
    // Small tiles: several tasks of each kind.
    m.origin.knobs.tile_m = m.origin.knobs.tile_n = random.one_of<std::int64_t>({8, 16});
    if (m.origin.strategy == Strategy::signaled) test::set_groups(random, m.origin.problem, m.origin.knobs);
    m.plan = make_plan(m.origin.problem, m.origin.strategy, m.origin.knobs);
    m.kind = static_cast<test::Mutation>(random.between(0, test::mutation_kinds - 1));
    if (auto where = test::mutate(m.plan, m.kind, random); where && !check_format(m.plan)) {
      m.where = *where;
      return m;
    }
  }
}

void expect_refuted(int mutants, const Origin& origin) {
  const std::uint64_t seed = test::seed_from_environment();
  std::atomic<int> next = 0;
  std::mutex mutex;
  std::map<std::string, Tally> tallies;
  std::vector<std::string> misses;
  const auto work = [&] {
    for (int i; (i = next.fetch_add(1)) < mutants;) {
      test::Random random(seed * 1000003 + static_cast<std::uint64_t>(i));
      const Mutant m = make_mutant(random, origin);
      const auto finding = check(m.plan);
      const bool runs = !finding || i % 4 == 0;
      int code = runs ? run_mutant(m.plan, seed + static_cast<std::uint64_t>(i) + 1, 0.15) : 0;
      // A busy machine can make a sound plan look stuck.
      if (code != 0 && !finding) code = run_mutant(m.plan, seed + static_cast<std::uint64_t>(i) + 1, 10);
      const std::lock_guard lock(mutex);
      Tally& tally = tallies[test::name_of(m.kind)];
      ++tally.made;
      tally.refuted += finding.has_value();
      tally.refuted_run += finding && runs;
      tally.harmful += finding && code != 0;
      if (code != 0 && !finding)
        misses.push_back(fmt::format("{} {} in {}", test::name_of(m.kind), m.where, test::describe(m.origin)));
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < lanes; ++i) threads.emplace_back(work);
  }
  Tally total;
  const auto print = [](std::string_view name, const Tally& t) {
    fmt::print("{:<15} {:>6} {:>8} {:>16} {:>8}\n", name, t.made, t.refuted, t.refuted_run, t.harmful);
  };
  fmt::print("{:<15} {:>6} {:>8} {:>16} {:>8}\n", "mutation", "made", "refuted", "of these run", "harmful");
  for (const auto& [name, t] : tallies) {
    print(name, t);
    total.made += t.made, total.refuted += t.refuted, total.refuted_run += t.refuted_run, total.harmful += t.harmful;
  }
  print("all", total);
  for (const std::string& miss : misses) fmt::print("missed: {}\n", miss);
  EXPECT_TRUE(misses.empty());
  EXPECT_GE(total.refuted, mutants / 3);
  EXPECT_GE(total.harmful, total.refuted_run / 3) << "too few mutants do harm for the figure to mean anything";
}

TEST(Mutation, CheckerRefutesWhatRunsWrongOrSticks) { expect_refuted(1000, {}); }

TEST(Mutation, CheckerRefutesSignaledPlans) { expect_refuted(1000, {.strategy = Strategy::signaled}); }

TEST(Mutation, CheckerRefutesRings) {
  expect_refuted(300, {.strategy = Strategy::decomposed, .op = Operator::all_gather_gemm});
}

TEST(Mutation, CheckerRefutesWhatIsWrongWithFurtherOutputs) { expect_refuted(200, {.outputs = true}); }

}  // namespace
}  // namespace imbrex
