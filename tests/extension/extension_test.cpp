// An operator and a kind of work that the library does not know run, are proved, travel and are timed like its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "execute/cuda/refusal.hpp"
#include "execute/mutate.hpp"
#include "extension/scaled_gather.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "plan/digest.hpp"

namespace imbrex {
namespace {

using test::ScaledGather;
using test::Way;

constexpr Way ways[] = {Way::stores, Way::shares, Way::collective};

float x_at(std::int64_t row, std::int64_t col, int epoch) {
  return static_cast<float>((row * 7 + col * 3 + epoch) % 11);
}
float factor_at(std::int64_t row, int epoch) { return static_cast<float>((row + epoch) % 5 + 1); }

// 0 if every element of every epoch was right.
int run_epochs(World& world, const Plan& plan, const CpuOptions& options, int epochs) {
  const auto execution = make_cpu_executor(world, options)->prepare(plan);
  const Problem& p = plan.problem;
  const std::int64_t rows = p.m / p.ranks, first = world.rank() * rows;
  std::vector<float> x(static_cast<std::size_t>(rows * p.n)), factor(static_cast<std::size_t>(rows)),
      out(static_cast<std::size_t>(p.m * p.n));
  Addresses addresses;
  addresses.others = {x.data(), factor.data(), out.data()};
  int wrong = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t i = 0; i < rows; ++i) {
      factor[static_cast<std::size_t>(i)] = factor_at(first + i, epoch);
      for (std::int64_t j = 0; j < p.n; ++j) x[static_cast<std::size_t>(i * p.n + j)] = x_at(first + i, j, epoch);
    }
    out.assign(out.size(), -1);
    execution->run(addresses);
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j)
        wrong += out[static_cast<std::size_t>(i * p.n + j)] != x_at(i, j, epoch) * factor_at(i, epoch);
  }
  return wrong == 0 ? 0 : 1;
}

int run_threads_of(const Plan& plan, const CpuOptions& options, int epochs, double wait_limit) {
  return test::run_ranks_of(plan, wait_limit, [&](World& w) { return run_epochs(w, plan, options, epochs); });
}

ScaledGather random_size(test::Random& random, int most_ranks) {
  const int ranks = static_cast<int>(random.between(1, most_ranks));
  return {ranks * random.between(1, 12), random.between(1, 9), ranks};
}

TEST(Extension, PlansAreSoundAndRun) {
  test::Random random(test::seed_from_environment());
  CpuOptions options{.workers = 2};
  options.testing.max_delay = 1e-4;
  for (int i = 0; i < 60; ++i) {
    const ScaledGather size = random_size(random, 5);
    const Plan plan = test::scaled_gather_plan(size, ways[i % 3], random.between(1, 5));
    SCOPED_TRACE(to_json(plan));
    const auto finding = check(plan);
    ASSERT_FALSE(finding.has_value()) << finding->message;
    options.testing.delays = static_cast<std::uint64_t>(i % 2 == 0 ? i + 1 : 0);
    ASSERT_EQ(run_threads_of(plan, options, 4, 30), 0);
  }
}

TEST(Extension, PlansTravelAndHaveADigest) {
  for (const Way way : ways) {
    const Plan plan = test::scaled_gather_plan({12, 5, 3}, way, 2);
    const std::string json = to_json(plan);
    EXPECT_NE(json.find("\"op\": \"scaled_gather\", \"rows\": 12, \"cols\": 5, \"ranks\": 3"), std::string::npos);
    EXPECT_NE(json.find("\"block\": {\"kind\": \"scale_rows\""), std::string::npos);
    const Plan read = parse_plan(json);
    EXPECT_TRUE(read == plan);
    EXPECT_EQ(plan::digest_of(read), plan::digest_of(plan));
    const std::function<void(Block&)> changes[] = {[](Block& b) { b.kind = parse_work_kind("bags"); },
                                                   [](Block& b) { b.reads.pop_back(); },
                                                   [](Block& b) { b.reads[0].row = 9; },
                                                   [](Block& b) { b.args[0] = 7; },
                                                   [](Block& b) { b.args[3] = 7; },
                                                   [](Block& b) { b.stores.pop_back(); },
                                                   [](Block& b) { b.stores[0].col = 1; },
                                                   [](Block& b) { b.share += 1; },
                                                   [](Block& b) { b.shares += 1; }};
    for (const auto& change : changes) {
      Plan other = plan;
      for (Task& task : other.ranks[1].queues[0].tasks)
        if (auto* block = std::get_if<Block>(&task.work)) change(*block);
      EXPECT_NE(plan::digest_of(other), plan::digest_of(plan));
      EXPECT_TRUE(parse_plan(to_json(other)) == other);
    }
  }
}

TEST(Extension, FilesAreRefusedByPlaceAndRule) {
  const std::string good = to_json(test::scaled_gather_plan({12, 5, 3}, Way::stores, 2));
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& text) {
    std::string bad = good;
    const auto at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bad.replace(at, from.size(), to);
    try {
      parse_plan(bad);
      ADD_FAILURE() << "was read; expected: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect("\"scale_rows\"", "\"scale_cols\"", "'scale_cols' is not a kind of work; it must be one of bags, scale_rows");
  expect("\"args\": [0, 0, 0, 0]", "\"args\": [0, 0]", "a list of 4 numbers is needed");
  expect("\"scaled_gather\"", "\"scaled_scatter\"", "'scaled_scatter' is not an operator");
  expect("\"cols\": 5", "\"k\": 5", "the key 'cols' is missing");
  expect("\"cols\": 5", "\"cols\": 5, \"k\": 5", "the key 'k' is not known here");
}

TEST(Extension, TheSimulatorTimesIt) {
  const Machine machine = load_machine("4xh200");
  const auto seconds = [&](Way way, std::int64_t rows) {
    return make_simulator(machine)->prepare(test::scaled_gather_plan({rows, 1024, 4}, way, 64))->run({}).seconds;
  };
  for (const Way way : ways) {
    const double few = seconds(way, 4096), many = seconds(way, 16384);
    EXPECT_GT(few, 0);
    // Three quarters of 64 MiB come in over a link of less than 450 GB/s.
    EXPECT_GT(many, 0.75 * (64 << 20) / 450e9);
    EXPECT_GT(many, 1.5 * few);
  }
}

TEST(Extension, NamesWhatIsWrong) {
  const auto expect = [](Way way, Fault fault, const std::string& text, auto&& change) {
    Plan plan = test::scaled_gather_plan({12, 5, 2}, way, 3);
    change(plan);
    const auto finding = check(plan);
    ASSERT_TRUE(finding.has_value()) << text;
    EXPECT_EQ(name_of(finding->fault), name_of(fault)) << finding->message;
    EXPECT_NE(finding->message.find(text), std::string::npos) << finding->message;
  };
  const auto block = [](Plan& plan, std::size_t task) -> Block& {
    return std::get<Block>(plan.ranks[0].queues[0].tasks.at(task).work);
  };
  expect(Way::stores, Fault::coverage, "scales rows from 0 by the factors of rows from 3",
         [&](Plan& p) { block(p, 1).reads[1].row = 3; });
  expect(Way::stores, Fault::coverage, "with what belongs elsewhere",
         [&](Plan& p) { block(p, 1).reads[0].row = block(p, 1).reads[1].row = 3; });
  expect(Way::stores, Fault::malformed, "leaves the block of 3 x 5", [&](Plan& p) { block(p, 1).stores[0].row = 1; });
  expect(Way::stores, Fault::malformed, "scales 3 rows by 2 x 1 factors",
         [&](Plan& p) { block(p, 1).reads[1].rows = 2; });
  expect(Way::stores, Fault::malformed, "the block is 0 x 0", [&](Plan& p) { block(p, 1).reads.pop_back(); });
  expect(Way::stores, Fault::bounds, "leaves buffer x", [&](Plan& p) { block(p, 1).reads[0].row = 4; });
  expect(Way::shares, Fault::coverage, "there is no share 1", [&](Plan& p) {
    auto& tasks = p.ranks[0].queues[0].tasks;
    tasks.erase(tasks.begin() + 2);
    --p.ranks[1].queues[0].tasks.back().waits[0].count;
  });
  expect(Way::shares, Fault::coverage, "which rank 0 queue 0 task 1 (scale_rows) is too",
         [&](Plan& p) { block(p, 2).share = 0; });
  expect(Way::shares, Fault::malformed, "share 3 of 3", [&](Plan& p) { block(p, 3).share = 3; });
  // Peers that wait for all but one share would leave before that one has stored.
  for (const std::size_t share : {1u, 2u, 3u})
    expect(Way::shares, Fault::race, fmt::format("rank 0 queue 0 task {} (scale_rows): writes", share), [&](Plan& p) {
      p.ranks[0].queues[0].tasks.at(share).posts.clear();
      --p.ranks[1].queues[0].tasks.back().waits[0].count;
    });
  // Shares of one block differ in their number alone.
  const std::function<void(Block&)> changes[] = {
      [](Block& b) { b.args[3] = 1; },          [](Block& b) { b.shares = 2; },
      [](Block& b) { b.reads[0].row = 3; },     [](Block& b) { b.reads[1].row = 3; },
      [](Block& b) { b.stores[0].to.row = 3; }, [](Block& b) { b.stores[0].to.col = 1; },
      [](Block& b) { b.stores[0].row = 1; },    [](Block& b) { b.stores[0].col = 1; },
      [](Block& b) { b.stores.pop_back(); }};
  for (std::size_t i = 0; i < std::size(changes); ++i)
    expect(Way::shares, Fault::coverage, "there is no share", [&](Plan& p) {
      SCOPED_TRACE(i);
      for (const std::size_t share : {1u, 2u, 3u}) {
        Region& to = block(p, share).stores[0].to;
        --to.rows, --to.cols;
      }
      changes[i](block(p, 2));
    });
  // The collective needs all shares, not only those that another one's wait would be sure of.
  expect(Way::collective, Fault::race, "before rank 0 queue 0 task",
         [&](Plan& p) { p.ranks[0].queues[1].tasks[0].waits[0].count = 1; });
}

// One block of all of the rows, of as many elements as 32 bits count, and of one more.
TEST(Extension, BlocksHaveAsManyElementsAs32BitsCount) {
  const auto of_one_block = [](std::int64_t rows, std::int64_t cols) {
    return check(test::scaled_gather_plan({rows, cols, 1}, Way::stores, rows));
  };
  for (const auto& [rows, cols] : {std::pair{1, 2147483647}, std::pair{2147483647, 1}})
    EXPECT_FALSE(of_one_block(rows, cols).has_value()) << of_one_block(rows, cols)->message;
  const auto finding = of_one_block(2, 1073741824);
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->fault, Fault::malformed);
  EXPECT_NE(finding->message.find("the block is 2 x 1073741824: it has 1 to 2147483647 elements"), std::string::npos)
      << finding->message;
}

TEST(Extension, TheCudaExecutorRefusesItByName) {
  for (const Way way : ways) {
    const std::string refusal = cuda::refusal_of_plan(test::scaled_gather_plan({12, 5, 2}, way, 3));
    EXPECT_NE(refusal.find("no work of kind scale_rows"), std::string::npos) << refusal;
  }
}

TEST(Extension, TheCheckerRefutesMutantsThatDoHarm) {
  test::expect_harmful_refuted(
      150, 3,
      [](test::Random& random, int i) {
        const ScaledGather size = random_size(random, 3);
        return test::scaled_gather_plan(size, ways[i % 3], random.between(1, 4));
      },
      [](const Plan& plan, const CpuOptions& options, double wait_limit) {
        return run_threads_of(plan, options, 4, wait_limit);
      });
}

}  // namespace
}  // namespace imbrex
