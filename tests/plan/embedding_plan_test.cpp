// Plans of embedding_all_to_all: sound, right on the CPU executor, timed by the simulator, and refuted when broken.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "execute/mutate.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "plan/bags.hpp"
#include "plan/expect_fault.hpp"
#include "plan/refusal_of.hpp"
#include "problem/embedding.hpp"
#include "program/host_messages.hpp"

namespace imbrex {
namespace {

using problem::OwnShards;

constexpr Strategy strategies[] = {Strategy::sequential, Strategy::decomposed, Strategy::fused};

Problem embedding_problem(std::int64_t batch, int ranks, std::vector<TableShard> shards, Type type = Type::fp32) {
  Problem p{embedding_all_to_all, batch, 0, 0, ranks, type};
  p.tables.shards = std::move(shards);
  return p;
}

// Some ranks may have no shard; those of a rank lie here and there in the output.
Problem random_problem(test::Random& random, int most_ranks) {
  const int ranks = static_cast<int>(random.between(1, most_ranks));
  std::vector<TableShard> shards;
  std::int64_t col = 0;
  for (auto left = random.between(1, 6); left > 0; --left) {
    shards.push_back({static_cast<int>(random.between(0, ranks - 1)), random.between(1, 30), 4 * random.between(1, 3),
                      col, static_cast<double>(random.between(0, 3))});
    col += shards.back().dim;
  }
  for (std::size_t i = shards.size(); i > 1; --i)
    std::swap(shards[i - 1], shards[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
  return embedding_problem(ranks * random.between(1, 9), ranks, std::move(shards));
}

bool all_own_shards(const Problem& problem) {
  for (int rank = 0; rank < problem.ranks; ++rank)
    if (OwnShards(problem.tables, rank).count() == 0) return false;
  return true;
}

bool all_hosts_own_shards(const Problem& problem, int nodes) {
  std::vector<bool> owns(static_cast<std::size_t>(nodes));
  for (const TableShard& s : problem.tables.shards)
    owns[static_cast<std::size_t>(s.owner / (problem.ranks / nodes))] = true;
  return std::find(owns.begin(), owns.end(), false) == owns.end();
}

Plan random_plan(test::Random& random, const Problem& problem) {
  Knobs knobs;
  knobs.tile_m = random.between(1, 5);
  knobs.chunks = static_cast<int>(random.between(1, 4));
  const Strategy strategy = strategies[random.between(0, 2)];
  std::vector<int> nodes{1};
  for (int n = 2; n <= problem.ranks; ++n)
    if (problem.ranks % n == 0 && all_hosts_own_shards(problem, n)) nodes.push_back(n);
  knobs.nodes = nodes[static_cast<std::size_t>(random.between(0, std::ssize(nodes) - 1))];
  return make_plan(problem, all_own_shards(problem) ? strategy : Strategy::fused, knobs);
}

// Each block by several tasks, as work that is balanced by what it gathers. A task that waits for blocks waits for all.
void share_blocks(Plan& plan, int shares) {
  std::map<std::pair<int, int>, std::uint32_t> added;  // posts, by rank and signal
  for (RankPlan& rank : plan.ranks)
    for (Queue& queue : rank.queues) {
      std::vector<Task> tasks;
      for (Task& task : queue.tasks) {
        auto* block = std::get_if<Block>(&task.work);
        for (int share = 0; block != nullptr && share < shares; ++share) {
          block->share = share;
          block->shares = shares;
          tasks.push_back(task);
          if (share > 0)
            for (const Post& post : task.posts) ++added[{post.rank, post.signal}];
        }
        if (block == nullptr) tasks.push_back(std::move(task));
      }
      queue.tasks = std::move(tasks);
    }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (Queue& queue : plan.ranks[rank].queues)
      for (Task& task : queue.tasks)
        for (Wait& wait : task.waits) wait.count += added[{static_cast<int>(rank), wait.signal}];
}

float element(int owner, std::int64_t table, std::int64_t row, std::int64_t col) {
  return static_cast<float>((owner * 31 + table * 17 + row * 5 + col * 3) % 13 - 6);
}

// What a rank's tables hold, and bags with 0 to 4 rows. Every rank knows all ranks'.
struct Bags {
  std::vector<std::vector<float>> tables;
  std::vector<embedding::Table> shards;
  std::vector<std::int64_t> indices, offsets{0};
  embedding::Bags bags;

  Bags(const Problem& p, int rank, int epoch) {
    const OwnShards own(p.tables, rank);
    for (std::size_t t = 0; t < own.count(); ++t) {
      std::vector<float>& table = tables.emplace_back();
      for (std::int64_t row = 0; row < own[t].rows; ++row)
        for (std::int64_t col = 0; col < own[t].dim; ++col)
          table.push_back(element(rank, static_cast<std::int64_t>(t), row, col));
      for (std::int64_t bag = 0; bag < p.m; ++bag) {
        for (std::int64_t i = 0; i < (bag * 3 + epoch + static_cast<std::int64_t>(t)) % 5; ++i)
          indices.push_back((bag * 7 + i * 11 + epoch) % own[t].rows);
        offsets.push_back(std::ssize(indices));
      }
    }
    for (std::size_t t = 0; t < own.count(); ++t) {
      const auto dim = static_cast<std::int32_t>(own[t].dim);
      shards.push_back({tables[t].data(), own[t].rows, dim * 4, 0, dim, static_cast<std::int32_t>(own[t].first_col)});
    }
    bags = {indices.data(), offsets.data(), nullptr, std::ssize(indices), p.m, IndexType::int64, Pooling::sum};
  }

  plan::RankBags given() const {
    return {{shards.data(), static_cast<std::int32_t>(shards.size()), TableRows::fp32}, bags};
  }
};

int run_epochs(World& world, const Plan& plan, const CpuOptions& options, int epochs) {
  const auto execution = make_cpu_executor(world, options)->prepare(plan);
  const Problem& p = plan.problem;
  const std::int64_t rows = p.m / p.ranks, width = problem::width_of(p.tables), first = world.rank() * rows;
  std::vector<float> out(static_cast<std::size_t>(rows * width));
  int wrong = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const Bags own(p, world.rank(), epoch);
    const plan::RankBags given = own.given();
    Addresses addresses;
    addresses.others = {out.data()};
    addresses.given = &given;
    out.assign(out.size(), -1000);
    execution->run(addresses);
    for (int owner = 0; owner < p.ranks; ++owner) {
      const OwnShards shards(p.tables, owner);
      const Bags bags(p, owner, epoch);
      for (std::size_t t = 0; t < shards.count(); ++t)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t col = 0; col < shards[t].dim; ++col) {
            const auto bag = t * static_cast<std::size_t>(p.m) + static_cast<std::size_t>(first + i);
            float sum = 0;
            for (std::int64_t at = bags.offsets[bag]; at < bags.offsets[bag + 1]; ++at)
              sum += element(owner, static_cast<std::int64_t>(t), bags.indices[static_cast<std::size_t>(at)], col);
            wrong += out[static_cast<std::size_t>(i * width + shards[t].first_col + col)] != sum;
          }
    }
  }
  return wrong == 0 ? 0 : 1;
}

int run_plan(const Plan& plan, const CpuOptions& options, int epochs, double wait_limit) {
  return test::run_ranks_of(plan, wait_limit, [&](World& w) { return run_epochs(w, plan, options, epochs); });
}

TEST(Embedding, PlansAreSoundTravelAndRun) {
  test::Random random(test::seed_from_environment());
  CpuOptions options{.workers = 2};
  options.testing.max_delay = 1e-4;
  for (int i = 0; i < 90; ++i) {
    const Problem problem = random_problem(random, 6);
    Plan plan = random_plan(random, problem);
    if (plan.strategy == Strategy::fused && random.chance(0.5))
      share_blocks(plan, static_cast<int>(random.between(2, 4)));
    const std::string json = to_json(plan);
    SCOPED_TRACE(json);
    const auto finding = check(plan);
    ASSERT_FALSE(finding.has_value()) << finding->message;
    EXPECT_TRUE(parse_plan(json) == plan);
    options.testing.delays = static_cast<std::uint64_t>(i % 2 == 0 ? i + 1 : 0);
    ASSERT_EQ(run_plan(plan, options, 3, 30), 0);
  }
}

TEST(Embedding, FusedSendsOthersRowsFirstAndPostsOnceABlock) {
  Knobs knobs;
  knobs.tile_m = 4;
  const Plan plan =
      make_plan(embedding_problem(32, 4, {{0, 9, 4, 0}, {1, 9, 8, 4}, {2, 9, 4, 12}, {3, 9, 4, 16}, {1, 9, 4, 20}}),
                Strategy::fused, knobs);
  std::vector<int> destinations;
  for (const Task& task : plan.ranks[1].queues[0].tasks) {
    const auto* block = std::get_if<Block>(&task.work);
    if (block == nullptr) continue;
    destinations.push_back(block->stores.front().to.rank);
    EXPECT_EQ(task.posts.size(), block->stores.front().to.rank == 1 ? 0 : 1);
    ASSERT_EQ(block->stores.size(), 2);  // columns 4 to 12 and 20 to 24
    EXPECT_EQ(block->stores[1].col, 8);
  }
  EXPECT_EQ(destinations, (std::vector<int>{2, 3, 0, 2, 3, 0, 1, 1}));
}

// As few messages between hosts as there are rails: each rank sends one to each other host a slice, whatever the way.
TEST(Embedding, SeveralHostsExchangeOneMessageARailAndSlice) {
  std::vector<TableShard> shards;
  for (int rank = 0; rank < 8; ++rank) shards.push_back({rank, 9, 4 * (rank + 1), 2 * rank * (rank + 1)});
  Knobs knobs;
  knobs.tile_m = 3;
  knobs.chunks = 3;
  const auto messages = [&](Strategy strategy, int nodes) {
    knobs.nodes = nodes;
    const Plan plan = make_plan(embedding_problem(48, 8, shards), strategy, knobs);
    EXPECT_FALSE(check(plan).has_value());
    return program::messages_between_hosts(plan, std::max(nodes, 2));
  };
  for (const int nodes : {2, 4, 8}) {
    EXPECT_EQ(messages(Strategy::sequential, nodes).count, 8 * (nodes - 1)) << nodes;
    EXPECT_EQ(messages(Strategy::decomposed, nodes).count, 3 * 8 * (nodes - 1)) << nodes;
    EXPECT_EQ(messages(Strategy::fused, nodes).count, 3 * 8 * (nodes - 1)) << nodes;
  }
  EXPECT_EQ(messages(Strategy::sequential, 1).count, 8 * 4);  // straight to all ranks of the other host
  EXPECT_EQ(messages(Strategy::fused, 1).count, 8 * 4 * 2);   // two blocks of rows for each
  // A fused rank sends rows as wide as all tables of a host; a library sends rows of each rank there, as wide as the
  // widest's.
  EXPECT_EQ(messages(Strategy::fused, 2).bytes, 8 * (48 / 8) * 4 * (5 + 6 + 7 + 8) * 4);
  EXPECT_EQ(messages(Strategy::sequential, 2).bytes, 8 * (48 / 8) * 4 * 32 * 4);
}

TEST(Embedding, NamesWhatIsWrongWithTables) {
  const auto expect = [](const Problem& problem, const std::string& text) {
    const std::string refusal = test::refusal_of(problem);
    EXPECT_NE(refusal.find(text), std::string::npos) << refusal;
  };
  const std::vector<TableShard> good{{0, 10, 8, 0}, {1, 10, 4, 8}};
  validate(embedding_problem(4, 2, good));
  expect(embedding_problem(0, 2, good), "batch = 0");
  expect(embedding_problem(5, 2, good), "batch = 5 does not divide by 2 ranks");
  expect(embedding_problem(4, 2, {}), "0 shards");
  expect(embedding_problem(4, 2, {{2, 10, 8, 0}}), "shard 0: owner 2; it must be from 0 to 1");
  expect(embedding_problem(4, 2, {{0, 0, 8, 0}}), "shard 0: rows = 0");
  expect(embedding_problem(4, 2, {{0, 10, 6, 0}}), "shard 0: dim = 6; it must be a multiple of 4");
  expect(embedding_problem(4, 2, {{0, 10, 1028, 0}}), "shard 0: dim = 1028");
  expect(embedding_problem(4, 2, {{0, 10, 8, 0}, {1, 10, 4, 4}}), "shard 1: its columns begin at 4 of the output");
  expect(embedding_problem(4, 2, {{0, 10, 8, 0}, {1, 10, 4, 12}}), "shard 1: its columns begin at 12 of the output");
  expect(embedding_problem(4, 2, {{0, 10, 8, 0, -1}}), "shard 0: pooling = -1");
  expect(embedding_problem(4, 2, good, Type::e4m3), "type e4m3");
  Problem with = embedding_problem(4, 2, good);
  with.n = 3;
  expect(with, "embedding_all_to_all has no n, and it is 3");
  with = embedding_problem(4, 2, good);
  with.bias = true;
  expect(with, "neither bias");
  with = {Operator::all_gather_gemm, 4, 4, 4, 2, Type::fp32};
  with.tables.shards = good;
  expect(with, "all_gather_gemm has tables");
  const auto expect_no_plan = [](const Problem& problem, Strategy strategy, const std::string& text,
                                 const Knobs& knobs = {}) {
    try {
      make_plan(problem, strategy, knobs);
      ADD_FAILURE() << "was made; expected: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect_no_plan(embedding_problem(4, 2, good), Strategy::signaled, "strategy signaled");
  expect_no_plan(embedding_problem(4, 4, good), Strategy::sequential, "rank 2 has no table");
  const auto on_hosts = [](int nodes) {
    Knobs knobs;
    knobs.nodes = nodes;
    return knobs;
  };
  expect_no_plan(embedding_problem(4, 4, good), Strategy::fused, "the ranks of host 1 have no table: with nodes = 2",
                 on_hosts(2));
  expect_no_plan(embedding_problem(4, 4, good), Strategy::fused, "nodes = 3: it must be at least 1 and divide",
                 on_hosts(3));
}

TEST(Embedding, TheCheckerNamesWhatIsBroken) {
  Knobs knobs;
  knobs.tile_m = 2;
  const Problem problem = embedding_problem(8, 2, {{0, 10, 8, 0}, {1, 10, 4, 8}, {0, 10, 4, 12}});
  const auto expect = [&](Strategy strategy, Fault fault, const std::string& text, auto&& change) {
    Plan plan = make_plan(problem, strategy, knobs);
    change(plan);
    test::expect_fault(plan, fault, text);
  };
  const auto block = [](Plan& p, std::size_t task) -> Block& {
    return std::get<Block>(p.ranks[0].queues[0].tasks.at(task).work);
  };
  expect(Strategy::fused, Fault::coverage, "with what belongs elsewhere", [&](Plan& p) { block(p, 1).args[0] = 0; });
  expect(Strategy::fused, Fault::coverage, "writes too",
         [&](Plan& p) { block(p, 1).stores[0].to.row = block(p, 2).stores[0].to.row; });
  expect(Strategy::fused, Fault::malformed, "the block is 0 x 0", [&](Plan& p) { block(p, 1).args[3] = 3; });
  expect(Strategy::fused, Fault::malformed, "leaves the block of 2 x 8", [&](Plan& p) { block(p, 1).args[3] = 1; });
  expect(Strategy::fused, Fault::malformed, "bags read tables", [&](Plan& p) {
    block(p, 1).reads = {{0, 0, 0, 0, 1, 1}};
  });
  expect(Strategy::fused, Fault::race, "before that rank is known to have entered",
         [&](Plan& p) { p.ranks[0].queues[0].tasks[1].waits.clear(); });
  expect(Strategy::fused, Fault::race, "may leave the epoch before it is done",
         [&](Plan& p) { p.ranks[1].queues[0].tasks.back().waits.at(0).count = 1; });
  expect(Strategy::fused, Fault::coverage, "are never written", [&](Plan& p) { block(p, 1).stores.pop_back(); });
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
    expect(strategy, Fault::coverage, "with what belongs elsewhere", [&](Plan& p) {
      for (Queue& queue : p.ranks[1].queues)
        for (Task& task : queue.tasks)
          if (auto* copy = std::get_if<Transfer>(&task.work); copy != nullptr && copy->to.cols == 4)
            copy->to.col = copy->to.col == 8 ? 12 : 8;
    });
}

// Rank 1 has no table. Where nothing makes rank 0 wait for it, rank 0 may be any number of epochs ahead.
TEST(Embedding, TheCheckerNamesARankThatHearsFromNoOther) {
  Knobs knobs;
  knobs.tile_m = 4;
  Plan plan = make_plan(embedding_problem(8, 2, {{0, 10, 8, 0}}), Strategy::fused, knobs);
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  // What rank 0 has looked up comes by way of a workspace, which needs no entry.
  auto &own = plan.ranks[0].queues[0].tasks, &other = plan.ranks[1].queues[0].tasks;
  plan.buffers.push_back({"arrived", BufferRole::workspace, Layout::row_major, Type::fp32, 4, 8, 2});
  Store& sent = std::get<Block>(own.at(1).work).stores.at(0);
  ASSERT_EQ(sent.to, (Region{1, 0, 0, 0, 4, 8}));
  sent.to.buffer = 1;
  own.at(1).waits.clear();
  other.at(1).work = Transfer{sent.to, {1, 0, 0, 0, 4, 8}};
  test::expect_fault(
      plan, Fault::reuse,
      "rank 1 queue 0 task 1 (transfer): may still read rows 0+4 cols 0+8 of arrived on rank 1 of epoch e "
      "when rank 0 queue 0 task 1 (bags) writes it in epoch e+2");
  // It is enough that it hears of rank 1's entry before it leaves.
  own.push_back({Transfer{}, {{0}}, {}});
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  plan.buffers.back().copies = 1;
  test::expect_fault(plan, Fault::reuse, "writes it in epoch e+1");
}

// Rank 1 has no table, and rank 2, on the other host, hears of it by rank 0 alone.
TEST(Embedding, NoRankLeavesBeforeAllHaveBegun) {
  Knobs knobs;
  knobs.tile_m = 4;
  knobs.nodes = 2;
  const std::vector<TableShard> shards{{0, 9, 4, 0}, {2, 9, 4, 4}, {3, 9, 4, 8}};
  const Plan plan = make_plan(embedding_problem(8, 4, shards), Strategy::fused, knobs);
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  Plan early = plan;
  std::vector<Wait>& waits = early.ranks[0].queues.at(1).tasks.at(0).waits;
  ASSERT_EQ(waits.size(), 2);
  waits.erase(waits.begin());
  test::expect_fault(early, Fault::reuse, "rank 2 may end the epoch before rank 1 has begun it");
}

TEST(Embedding, TheCheckerRefutesMutantsThatDoHarm) {
  test::expect_harmful_refuted(
      150, 4,
      [](test::Random& random, int) {
        const Problem problem = random_problem(random, 3);
        return random_plan(random, problem);
      },
      [](const Plan& plan, const CpuOptions& options, double wait_limit) {
        return run_plan(plan, options, 4, wait_limit);
      });
}

}  // namespace
}  // namespace imbrex
