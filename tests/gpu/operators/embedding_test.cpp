// Embeddings over ranks on GPUs: the CPU's bits, whatever the strategy, from graphs too; hostile numbers are told to
// every rank; and ranks that do not come are named.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "embedding/lookup.hpp"
#include "embedding/random_step.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/operators/embedding_on_gpu.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::drawn, test::expect, test::on_gpus, test::on_world, test::OnGpu, test::RandomBags, test::roomy;
using test::Sharded, test::Stream, test::Trouble;

// Not for threads that share a GPU.
bool libraries_run() {
#if defined(IMBREX_HAVE_LIBRARIES)
  return test::ranks_per_gpu() == 1 || test::ranks_are_processes();
#else
  return false;
#endif
}

std::vector<std::optional<Strategy>> ways(const Sharded& c) {
  std::vector<std::optional<Strategy>> all{std::nullopt, Strategy::fused};
  const bool hold = std::none_of(c.ranks.begin(), c.ranks.end(), [](const auto& rank) { return rank.table.empty(); });
  if (hold && libraries_run()) all.insert(all.end(), {Strategy::sequential, Strategy::decomposed});
  return all;
}

TEST(GpuEmbedding, GivesTheCpusBits) {
  NEEDS_GPUS(1);
  const std::uint64_t seed = test::seed_from_environment();
  for (const int ranks : test::rank_counts(1)) {
    const int count = test::cases(20);
    EXPECT_EQ(on_world(ranks, roomy,
                       [&](World& world) {
                         for (int i = 0; i < count; ++i) {
                           std::mt19937_64 random(seed + static_cast<std::uint64_t>(100 * ranks + i));
                           Sharded c =
                               drawn(random, ranks, {.rows = 200, .part_rows = 40, .misfits = i % 3 == 0}, i % 2 == 0);
                           c.shape.misfits = i % 3 == 0 ? Misfits::ignored : Misfits::refused;
                           look_up(c.whole.tables(), c.whole.bags, c.whole.output(),
                                   whole(c.whole.tables(), c.whole.bags));
                           const auto& wanted = c.whole.part[static_cast<std::size_t>(world.rank())];
                           std::int64_t ignored = 0;
                           for (const auto& rank : c.ranks)
                             if (!rank.table.empty())
                               ignored += embedding::check_bags(rank.tables(c.shape.rows), rank.bags, Misfits::ignored);
                           for (const std::optional<Strategy> strategy : ways(c)) {
                             const std::string what = fmt::format("case {}: {}, {}", i, c.whole.text(),
                                                                  strategy ? name_of(*strategy) : "no strategy");
                             OperatorOptions options = on_gpus(strategy);
                             if (strategy) {
                               options.knobs.emplace();
                               options.knobs->tile_m = 1 + static_cast<std::int64_t>(random() % 7);
                               options.knobs->chunks = 1 + static_cast<int>(random() % 3);
                             }
                             EmbeddingAllToAll op(world, c.shape, options);
                             expect(op.device() == Device::cuda, op.why_cpu());
                             OnGpu there(c, world.rank());
                             const Stream stream(world);
                             op.run(there.operands(op, false), stream);
                             op.synchronize(stream);
                             expect(there.out() == wanted, what + ": other bits than the CPU's");
                             expect(op.report().ignored == ignored, what + ": another number is ignored");
                             // Where peers write it directly.
                             const std::shared_ptr<void> shared = op.allocate_output();
                             for (int repeat = 0; repeat < 3; ++repeat)
                               op.run(there.operands(op, false, shared.get()), stream);
                             op.synchronize(stream);
                             expect(there.out(shared.get()) == wanted, what + ": other bits in memory for outputs");
                             world.barrier();
                           }
                         }
                         return 0;
                       }),
              0)
        << ranks << " ranks";
  }
}

TEST(GpuEmbedding, CallsHaveAnyBatchUpToTheLargest) {
  NEEDS_GPUS(2);
  const int ranks = std::min(test::most_ranks(), 4);
  EXPECT_EQ(on_world(ranks, roomy,
                     [&](World& world) {
                       std::mt19937_64 random(3);
                       const Sharded c = drawn(random, ranks, {.part_rows = 30}, true);
                       RandomBags expected = c.whole;
                       for (std::size_t d = 0; d < expected.part.size(); ++d)
                         expected.parts[d] = expected.part[d].data();
                       look_up(expected.tables(), expected.bags, expected.output(),
                               whole(expected.tables(), expected.bags));
                       EmbeddingShape shape = c.shape;
                       shape.batch = 100 * ranks;
                       EmbeddingAllToAll same(world, c.shape, on_gpus({})), op(world, shape, on_gpus({}));
                       OnGpu there(c, world.rank());
                       const Stream stream(world);
                       for (int i = 0; i < 3; ++i) op.run(there.operands(same, false), stream);
                       op.report();
                       expect(there.out() == expected.part[static_cast<std::size_t>(world.rank())], "other bits");
                       return 0;
                     }),
            0);
}

TEST(GpuEmbedding, UpdatesGiveTheCpusBits) {
  NEEDS_GPUS(1);
  const std::uint64_t seed = test::seed_from_environment();
  for (const int ranks : test::rank_counts(1)) {
    EXPECT_EQ(on_world(ranks, roomy,
                       [&](World& world) {
                         for (int i = 0; i < test::cases(10); ++i) {
                           std::mt19937_64 random(seed + static_cast<std::uint64_t>(1000 * ranks + i));
                           test::RandomStep step;
                           do step = test::random_step(random, {.rows = 100, .part_rows = 20, .misfits = i % 3 == 0});
                           while (step.bags.ranks != ranks);
                           Sharded c = test::deal(random, std::move(step.bags), i % 2 == 0);
                           c.shape.optimizer = step.step.optimizer, c.shape.epsilon = step.step.epsilon;
                           c.shape.misfits = i % 3 == 0 ? Misfits::ignored : Misfits::refused;
                           const auto r = static_cast<std::size_t>(world.rank());
                           EmbeddingAllToAll op(world, c.shape, on_gpus(Strategy::fused));
                           OnGpu there(c, world.rank());
                           const Stream stream(world);
                           test::RankBags& own = c.ranks[r];
                           std::vector<float*> states;
                           std::vector<std::vector<float>> wanted_states = own.states;
                           std::vector<std::vector<std::byte>> wanted = own.rows;
                           std::vector<embedding::Table> table = own.table;
                           for (std::size_t t = 0; t < table.size(); ++t) table[t].rows = wanted[t].data();
                           for (auto& state : wanted_states) states.push_back(state.data());
                           for (int s = 0; s < 5; ++s) {
                             test::draw_gradients(random, c.whole);
                             world.barrier();
                             there.give(c.whole.part[r]);
                             op.update(there.operands(op, true), step.step.rate, stream);
                             op.report();
                             if (!table.empty())
                               embedding::update(
                                   {table.data(), static_cast<std::int32_t>(table.size()), c.shape.rows}, own.bags,
                                   c.whole.output(),
                                   {step.step.optimizer, step.step.rate, step.step.epsilon, states.data()});
                           }
                           for (std::size_t t = 0; t < table.size(); ++t) {
                             const std::string what =
                                 fmt::format("case {}: {}, shard {} of rank {}", i, c.whole.text(), t, r);
                             expect(there.now(own.rows[t]) == wanted[t], what + ": other bits");
                             if (c.shape.optimizer == Optimizer::row_wise_adagrad)
                               expect(there.now(own.states[t]) == wanted_states[t], what + ": other states");
                           }
                           world.barrier();
                         }
                         return 0;
                       }),
              0)
        << ranks << " ranks";
  }
}

TEST(GpuEmbedding, HostileNumbersAreToldToEveryRank) {
  NEEDS_GPUS(2);
  const int ranks = std::min(test::most_ranks(), 4);
  EXPECT_EQ(
      on_world(ranks, roomy,
               [&](World& world) {
                 for (int i = 0; i < test::cases(20); ++i) {
                   std::mt19937_64 random(static_cast<std::uint64_t>(i));
                   Sharded c = drawn(random, ranks, {.rows = 50, .part_rows = 10}, true);
                   std::size_t bad = 0;
                   do bad = random() % c.ranks.size();
                   while (c.ranks[bad].bags.count == 0);
                   Sharded broken = c;
                   test::RankBags& rank = broken.ranks[bad];
                   const std::int64_t wide[] = {-1, std::int64_t{1} << 33, 0x7fffffff, -(std::int64_t{1} << 62)};
                   const bool offsets = i % 2 == 0;
                   std::int64_t value = wide[random() % 4];
                   if (c.shape.index_type == IndexType::int32) value = random() % 2 == 0 ? -1 : 0x7fffffff;
                   auto& numbers = offsets ? rank.offsets : rank.indices;
                   const auto count = numbers.size() / static_cast<std::size_t>(embedding::size_of(c.shape.index_type));
                   test::put_number(numbers, c.shape.index_type, static_cast<std::int64_t>(random() % count), value);
                   for (auto& r : broken.ranks) r.bags.indices = r.indices.data(), r.bags.offsets = r.offsets.data();
                   look_up(c.whole.tables(), c.whole.bags, c.whole.output(), whole(c.whole.tables(), c.whole.bags));
                   EmbeddingAllToAll op(world, c.shape, on_gpus(Strategy::fused));
                   OnGpu there(c, world.rank()), hostile(broken, world.rank());
                   const Stream stream(world);
                   op.run(hostile.operands(op, false), stream);
                   std::string refusal;
                   try {
                     op.report();
                   } catch (const Error& error) {
                     expect(error.code() == ErrorCode::invalid_input, error.what());
                     refusal = error.what();
                   }
                   const std::string what = fmt::format("case {}: {} on rank {}: '{}'", i, value, bad, refusal);
                   expect(refusal.find(fmt::format("{}", value)) != std::string::npos, what);
                   op.run(there.operands(op, false), stream);  // the operator goes on
                   op.report();
                   expect(there.out() == c.whole.part[static_cast<std::size_t>(world.rank())],
                          what + ": other bits then");
                   world.barrier();
                 }
                 return 0;
               }),
      0);
}

// A misfit on one rank, by strategy, of a lookup or an update, of a call or a replay that is under way.
void expect_named(World& world, int i, const std::optional<Strategy>& strategy, bool updates, bool replays) {
  std::mt19937_64 random(static_cast<std::uint64_t>(i) + 50);
  test::RandomStep step;
  do step = test::random_step(random, {.rows = 50, .part_rows = 10});
  while (step.bags.ranks != world.size() || step.bags.bags.count == 0);
  Sharded c = test::deal(random, std::move(step.bags), true);
  c.shape.optimizer = step.step.optimizer, c.shape.epsilon = step.step.epsilon;
  std::size_t bad = 0;
  do bad = random() % c.ranks.size();
  while (c.ranks[bad].bags.count == 0);
  Sharded broken = c;
  test::RankBags& rank = broken.ranks[bad];
  test::put_number(rank.indices, c.shape.index_type,
                   static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rank.bags.count)), 987654);
  for (auto& r : broken.ranks) r.bags.indices = r.indices.data(), r.bags.offsets = r.offsets.data();
  std::string wanted;
  try {
    embedding::check_bags(rank.tables(c.shape.rows), rank.bags, Misfits::refused);
  } catch (const Error& error) {
    wanted = error.what();
  }
  OperatorOptions options = on_gpus(strategy);
  if (strategy) options.knobs.emplace();
  EmbeddingAllToAll op(world, c.shape, options);
  OnGpu there(c, world.rank()), hostile(broken, world.rank());
  const Stream stream(world), other(world);
  const auto call = [&](const OnGpu& with) {
    if (updates)
      op.update(with.operands(op, true), 0.125f, stream);
    else
      op.run(with.operands(op, false), stream);
  };
  call(there);
  op.report();
  world.barrier();
  std::optional<cuda::Graph> graph;
  if (replays) {
    graph.emplace(stream, 2, [&] { call(hostile); });
    world.barrier();
    IMBREX_CUDA_TRY(cudaLaunchHostFunc(
        other, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }, nullptr));
    graph->launch(other);
    hostile.forget(other);
  } else {
    call(hostile);
    hostile.forget(stream);
  }
  std::string refusal = "nothing";
  try {
    op.report();
  } catch (const Error& error) {
    refusal = error.what();
  }
  expect(refusal.find(wanted) != std::string::npos,
         fmt::format("case {}, {}, updates {}, replays {}: told '{}' in place of '{}'", i,
                     strategy ? name_of(*strategy) : "no strategy", updates, replays, refusal, wanted));
  call(there);  // the operator goes on
  op.report();
  world.barrier();
}

TEST(GpuEmbedding, OperandsMayBeGoneAtTheReport) {
  NEEDS_GPUS(1);
  for (const int ranks : test::rank_counts(1)) {
    if (ranks > 4) continue;
    EXPECT_EQ(on_world(ranks, roomy,
                       [&](World& world) {
                         for (int i = 0; i < test::cases(6); ++i)
                           for (const bool updates : {false, true}) {
                             expect_named(world, i, Strategy::fused, updates, false);
                             expect_named(world, i, Strategy::fused, updates, true);
                           }
                         if (libraries_run())
                           for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
                             expect_named(world, 0, strategy, false, false);
                         return 0;
                       }),
              0)
        << ranks << " ranks";
  }
}

TEST(GpuEmbedding, TenThousandEpochsReplayWithDelays) {
  NEEDS_GPUS(2);
  const int ranks = std::min(test::most_ranks(), 4);
  for (const bool shared : {false, true})
    EXPECT_EQ(on_world(ranks, roomy,
                       [&](World& world) {
                         std::mt19937_64 random(17);
                         Sharded c = drawn(random, ranks, {.rows = 200, .part_rows = 30}, true);
                         look_up(c.whole.tables(), c.whole.bags, c.whole.output(),
                                 whole(c.whole.tables(), c.whole.bags));
                         OperatorOptions options = on_gpus(Strategy::fused, 5);
                         options.cuda.testing.max_delay = 2e-5;
                         options.cuda.testing.first_epoch = 0xffffff00u;  // words wrap
                         EmbeddingAllToAll op(world, c.shape, options);
                         OnGpu there(c, world.rank());
                         const Stream stream(world);
                         const std::shared_ptr<void> memory = shared ? op.allocate_output() : nullptr;
                         const auto operands = there.operands(op, false, memory.get());
                         op.run(operands, stream);
                         op.synchronize(stream);
                         world.barrier();
                         const cuda::Graph graph(stream, 10, [&] { op.run(operands, stream); });
                         world.barrier();
                         const auto& wanted = c.whole.part[static_cast<std::size_t>(world.rank())];
                         const void* out = memory ? memory.get() : nullptr;
                         for (int i = 0; i < 10; ++i) {
                           for (int k = 0; k < 100; ++k) graph.launch(stream);
                           op.synchronize(stream);
                           expect(there.out(out) == wanted, fmt::format("replay {}: other bits", i));
                         }
                         op.run(operands, stream);  // beside graphs
                         op.synchronize(stream);
                         expect(there.out(out) == wanted, "behind the replays: other bits");
                         world.barrier();
                         return 0;
                       }),
              0);
}

TEST(GpuEmbedding, ARankThatDoesNotComeIsNamed) {
  NEEDS_GPUS(2);
  const std::vector<std::string> list = test::told_where_rank_0_is_alone([](World& world, const Sharded& c) {
    return std::make_unique<EmbeddingAllToAll>(world, c.shape, on_gpus(Strategy::fused));
  });
  ASSERT_EQ(list.size(), 2u);
  for (const std::string& text : list) {
    EXPECT_NE(text.find("rank 0, lookup, waited longer than 3 s"), std::string::npos) << text;
  }
}

// The others' kernels wait for it meanwhile.
TEST(GpuEmbedding, AProcessThatIsLostInAnExchangeIsNamed) {
  if (!test::ranks_are_processes()) GTEST_SKIP() << "IMBREX_TEST_RANKS=processes is wanted";
  NEEDS_GPUS(2);
  const int ranks = std::min(test::most_ranks(), 4);
  Trouble told;
  const int code = on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = 5}, [&](World& world) {
    std::mt19937_64 random(23);
    Sharded c = drawn(random, ranks, {.rows = 50, .part_rows = 20}, true);
    EmbeddingAllToAll op(world, c.shape, on_gpus(Strategy::fused));
    OnGpu there(c, world.rank());
    const Stream stream(world);
    for (int i = 0; i < 10; ++i) op.run(there.operands(op, false), stream);
    op.synchronize(stream);
    world.barrier();
    if (world.rank() == 1) _exit(9);
    try {
      for (int i = 0; i < 5; ++i) op.run(there.operands(op, false), stream);
      op.synchronize(stream);
    } catch (const Error& error) {
      told.add(error.what());
      throw;
    }
    return 0;
  });
  EXPECT_EQ(code, 3);
  const std::vector<std::string> list = told.list();
  EXPECT_EQ(list.size(), static_cast<std::size_t>(ranks - 1));
  for (const std::string& text : list) EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace imbrex
