// What the CUDA executor launches for plans with library collectives, without a GPU.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "choose/choose.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/refusal.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;

constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

std::size_t index(int i) { return static_cast<std::size_t>(i); }

std::vector<LibraryProduct> products_of(const LibraryProgram& program) {
  std::vector<LibraryProduct> products;
  for (const LibraryStep& step : program.steps)
    if (const auto* product = std::get_if<LibraryProduct>(&step.work)) products.push_back(*product);
  return products;
}

// Where each element of the results lies, and what it is a product of.
using Place = std::tuple<int, std::int64_t, std::int64_t>;  // buffer, row, column
// Of A's row, of B's column, their length; how often; of the row's scale.
using Source = std::tuple<Place, Place, std::int64_t, int, Place>;
using Elements = std::map<Place, Source>;

void add_product(Elements& elements, const Region& a, const Region& b, const Region& to, const Region& scale) {
  for (std::int64_t r = 0; r < a.rows; ++r)
    for (std::int64_t c = 0; c < b.cols; ++c) {
      auto& entry = elements[{to.buffer, to.row + r, to.col + c}];
      entry = {{a.buffer, a.row + r, a.col},
               {b.buffer, b.row, b.col + c},
               a.cols,
               std::get<3>(entry) + 1,
               {scale.buffer, scale.row + (scale.rows == a.rows ? r : 0), 0}};
    }
}

Elements elements_of(const Plan& plan, int rank) {
  Elements elements;
  for (const Queue& queue : plan.ranks[index(rank)].queues)
    for (const Task& task : queue.tasks)
      if (const auto* tile = std::get_if<Tile>(&task.work))
        add_product(elements, tile->a, tile->b, tile->stores.front().to, tile->a_scale);
  return elements;
}

Elements elements_of(const LibraryProgram& program) {
  Elements elements;
  for (const LibraryProduct& p : products_of(program)) {
    EXPECT_EQ(p.a.rows, p.to.rows);
    EXPECT_EQ(p.b.cols, p.to.cols);
    for (int i = 0; i < p.batch; ++i) {
      Region a = p.a, to = p.to;
      a.row += i * p.a_step;
      to.row += i * p.to_step;
      add_product(elements, a, p.b, to, p.a_scale);
    }
  }
  return elements;
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

// The step that holds a task: the last one of the queue that begins at it or before, and is of its kind.
std::size_t step_of(const LibraryProgram& program, const Plan& plan, int rank, int queue, std::size_t task) {
  const bool tile = std::holds_alternative<Tile>(plan.ranks[index(rank)].queues[index(queue)].tasks[task].work);
  std::size_t found = program.steps.size();
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const LibraryStep& step = program.steps[i];
    if (step.queue != queue || step.task > task || std::holds_alternative<LibraryProduct>(step.work) != tile) continue;
    if (found == program.steps.size() || program.steps[found].task < step.task) found = i;
  }
  return found;
}

void expect_faithful(const Plan& plan, int rank) {
  const LibraryProgram program = library_program(plan, rank);
  EXPECT_EQ(elements_of(plan, rank), elements_of(program));
  const auto ended = order_of(program);
  const auto& queues = plan.ranks[index(rank)].queues;
  const auto for_each = [&](auto&& f) {
    for (int q = 0; q < std::ssize(queues); ++q)
      for (std::size_t t = 0; t < queues[index(q)].tasks.size(); ++t)
        f(queues[index(q)].tasks[t], step_of(program, plan, rank, q, t));
  };
  // Strategies wait for all posts of a signal.
  for_each([&](const Task& waiter, std::size_t i) {
    ASSERT_LT(i, program.steps.size());
    for (const Wait& wait : waiter.waits)
      for_each([&](const Task& poster, std::size_t j) {
        for (const Post& post : poster.posts)
          if (post.signal == wait.signal) {
            EXPECT_TRUE(ended[i][j]) << "step " << i << " waits for step " << j;
          }
      });
  });
}

TEST(LibraryProgram, KeepsElementsAndOrderOfRandomPlans) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 150; ++i) {
    test::RandomCase c = test::random_case(random, {6, 60, true, true});
    if (c.strategy == Strategy::fused) c.strategy = Strategy::decomposed;
    c.problem.bias = c.problem.bias && refusal_of_library_bias(c.problem).empty();
    SCOPED_TRACE(test::describe(c));
    if (c.problem.type == Type::e4m3) c.knobs.transport = Transport::push;
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    EXPECT_TRUE(runs_by_libraries(plan));
    // What only NCCL gathers.
    if (c.problem.type == Type::e4m3 && c.problem.op == Operator::all_gather_gemm) {
      Plan stored = plan;
      stored.knobs.transport = Transport::store;
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
    for (int group : {1, 3, 8}) {
      Knobs knobs;
      knobs.group = group;
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

TEST(LibraryProgram, DecomposedIsOneProductAChunkBesideCollectives) {
  for (Operator op : operators)
    for (int chunks : {2, 3, 4}) {
      Knobs knobs;
      knobs.chunks = chunks;
      // Chunks of even and of uneven rows; one product holds the blocks of all sources or destinations.
      for (std::int64_t m : {4 * 1200, 4 * 1201}) {
        const Plan plan = make_plan({op, m, 520, 256, 4, Type::bf16}, Strategy::decomposed, knobs);
        const LibraryProgram program = library_program(plan, 3);
        const auto products = products_of(program);
        ASSERT_EQ(products.size(), static_cast<std::size_t>(chunks));
        for (const LibraryProduct& product : products)
          EXPECT_EQ(product.batch, op == Operator::gemm_all_reduce ? 1 : 4);
        EXPECT_GE(program.forked.size(), 2u);
        const auto ended = order_of(program);
        // Some product begins before the collective of another chunk has ended.
        bool beside = false;
        for (std::size_t i = 0; i < program.steps.size(); ++i)
          for (std::size_t j = 0; j < program.steps.size(); ++j)
            beside =
                beside || (std::holds_alternative<LibraryProduct>(program.steps[i].work) &&
                           std::holds_alternative<Collective>(program.steps[j].work) && !ended[i][j] && !ended[j][i]);
        EXPECT_TRUE(beside) << name_of(op) << ' ' << chunks;
      }
    }
}

// A conversion waits for its collective, and the next chunk's product must not stand behind it.
TEST(LibraryProgram, ProductsDoNotWaitForConversions) {
  Knobs knobs;
  knobs.partial = Type::fp32;
  knobs.chunks = 3;
  const Plan plan = make_plan({Operator::gemm_all_reduce, 900, 256, 256, 2, Type::bf16}, Strategy::decomposed, knobs);
  const LibraryProgram program = library_program(plan, 0);
  const auto ended = order_of(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    for (std::size_t j = 0; j < program.steps.size(); ++j)
      if (std::holds_alternative<LibraryProduct>(program.steps[i].work)) {
        EXPECT_FALSE(ended[i][j] && !std::holds_alternative<LibraryProduct>(program.steps[j].work));
      }
}

// Tiles that leave a corner out run one by one; the corner's tile alone changes nothing else.
TEST(LibraryProgram, TilesThatFillNoRectangleRunOneByOne) {
  Plan plan = make_plan({Operator::gemm_all_reduce, 300, 300, 64, 2, Type::bf16}, Strategy::sequential, {});
  auto& tasks = plan.ranks[0].queues[0].tasks;
  ASSERT_EQ(tasks.size(), 9u);
  const Task corner = tasks.back();
  tasks.pop_back();
  for (Wait& wait : plan.ranks[0].queues[1].tasks[0].waits) wait.count = 8;
  const LibraryProgram program = library_program(plan, 0);
  EXPECT_EQ(elements_of(plan, 0), elements_of(program));
  EXPECT_GT(products_of(program).size(), 1u);
  // A tile twice in place of another is no rectangle either.
  tasks.push_back(tasks.front());
  EXPECT_EQ(elements_of(plan, 0), elements_of(library_program(plan, 0)));
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
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 0 task 1 (tile): posts to rank 1");

  plan = small_plan();
  std::get<Tile>(plan.ranks[0].queues[0].tasks[0].work).stores[0].to.rank = 1;
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 0 task 0 (tile): the store is on rank 1");

  plan = small_plan();
  auto& tile = std::get<Tile>(plan.ranks[1].queues[0].tasks[2].work);
  tile.adds.push_back(tile.stores[0].to);
  EXPECT_REFUSAL(plan, 1, "rank 1 queue 0 task 2 (tile): a GEMM library adds no slots");

  plan = small_plan();
  auto& halved = std::get<Tile>(plan.ranks[0].queues[0].tasks[0].work);
  halved.stores[0].to.rows /= 2;
  EXPECT_REFUSAL(plan, 0, "stores a tile as a whole");

  // Collectives in another order than rank 0's, of another type, or on two queues.
  plan = small_plan();
  std::swap(plan.ranks[1].queues[1].tasks[0], plan.ranks[1].queues[1].tasks[1]);
  EXPECT_REFUSAL(plan, 1, "rank 1 queue 1 task 0 (collective): collective 1 of bf16 stands where rank 0 has 0 of bf16");
  plan = small_plan();
  plan.ranks[0].queues.push_back(plan.ranks[0].queues[1]);
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 2 task 0 (collective): the CUDA executor runs one library queue");

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
  EXPECT_REFUSAL(plan, 0, "rank 0 queue 0 task 0 (tile): waits for posts of tasks that come behind it");

  plan = make_plan({Operator::gemm_reduce_scatter, 256, 128, 64, 2, Type::fp32}, Strategy::sequential, {});
  EXPECT_REFUSAL(plan, 0, "cuBLASLt does not store products of fp32 as bf16");
}

// What GPUs launch does not depend on the tiles that a strategy cuts for other executors.
TEST(LibraryProgram, OfFewTilesIsTheSame) {
  test::Random random(test::seed_from_environment());
  std::size_t tiles = 0, few_tiles = 0;
  for (int i = 0; i < 200; ++i) {
    auto c = test::random_case(random, {.max_ranks = 4, .max_size = 700, .bias = true});
    c.strategy = random.one_of({Strategy::sequential, Strategy::decomposed});
    c.knobs = test::random_knobs(random, c.problem, c.strategy);
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs),
               few = make_plan(c.problem, c.strategy, choose::with_few_tiles({c.strategy, c.knobs}).knobs);
    tiles += count_tasks(plan);
    few_tiles += count_tasks(few);
    if (!refusal(plan).empty()) continue;
    const LibraryProgram x = library_program(plan, 0), y = library_program(few, 0);
    ASSERT_EQ(x.steps.size(), y.steps.size());
    for (std::size_t s = 0; s < x.steps.size(); ++s) {
      ASSERT_TRUE(x.steps[s].work == y.steps[s].work);
      ASSERT_EQ(x.steps[s].stream, y.steps[s].stream);
      ASSERT_EQ(x.steps[s].waits, y.steps[s].waits);
    }
    ASSERT_EQ(x.forked, y.forked);
    ASSERT_EQ(x.ends, y.ends);
  }
  EXPECT_LT(few_tiles * 5, tiles);
}

}  // namespace
}  // namespace imbrex
