// Memory that a world gives back: on the CPU there is none, but ranks agree; and what comes before the next call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "runtime/agreement.hpp"
#include "runtime/calls.hpp"
#include "support/operators.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::error_of;
using test::Random;

constexpr WorldOptions options{.heap_bytes = 1 << 24, .wait_limit = 20};

class Sum {
 public:
  explicit Sum(World& world) : world_(world), reduce_(world, 64, Type::fp32, {}, Device::cpu) {}

  /// Returns whether the result is right. `wrong`: an operand is null.
  bool call(float value, bool wrong = false) {
    std::vector<float> in(64, value), out(64);
    reduce_.run({{"in", View::vector(wrong ? nullptr : in.data(), Type::fp32, 64)},
                 {"out", View::vector(out.data(), Type::fp32, 64)}});
    for (const float one : out)
      if (one != value * static_cast<float>(world_.size())) return false;
    return true;
  }

 private:
  World& world_;
  AllReduce reduce_;
};

int trim_between(World& world) {
  trim(world);  // nothing was made yet
  restore(world);
  Sum sum(world);
  test::OperatorCase product(world, Operator::gemm_all_reduce, {.m = 8, .n = 16, .k = 24}, test::on_cpu());
  for (int round = 0; round < 8; ++round) {
    if (round % 2 == 0) trim(world);
    if (round % 3 == 0) restore(world);
    if (round == 5) trim(world), trim(world), restore(world), restore(world);
    std::vector<std::byte> out(product.out_bytes());
    product.op().run(product.operands(out.data()));
    if (!product.judge(out).empty() || !sum.call(static_cast<float>(round))) return 1;
  }
  return 0;
}

TEST(Trim, DoesNothingOnTheCpu) {
  EXPECT_EQ(run_threads(3, options, trim_between), 0);
  EXPECT_EQ(run_processes(3, options, trim_between), 0);
  EXPECT_EQ(run_threads(1, options, trim_between), 0);
}

// Rank 0 comes first or last.
int disagree(World& world, bool first, const std::function<void(World&)>& other) {
  Sum sum(world);
  if (!sum.call(1)) return 1;
  if ((world.rank() == 0) != first) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::string said = error_of([&] { world.rank() == 0 ? trim(world) : other(world); });
  if (said.empty()) return 2;
  if (said.find("differ") == std::string::npos && said.find("asked for") == std::string::npos) {
    fmt::print(stderr, "{}\n", said);
    return 3;
  }
  trim(world);
  return sum.call(2) ? 0 : 4;
}

TEST(Trim, SaysWhereRanksDoOtherThings) {
  for (const bool first : {true, false}) {
    const auto restores = [&](World& world) { return disagree(world, first, restore); };
    EXPECT_EQ(run_threads(3, options, restores), 0);
    const auto makes = [&](World& world) {
      return disagree(world, first, [](World& all) { AllReduce(all, 64, Type::fp32, {}, Device::cpu); });
    };
    EXPECT_EQ(run_processes(3, options, makes), 0);
  }
}

// A rank that trims before others call; they take no part in it.
int trim_beside_calls(World& world) {
  Sum sum(world);
  for (int round = 0; round < 4; ++round) {
    const bool trims = world.rank() == round % world.size();
    if (!trims) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const std::string said = error_of([&] { trims ? trim(world) : static_cast<void>(sum.call(1)); });
    if (said.empty()) return 1;
    if (!sum.call(static_cast<float>(round))) return 2;
  }
  return 0;
}

TEST(Trim, OfSomeRanksFailsOnAllAndTheNextCallIsRight) {
  EXPECT_EQ(run_threads(3, options, trim_beside_calls), 0);
  EXPECT_EQ(run_processes(2, options, trim_beside_calls), 0);
}

// What restores comes once on every rank, with the next call that is made, also by a rank that refused it.
int begin_with_prelude(World& world, std::uint64_t seed) {
  Sum sum(world);
  runtime::Calls& calls = runtime::calls_of(world);
  Random random(seed), own(seed + 7 * static_cast<std::uint64_t>(world.rank()) + 1);
  for (int round = 0; round < 100; ++round) {
    int done = 0;
    runtime::agree(world, [] { return runtime::Terms("a prelude"); });
    calls.set_prelude([&] {
      runtime::agree(world, [] { return runtime::Terms("in a prelude"); });
      ++done;
    });
    const auto refuses = static_cast<int>(random.between(0, world.size()));  // the last number: none does
    const bool all = random.chance(0.2);
    if (own.chance(0.5)) std::this_thread::sleep_for(std::chrono::microseconds(own.between(0, 300)));
    const bool wrong = refuses < world.size() && (all || world.rank() == refuses);
    const std::string said = error_of([&] { static_cast<void>(sum.call(3, wrong)); });
    if (said.empty() != (refuses == world.size())) return 1;
    if (!sum.call(static_cast<float>(round))) return 2;
    if (done != 1 || calls.has_prelude()) return 3;
  }
  return 0;
}

TEST(Prelude, ComesOnceWithTheNextCall) {
  const std::uint64_t seed = test::seed_from_environment();
  const auto body = [&](World& world) { return begin_with_prelude(world, seed); };
  EXPECT_EQ(run_threads(3, options, body), 0);
  EXPECT_EQ(run_processes(3, options, body), 0);
  EXPECT_EQ(run_threads(1, options, body), 0);
}

// Where it fails, the call fails on every rank, and the next call begins with it.
int fail_in_prelude(World& world) {
  Sum sum(world);
  int tries = 0;
  runtime::calls_of(world).set_prelude([&] {
    runtime::agree(world, [&] {
      if (++tries == 1 && world.rank() == 0) throw Error(ErrorCode::runtime_failure, "no memory left");
      return runtime::Terms("in a prelude");
    });
  });
  const std::string said = error_of([&] { static_cast<void>(sum.call(1)); });
  if (said.find("no memory left") == std::string::npos) return 1;
  return sum.call(2) && tries == 2 ? 0 : 2;
}

TEST(Prelude, ThatFailsIsTriedAgain) { EXPECT_EQ(run_threads(3, options, fail_in_prelude), 0); }

}  // namespace
}  // namespace imbrex
