// Operators of embeddings that run a plan which their caller brings.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>

#include "embedding/lookup.hpp"
#include "embedding/sharded.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "support/edited_bags.hpp"
#include "support/operators.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::error_of, test::RandomBags, test::Sharded;

constexpr WorldOptions of_given{.heap_bytes = 1 << 27, .wait_limit = 60};

// Neither it nor a part of it is chosen anew.
TEST(GivenEmbeddingPlan, RunsAsItStands) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 10; ++i) {
    std::mt19937_64 random(seed + i);
    Sharded c = test::deal(random, test::random_bags(random, {.rows = 60, .part_rows = 9}), i % 3 != 0);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed + i, c.whole.text()));
    look_up(c.whole.tables(), c.whole.bags, c.whole.output(), whole(c.whole.tables(), c.whole.bags));
    OperatorOptions options = test::on_cpu();
    options.strategy = Strategy::fused;
    options.knobs = Knobs{.tile_m = 1 + static_cast<std::int64_t>(random() % 5)};
    options.cpu.workers = 1 + static_cast<int>(random() % 2);
    Plan made;
    results_of(c, of_given, [&](World& world, std::vector<std::byte>&) {
      const EmbeddingAllToAll op(world, c.shape, options);
      if (world.rank() == 0) made = op.plan();
    });
    options.strategy.reset(), options.knobs.reset();
    for (const auto& [name, plan] : test::edited_bags(made)) {
      ASSERT_FALSE(check(plan)) << name;
      options.plan = std::make_shared<const Plan>(plan);
      EXPECT_EQ(results_of(c, of_given,
                           [&](World& world, std::vector<std::byte>& out) {
                             EmbeddingAllToAll op(world, c.shape, options);
                             if (op.plan() != *options.plan) throw Error(ErrorCode::unsound, "another plan runs");
                             for (int call = 0; call < 3; ++call)
                               op.run(c.operands(op, world.rank(), out.data(), false));
                           }),
                c.whole.part)
          << name;
    }
  }
}

TEST(GivenEmbeddingPlan, IsOfTheOperatorAndKeepsTheFormat) {
  std::mt19937_64 random(4);
  RandomBags bags;
  do bags = test::random_bags(random, {.part_rows = 6});
  while (bags.ranks != 2 || bags.bags.batch < 4);
  const Sharded c = test::deal(random, std::move(bags), true);
  const auto refusal = [&](const std::function<void(OperatorOptions&, Plan&)>& change) {
    std::string text;
    std::mutex lock;
    run_threads(2, of_given, [&](World& world) {
      OperatorOptions options = test::on_cpu();
      Plan plan = EmbeddingAllToAll(world, c.shape, options).plan();
      change(options, plan);
      options.plan = std::make_shared<const Plan>(std::move(plan));
      const std::string own = error_of([&] {
        EmbeddingAllToAll op(world, c.shape, options);
        std::vector<std::byte> out(c.part_bytes());
        std::vector<Operand> operands = c.operands(op, world.rank(), out.data(), false);
        // Empty bags of a smaller batch.
        std::vector<std::int64_t> offsets(1000);
        for (Operand& operand : operands)
          if (operand.name == "out") {
            operand.view.extents[0] = 1;
          } else if (operand.name == "offsets") {
            operand.view.extents[0] = (operand.view.extents[0] - 1) / c.shape.batch * 2 + 1;
            operand.view.data = offsets.data();
          }
        op.run(operands);
      });
      const std::lock_guard guard(lock);
      text = own;
      return 0;
    });
    return text;
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(refusal([](OperatorOptions&, Plan&) {}), "batch = 2: the plan that was given is of batch = ");
  expect(refusal([](OperatorOptions&, Plan& plan) { plan.problem.m += 2; }), "the plan is of a problem with ");
  expect(refusal([](OperatorOptions& options, Plan&) { options.strategy = Strategy::fused; }),
         "a plan is given, and a strategy with it");
  expect(refusal([](OperatorOptions&, Plan& plan) {
           plan.ranks.front().queues.front().tasks.front().posts = {{7, 0}};
         }),
         "malformed: ");
}

}  // namespace
}  // namespace imbrex
