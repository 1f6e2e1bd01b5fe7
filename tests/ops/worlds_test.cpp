// Several worlds in one process, each with a heap of its own, whose operators are called in turn: one of all ranks, and
// two of half of them, as tensor and expert groups are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"
#include "support/groups.hpp"
#include "support/operators.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::group_of;
using test::OperatorCase;
using test::Random;

const WorldOptions roomy{.heap_bytes = 1 << 24, .wait_limit = 30};

int take_turns(World& all, std::uint64_t seed, int calls) {
  const auto pair = group_of(all, 2, {.heap_bytes = 1 << 23, .wait_limit = 30});
  const auto again = group_of(all, all.size(), roomy);
  EXPECT_NE(pair->heap().handle().base, all.heap().handle().base);
  OperatorOptions options;
  options.device = Device::cpu;
  std::vector<std::unique_ptr<OperatorCase>> cases;
  // Made in turn, too. The two pairs have operands of their own.
  for (World* world : {&all, pair.get(), again.get()})
    for (const Operator op : {Operator::gemm_all_reduce, Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                              Operator::gemm_all_to_all})
      cases.push_back(std::make_unique<OperatorCase>(*world, op, GemmShape{.m = 32, .n = 16, .k = 24}, options,
                                                     world == pair.get() ? 7 + all.rank() / 2 : 3));
  Random random(seed);  // the same on every rank
  for (int call = 0; call < calls; ++call) {
    OperatorCase& c = *cases[static_cast<std::size_t>(random.between(0, std::ssize(cases) - 1))];
    std::vector<std::byte> out(c.out_bytes());
    c.op().run(c.operands(out.data()));
    if (const std::string wrong = c.judge(out); !wrong.empty()) {
      fmt::print(stderr, "call {}: {}\n", call, wrong);
      return 1;
    }
  }
  return 0;
}

TEST(SeveralWorlds, TakeTurns) {
  const std::uint64_t seed = test::seed_from_environment();
  const auto body = [&](World& world) { return take_turns(world, seed, 1000); };
  EXPECT_EQ(run_threads(4, roomy, body), 0);
  EXPECT_EQ(run_processes(4, roomy, body), 0);
}

// Worlds come and go while another one lives.
int come_and_go(World& all) {
  AllReduce sum(all, 64, Type::fp32, {}, Device::cpu);
  std::vector<float> in(64, static_cast<float>(all.rank() + 1)), out(64);
  for (int round = 0; round < 20; ++round) {
    const auto group = group_of(all, round % 2 == 0 ? 2 : all.size(), {.heap_bytes = 1 << 20, .wait_limit = 30});
    AllReduce part(*group, 64, Type::fp32, {}, Device::cpu);
    const View from = View::vector(in.data(), Type::fp32, 64), to = View::vector(out.data(), Type::fp32, 64);
    part.run({{"in", from}, {"out", to}});
    float expected = 0;
    for (int rank = 0; rank < group->size(); ++rank)
      expected += static_cast<float>(all.rank() / group->size() * group->size() + rank + 1);
    if (out[5] != expected) return 1;
    sum.run({{"in", from}, {"out", to}});
    if (out[63] != 10) return 1;
  }
  return 0;
}

TEST(SeveralWorlds, ComeAndGo) {
  EXPECT_EQ(run_threads(4, roomy, come_and_go), 0);
  EXPECT_EQ(run_processes(4, roomy, come_and_go), 0);
}

// What fails in one world ends that one only.
int fail_in_one(World& all) {
  const auto pair = group_of(all, 2, roomy);
  if (all.rank() == 1) pair->fail("no more of this");
  if (all.rank() < 2) {
    try {
      pair->barrier();
      return 1;
    } catch (const Error& error) {
      if (std::string(error.what()) != "rank 1 failed: no more of this") return 1;
    }
  } else {
    pair->barrier();
  }
  all.barrier();
  return take_turns(all, 1, 20);
}

TEST(SeveralWorlds, FailEachForItself) {
  EXPECT_EQ(run_threads(4, roomy, fail_in_one), 0);
  EXPECT_EQ(run_processes(4, roomy, fail_in_one), 0);
}

}  // namespace
}  // namespace imbrex
