// What the CUDA executor launches for plans with library queues, without a GPU.
#include <gtest/gtest.h>

#include <map>

#include "base/narrow.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/refusal.hpp"
#include "imbrex/error.hpp"
#include "plan/builder.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;

constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

using base::index;

std::vector<Product> products_of(const LibraryProgram& program) {
  std::vector<Product> products;
  for (const LibraryStep& step : program.steps)
    if (const auto* product = std::get_if<Product>(&step.work)) products.push_back(*product);
  return products;
}

// ended[i][j]: step j has ended when step i begins, by streams and events alone.
std::vector<std::vector<bool>> order_of(const LibraryProgram& program) {
  const std::size_t count = program.steps.size();
  std::vector<std::vector<bool>> ended(count, std::vector<bool>(count));
  std::map<std::size_t, std::size_t> last;  // by stream
  const auto follow = [&](std::size_t i, std::size_t j) {
    ended[i][j] = true;
    for (std::size_t k = 0; k < count; ++k)
      if (ended[j][k]) ended[i][k] = true;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const LibraryStep& step = program.steps[i];
    for (const std::size_t j : step.waits) {
      EXPECT_LT(j, i);
      EXPECT_NE(program.steps[j].stream, step.stream);
      EXPECT_TRUE(program.steps[j].awaited);
      follow(i, j);
    }
    if (const auto found = last.find(step.stream); found != last.end()) {
      follow(i, found->second);
    } else if (step.stream != 0) {
      EXPECT_EQ(program.forked[step.stream], step.waits.empty()) << "stream " << step.stream;
    }
    last[step.stream] = i;
  }
  // All that ran has ended when the epoch has.
  std::vector<bool> over(count);
  const auto end = [&](std::size_t j) {
    over[j] = true;
    for (std::size_t k = 0; k < count; ++k)
      if (ended[j][k]) over[k] = true;
  };
  if (last.contains(0)) end(last[0]);
  for (const std::size_t j : program.ends) {
    EXPECT_TRUE(program.steps[j].awaited);
    end(j);
  }
  for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(over[i]) << "step " << i;
  return ended;
}

// Every task of the rank is one step, which does what the task says.
std::size_t step_of(const LibraryProgram& program, int queue, std::size_t task) {
  std::size_t found = program.steps.size();
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    if (program.steps[i].queue == queue && program.steps[i].task == task) {
      EXPECT_EQ(found, program.steps.size()) << "queue " << queue << " task " << task << " is launched twice";
      found = i;
    }
  return found;
}

bool same_work(const LibraryStep& step, const Task& task) {
  return std::visit(
      [&](const auto& work) {
        const auto* other = std::get_if<std::decay_t<decltype(work)>>(&task.work);
        return other != nullptr && *other == work;
      },
      step.work);
}

void expect_faithful(const Plan& plan, int rank) {
  const LibraryProgram program = library_program(plan, rank);
  const auto ended = order_of(program);
  const auto& queues = plan.ranks[index(rank)].queues;
  const auto for_each = [&](auto&& f) {
    for (int q = 0; q < std::ssize(queues); ++q)
      for (std::size_t t = 0; t < queues[index(q)].tasks.size(); ++t)
        f(queues[index(q)].tasks[t], step_of(program, q, t));
  };
  std::size_t tasks = 0;
  for_each([&](const Task& task, std::size_t i) {
    ASSERT_LT(i, program.steps.size());
    EXPECT_TRUE(same_work(program.steps[i], task)) << "step " << i;
    ++tasks;
  });
  EXPECT_EQ(tasks, program.steps.size());
  // Strategies wait for all posts of a signal.
  for_each([&](const Task& waiter, std::size_t i) {
    for (const Wait& wait : waiter.waits)
      for_each([&](const Task& poster, std::size_t j) {
        for (const Post& post : poster.posts)
          if (post.signal == wait.signal) {
            EXPECT_TRUE(ended[i][j]) << "step " << i << " waits for step " << j;
          }
      });
  });
}

TEST(LibraryProgram, KeepsTasksAndOrderOfRandomPlans) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 150; ++i) {
    test::RandomCase c = test::random_case(random, {6, 60, true, true});
    if (c.strategy == Strategy::fused || c.strategy == Strategy::signaled) c.strategy = Strategy::decomposed;
    c.problem.bias = c.problem.bias && refusal_of_library_bias(c.problem).empty();
    const bool ring = c.strategy == Strategy::decomposed && c.problem.op == Operator::all_gather_gemm;
    if (c.problem.type == Type::e4m3 || ring) c.knobs.transport = Transport::push;
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    EXPECT_TRUE(runs_by_libraries(plan));
    // What only NCCL gathers.
    if (c.problem.type == Type::e4m3 && c.problem.op == Operator::all_gather_gemm && !ring) {
      c.knobs.transport = Transport::store;
      const Plan stored = make_plan(c.problem, c.strategy, c.knobs);
      if (c.knobs.nodes == 1 && c.problem.ranks > 1) {
        EXPECT_NE(cuda::refusal_of_plan(stored).find("do not take e4m3 yet"), std::string::npos);
      }
    }
    for (int rank = 0; rank < c.problem.ranks; ++rank) expect_faithful(plan, rank);
    if (HasFailure()) return;
  }
}

TEST(LibraryProgram, SequentialIsOneProductAndOneCollectiveOnOneStream) {
  for (Operator op : operators)
    for (std::int64_t tile : {64, 128, 1 << 15}) {
      Knobs knobs;
      knobs.tile_m = knobs.tile_n = tile;
      const Plan plan = make_plan({op, 1100, 520, 256, 4, Type::bf16}, Strategy::sequential, knobs);
      const LibraryProgram program = library_program(plan, 1);
      const RankShapes shapes = shapes_of(plan.problem);
      ASSERT_EQ(program.steps.size(), 2u);
      EXPECT_EQ(program.forked, std::vector<bool>{false});
      EXPECT_TRUE(program.ends.empty());
      const auto products = products_of(program);
      ASSERT_EQ(products.size(), 1u);
      EXPECT_EQ(products[0].batch, 1);
      EXPECT_EQ(products[0].to.rows, shapes.product.rows);
      EXPECT_EQ(products[0].to.cols, shapes.product.cols);
      for (const LibraryStep& step : program.steps) EXPECT_TRUE(step.waits.empty() && !step.awaited);
      EXPECT_EQ(std::holds_alternative<Collective>(program.steps[0].work), op == Operator::all_gather_gemm);
    }
}

TEST(LibraryProgram, StagesOverNodesAreOneProductAndTheirCollectives) {
  Knobs knobs;
  knobs.nodes = 2;
  for (Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce}) {
    Plan plan = make_plan({op, 1100, 520, 256, 4, Type::bf16}, Strategy::sequential, knobs);
    const LibraryProgram program = library_program(plan, 1);
    EXPECT_EQ(program.steps.size(), 4u);
    EXPECT_EQ(program.forked, std::vector<bool>{false});
    EXPECT_EQ(products_of(program).size(), 1u);
  }
  // The first two stages join the same ranks, and are to come in one order on both.
  Plan plan = make_plan({Operator::gemm_reduce_scatter, 1100, 520, 256, 4, Type::bf16}, Strategy::sequential, knobs);
  auto& tasks = plan.ranks[3].queues[1].tasks;
  std::swap(tasks[0].work, tasks[1].work);
  EXPECT_EQ(library_program(plan, 1).steps.size(), 4u);
  try {
    library_program(plan, 3);
    ADD_FAILURE() << "another order was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("collective 3 of bf16 stands where rank 2 has 1 of bf16"),
              std::string::npos)
        << error.what();
  }
}

TEST(LibraryProgram, AnotherPartialTypeAddsAConversion) {
  Knobs knobs;
  knobs.partial = Type::fp32;
  const Plan plan =
      make_plan({Operator::gemm_reduce_scatter, 512, 256, 256, 4, Type::bf16}, Strategy::sequential, knobs);
  const LibraryProgram program = library_program(plan, 2);
  ASSERT_EQ(program.steps.size(), 3u);
  EXPECT_EQ(program.forked.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Reduction>(program.steps[2].work));
}

// Whether some product begins before a collective of another chunk has ended.
bool hides(const LibraryProgram& program) {
  const auto ended = order_of(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    for (std::size_t j = 0; j < program.steps.size(); ++j)
      if (std::holds_alternative<Product>(program.steps[i].work) &&
          std::holds_alternative<Collective>(program.steps[j].work) && !ended[i][j] && !ended[j][i])
        return true;
  return false;
}

TEST(LibraryProgram, DecomposedIsOneProductAChunkBesideCollectives) {
  for (Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (int chunks : {2, 3, 4}) {
      Knobs knobs;
      knobs.chunks = chunks;
      // Chunks of even and of uneven rows; one product holds the blocks of all destinations.
      for (std::int64_t m : {4 * 1200, 4 * 1201}) {
        const Plan plan = make_plan({op, m, 520, 256, 4, Type::bf16}, Strategy::decomposed, knobs);
        const LibraryProgram program = library_program(plan, 3);
        const auto products = products_of(program);
        ASSERT_EQ(products.size(), static_cast<std::size_t>(chunks));
        for (const Product& product : products) EXPECT_EQ(product.batch, op == Operator::gemm_all_reduce ? 1 : 4);
        EXPECT_GE(program.forked.size(), 2u);
        EXPECT_TRUE(hides(program)) << name_of(op) << ' ' << chunks;
      }
    }
}

// Two streams: products, the first of which waits for nothing; and exchanges, which wait for nothing but each other.
TEST(LibraryProgram, DecomposedGathersMultiplyBesideARing) {
  for (int chunks : {1, 2, 3})
    for (std::int64_t m : {4 * 1200, 4 * 1201}) {
      const Plan plan =
          make_plan({Operator::all_gather_gemm, m, 520, 256, 4, Type::bf16}, Strategy::decomposed, {.chunks = chunks});
      const LibraryProgram program = library_program(plan, 3);
      const auto products = products_of(program);
      ASSERT_EQ(products.size(), static_cast<std::size_t>(1 + 3 * chunks));
      for (const Product& product : products) EXPECT_EQ(product.batch, 1);
      EXPECT_EQ(program.forked, (std::vector{false, true}));
      EXPECT_TRUE(hides(program));
      std::size_t awaited = 0;
      for (const LibraryStep& step : program.steps) {
        const bool product = std::holds_alternative<Product>(step.work);
        EXPECT_EQ(step.stream, product ? 0u : 1u);
        EXPECT_TRUE(product || step.waits.empty());
        awaited += step.waits.size();
      }
      EXPECT_EQ(awaited, static_cast<std::size_t>(3 * chunks));
    }
}

// A conversion waits for its collective, and the next chunk's product must not stand after it.
TEST(LibraryProgram, ProductsDoNotWaitForConversions) {
  Knobs knobs;
  knobs.partial = Type::fp32;
  knobs.chunks = 3;
  const Plan plan = make_plan({Operator::gemm_all_reduce, 900, 256, 256, 2, Type::bf16}, Strategy::decomposed, knobs);
  const LibraryProgram program = library_program(plan, 0);
  const auto ended = order_of(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    for (std::size_t j = 0; j < program.steps.size(); ++j)
      if (std::holds_alternative<Product>(program.steps[i].work)) {
        EXPECT_FALSE(ended[i][j] && !std::holds_alternative<Product>(program.steps[j].work));
      }
}

std::string refusal(const Plan& plan, int rank = 0) {
  try {
    library_program(plan, rank);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "";
}

Plan small_plan(Strategy strategy = Strategy::decomposed) {
  return make_plan({Operator::gemm_reduce_scatter, 256, 128, 64, 2, Type::bf16}, strategy, {});
}

#define EXPECT_REFUSAL(plan, rank, text)                         \
  do {                                                           \
    const std::string message = refusal(plan, rank);             \
    EXPECT_NE(message.find(text), std::string::npos) << message; \
  } while (false)

TEST(LibraryProgram, RefusalsNameTheTaskAndTheReason) {
  Plan plan = small_plan();
  EXPECT_EQ(refusal(plan), "");
  plan.ranks[0].queues[0].tasks[1].posts[0].rank = 1;
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 0 task 1 (product): posts to rank 1");

  plan = small_plan();
  plan.ranks[0].queues.push_back({Engine::compute, 0, {plan::signal_task({}, {})}});
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 2 task 0 (transfer): with library queues, the CUDA executor runs no compute");

  plan = small_plan();
  plan.ranks[0].queues.push_back({Engine::copy, 0, {{Transfer{{1, 3, 0, 0, 1, 1}, {0, 3, 0, 0, 1, 1}}, {}, {}}}});
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 2 task 0 (transfer): the source is on rank 1");

  // Collectives in another order than rank 0's, of another type, or on two queues.
  plan = small_plan();
  std::swap(plan.ranks[1].queues[1].tasks[0], plan.ranks[1].queues[1].tasks[1]);
  EXPECT_REFUSAL(plan, 1, "rank 1 queue 1 task 0 (collective): collective 1 of bf16 stands where rank 0 has 0 of bf16");
  plan = small_plan();
  plan.ranks[0].queues.push_back(plan.ranks[0].queues[1]);
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 2 task 0 (collective): the CUDA executor runs one queue with collectives");

  // Waits that no launch order serves.
  plan = small_plan();
  plan.ranks[0].queues[1].tasks[0].waits[0].count = 99;
  EXPECT_REFUSAL(plan, 0, "waits for 99 posts to signal 0");
  plan = small_plan();
  std::swap(plan.ranks[0].queues[1].tasks[0].waits, plan.ranks[0].queues[1].tasks[1].waits);
  EXPECT_EQ(refusal(plan), "");
  plan.ranks[0].signals += 1;
  plan.ranks[0].queues[0].tasks[0].waits = {{plan.ranks[0].signals - 1}};
  plan.ranks[0].queues[1].tasks[0].posts = {{0, plan.ranks[0].signals - 1}};
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 0 task 0 (product): waits for posts of tasks that come after it");

  plan = make_plan({Operator::all_gather_gemm, 256, 128, 64, 2, Type::bf16}, Strategy::decomposed, {});
  for (RankPlan& rank : plan.ranks) std::get<Collective>(rank.queues[0].tasks[1].work).backend = Backend::imbrex;
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 0 task 1 (collective): no kernel of Imbrex' own is a send_receive");

  plan = make_plan({Operator::gemm_reduce_scatter, 256, 128, 64, 2, Type::fp32}, Strategy::sequential, {});
  EXPECT_REFUSAL(plan, 0, "cuBLASLt does not store products of fp32 as bf16");
}

}  // namespace
}  // namespace imbrex
