// Tasks say everything: what a plan says of its origin, its strategy and knobs, changes nothing of what runs.
#include <gtest/gtest.h>

#include "cuda_tables.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/refusal.hpp"
#include "plan/digest.hpp"
#include "support/exact_run.hpp"
#include "support/kernel_list.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;

void scramble(Plan& plan, test::Random& random) {
  const auto number = [&] { return static_cast<int>(random.between(-3, 1 << 20)); };
  plan.strategy = random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled});
  Knobs& k = plan.knobs;
  for (std::int64_t* knob : {&k.tile_m, &k.tile_n, &k.comm_rows}) *knob = number();
  for (int* knob : {&k.cluster, &k.cluster_k, &k.group, &k.k_slices, &k.split_k, &k.chunks, &k.nodes, &k.library_tile,
                    &k.library_parts, &k.own_shift, &k.abreast, &k.kept_free})
    *knob = number();
  k.order = random.one_of({TileOrder::owner_major, TileOrder::column_major, TileOrder::naive});
  k.transport = random.one_of({Transport::store, Transport::push, Transport::pull});
  k.reducer = random.one_of({Reducer::tile, Reducer::tail, Reducer::reserved});
  k.span_shards = random.chance(0.5);
  k.one_shot = random.chance(0.5);
  k.packed = random.chance(0.5);
  for (std::int32_t& size : k.groups) size = static_cast<std::int32_t>(number());
  k.partial = random.one_of({Type::bf16, Type::fp16, Type::fp32, Type::e4m3});
  if (random.chance(0.5)) k.codec = parse_codec_pair("int4+int8");
}

void expect_same_tables(const Plan& x, const Plan& y, int rank, const TileShape& shape) {
  RankTable a, b;
  ASSERT_EQ(test::table_or_refusal(x, rank, shape, a), test::table_or_refusal(y, rank, shape, b));
  EXPECT_TRUE(test::same_bytes(a.tasks, b.tasks) && test::same_bytes(a.waits, b.waits) &&
              test::same_bytes(a.regions, b.regions) && test::same_bytes(a.posts, b.posts) &&
              test::same_bytes(a.queues, b.queues));
  EXPECT_EQ(a.copies.size(), b.copies.size());
  EXPECT_EQ(fits(x, survey_of(x, rank), shape), fits(y, survey_of(y, rank), shape));
}

void expect_same_launches(const Plan& x, const Plan& y, int rank) {
  const LibraryProgram a = library_program(x, rank), b = library_program(y, rank);
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_TRUE(a.steps[i].work == b.steps[i].work);
    EXPECT_EQ(a.steps[i].stream, b.steps[i].stream);
    EXPECT_EQ(a.steps[i].waits, b.steps[i].waits);
  }
}

TEST(Scramble, OriginsChangeNothingThatRuns) {
  test::Random random(test::seed_from_environment());
  const test::KernelList kernels = test::read_kernel_list(KERNEL_LIST);
  const Machine machine = load_machine("4xh200");
  const auto simulator = make_simulator(machine);
  int libraries = 0, kernels_named = 0, ran = 0;
  for (int i = 0; i < 200; ++i) {
    test::RandomCase c = test::random_case(random, {.max_ranks = 4, .max_size = 400, .bias = true, .e4m3 = true});
    const bool runs = i % 4 == 0;  // exact operands are fp32
    if (runs) test::set_type(random, c.problem, Type::fp32);
    if (runs) c.knobs.partial = Type::fp32;
    SCOPED_TRACE(test::describe(c));
    const auto plan = std::make_shared<const Plan>(make_plan(c.problem, c.strategy, c.knobs));
    auto changed = std::make_shared<Plan>(*plan);
    scramble(*changed, random);
    EXPECT_EQ(plan::digest_of(*plan), plan::digest_of(*changed));
    EXPECT_EQ(simulator->prepare(plan)->run({}).seconds, simulator->prepare(changed)->run({}).seconds);
    const std::string refused = refusal_of_plan(*plan);
    EXPECT_EQ(refused, refusal_of_plan(*changed));
    const int rank = static_cast<int>(random.between(0, c.problem.ranks - 1));
    ASSERT_EQ(runs_by_libraries(*plan), runs_by_libraries(*changed));
    if (refused.empty() && runs_by_libraries(*plan) && !runs_in_lanes(*plan)) {
      expect_same_launches(*plan, *changed, rank);
      ++libraries;
    } else if (refused.empty()) {
      for (const Sharing sharing : {Sharing::b, Sharing::k})
        expect_same_tables(*plan, *changed, rank, {128, 128, 2, false, 16, 16, sharing});
      const auto name = [&](const std::shared_ptr<const Plan>& p) {
        try {
          return test::kernel_of(*plan::stored_tasks(p), kernels);
        } catch (const Error& error) {
          return std::string(error.what());
        }
      };
      EXPECT_EQ(name(plan), name(changed));
      ++kernels_named;
    }
    if (runs) {
      // Both are exact, so their bits are the same.
      for (const auto& p : {plan, std::shared_ptr<const Plan>(changed)})
        EXPECT_EQ(run_threads(c.problem.ranks, {.heap_bytes = 1 << 26},
                              [&](World& world) { return test::run_exact(world, *p, {.workers = 2}, 2); }),
                  0);
      ++ran;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(libraries, 30);
  EXPECT_GT(kernels_named, 20);
  EXPECT_GT(ran, 30);
}

}  // namespace
}  // namespace imbrex
