// Plans of embeddings that no strategy makes run on GPUs as they stand: the CPU's bits, call by call and from graphs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "embedding/lookup.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/operators/embedding_on_gpu.hpp"
#include "plan/digest.hpp"
#include "support/edited_bags.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::expect, test::OnGpu, test::Sharded, test::Stream;

OperatorOptions with(Plan plan) {
  OperatorOptions options = test::on_gpus({});
  options.plan = std::make_shared<const Plan>(std::move(plan));
  return options;
}

OperatorOptions fused(std::int64_t tile_m) {
  OperatorOptions options = test::on_gpus(Strategy::fused);
  options.knobs.emplace();
  options.knobs->tile_m = tile_m;
  return options;
}

TEST(GpuEditedBags, GiveTheCpusBits) {
  NEEDS_GPUS(1);
  const std::uint64_t seed = test::seed_from_environment();
  for (const int ranks : test::rank_counts(1)) {
    const int count = test::cases(4);
    EXPECT_EQ(test::on_world(
                  ranks, test::roomy,
                  [&](World& world) {
                    for (int i = 0; i < count; ++i) {
                      std::mt19937_64 random(seed + static_cast<std::uint64_t>(100 * ranks + i));
                      Sharded c = test::drawn(random, ranks, {.rows = 200, .part_rows = 40}, i % 2 == 0);
                      look_up(c.whole.tables(), c.whole.bags, c.whole.output(), whole(c.whole.tables(), c.whole.bags));
                      const auto& wanted = c.whole.part[static_cast<std::size_t>(world.rank())];
                      const Plan made =
                          EmbeddingAllToAll(world, c.shape, fused(1 + static_cast<std::int64_t>(random() % 9))).plan();
                      for (const auto& [name, plan] : test::edited_bags(made)) {
                        const std::string what = fmt::format("seed {}, case {}: {}, {}", seed, i, c.whole.text(), name);
                        expect(!check(plan), what + ": it is not sound");
                        EmbeddingAllToAll op(world, c.shape, with(plan));
                        expect(op.device() == Device::cuda, op.why_cpu());
                        expect(plan::digest_of(op.plan()) == plan::digest_of(plan), what + ": another plan runs");
                        OnGpu there(c, world.rank());
                        const Stream stream(world);
                        for (int call = 0; call < 3; ++call) {
                          there.clear();
                          op.run(there.operands(op, false), stream);
                          op.synchronize(stream);
                          expect(there.out() == wanted, fmt::format("{}, call {}: other bits", what, call));
                        }
                        // Where peers write it directly.
                        const std::shared_ptr<void> shared = op.allocate_output();
                        const auto operands = there.operands(op, false, shared.get());
                        op.run(operands, stream);
                        op.synchronize(stream);
                        expect(there.out(shared.get()) == wanted, what + ": other bits in memory for outputs");
                        world.barrier();
                        const cuda::Graph graph(stream, 3, [&] { op.run(operands, stream); });
                        world.barrier();
                        for (int replay = 0; replay < 5; ++replay) graph.launch(stream);
                        op.synchronize(stream);
                        expect(there.out(shared.get()) == wanted, what + ": other bits from a graph");
                        expect(op.report().ignored == 0, what + ": indices are ignored");
                        world.barrier();
                      }
                    }
                    return 0;
                  }),
              0)
        << ranks << " ranks";
  }
}

// A rank that does not come is told of wherever the wait stands: in a launch, or in a step before it.
TEST(GpuEditedBags, AWaitWithoutEndIsNamed) {
  NEEDS_GPUS(2);
  for (const std::string_view wanted : {"in reverse", "waiting twice", "through two workspaces"}) {
    const auto edited = [&](World& world, const Sharded& c) {
      const Plan made = EmbeddingAllToAll(world, c.shape, fused(5)).plan();
      std::unique_ptr<EmbeddingAllToAll> op;
      for (auto& [name, plan] : test::edited_bags(made))
        if (name == wanted) op = std::make_unique<EmbeddingAllToAll>(world, c.shape, with(plan));
      return op;
    };
    const std::vector<std::string> list = test::told_where_rank_0_is_alone(edited);
    ASSERT_EQ(list.size(), 2u);
    for (const std::string& text : list)
      EXPECT_NE(text.find("rank 0, lookup, waited longer than 3 s for signal "), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace imbrex
