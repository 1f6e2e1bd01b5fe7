// Analytical cost models of plans' times, beside what was measured and what is simulated.
#include "choose/quick_times.hpp"
#include "choose/four_h200.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "choose/kernel_tiles.hpp"
#include "imbrex/advanced/execute.hpp"
#include "plan/json/names.hpp"
#include "plan/json/node.hpp"
#include "records/records.hpp"
#include "simulate/plans.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::four_h200;

// How many layers (N and K) of a file of measured products come before that of `row`.
int count_layers(const nlohmann::json& rows, const nlohmann::json& row) {
  std::vector<std::pair<int, int>> layers;
  for (const auto& other : rows) {
    const std::pair<int, int> layer{other.at("problem").at("n"), other.at("problem").at("k")};
    if (layer == std::pair<int, int>{row.at("problem").at("n"), row.at("problem").at("k")}) break;
    if (std::find(layers.begin(), layers.end(), layer) == layers.end()) layers.push_back(layer);
  }
  return static_cast<int>(layers.size());
}

// Analytical cost models of a plan's time, over that of the library's sequence, beside what was measured.
TEST(QuickTimes, AgreeWithTheTables) {
  for (const int ranks : {2, 4}) {
    double sum = 0, largest = 0;
    int count = 0;
    for (const records::Record& r : records::records_of("NVIDIA H200").list) {
      if (r.problem.ranks != ranks) continue;
      const double expected = choose::quick_seconds(r.problem, r.candidate, four_h200()) /
                              choose::quick_seconds(r.problem, choose::library_sequence(r.problem), four_h200());
      const double error = std::abs(std::log(expected / (r.seconds / r.sequential_seconds)));
      sum += error;
      largest = std::max(largest, error);
      ++count;
    }
    ASSERT_GT(count, 100);
    std::cout << ranks << " GPUs: " << 100 * sum / count << " % in the mean, at most " << 100 * largest << " %\n";
    EXPECT_LT(sum / count, 0.12);
  }
}

// A core codes all that would have travelled, however short the codes are: in both models' times.
TEST(QuickTimes, OfCodecsOnAHostHoldTheCoding) {
  const Machine host = nominal_host_machine();
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 30; ++i) {
    const Problem p{random.one_of({Operator::gemm_all_reduce, Operator::gemm_reduce_scatter}),
                    256 * random.between(1, 3),
                    128 * random.between(1, 6),
                    256,
                    random.one_of({2, 4}),
                    Type::bf16};
    for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed}) {
      for (const char* codec : {"int8", "int4-g128"}) {
        const Knobs knobs{.chunks = static_cast<int>(random.between(1, 3)), .codec = parse_codec_pair(codec)};
        SCOPED_TRACE(test::describe({p, strategy, knobs}));
        const double coding = plan::wire_bytes(p) / host.coding_bandwidth;
        EXPECT_GE(test::simulate(make_plan(p, strategy, knobs), host).seconds, coding);
        EXPECT_GE(choose::quick_seconds(p, {strategy, knobs}, host), coding);
      }
    }
  }
}

TEST(QuickTimes, CountTheTilesThatPlansHave) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 200; ++i) {
    const Problem p = test::random_problem(random, {.max_ranks = 4, .max_size = 900});
    Knobs k = test::random_knobs(random, p, Strategy::fused);
    k.cluster = k.cluster_k = k.split_k = 1;  // in pairs, a tile without a mate counts twice
    const Plan plan = make_plan(p, Strategy::fused, k);
    std::int64_t tiles = 0;
    for (const Queue& queue : plan.ranks[0].queues)
      tiles += std::count_if(queue.tasks.begin(), queue.tasks.end(),
                             [](const Task& t) { return std::holds_alternative<Tile>(t.work); });
    const std::int64_t counted = choose::fused_tiles(p, k);
    SCOPED_TRACE(test::describe({p, Strategy::fused, k}));
    if (p.op == Operator::gemm_all_reduce && !k.one_shot) {
      // Owners of tiles may get other numbers of them.
      const std::int64_t across = (p.n + k.tile_n - 1) / k.tile_n, down = (p.m + k.tile_m - 1) / k.tile_m;
      EXPECT_LE(std::abs(counted - tiles), p.ranks * std::max(across, down));
    } else {
      EXPECT_EQ(counted, tiles);
    }
  }
}

TEST(QuickTimes, ChunksOfOwnersRowsFillTilesOrDoNot) {
  const auto ratio = [](std::int64_t shard) {
    const Problem p{Operator::gemm_all_to_all, 8 * shard, 5120, 27648, 8, Type::bf16};
    plan::Candidate chunks = choose::library_sequence(p);
    chunks.strategy = Strategy::decomposed;
    chunks.knobs.chunks = 4;
    return choose::quick_seconds(p, chunks, four_h200()) /
           choose::quick_seconds(p, choose::library_sequence(p), four_h200());
  };
  EXPECT_LT(ratio(512), 1);    // four times 128 rows of each rank's
  EXPECT_GT(ratio(375), 1.1);  // four times 94
}

// The longer of products and exchanges counts, and the last block's product after these. Whole waves on the SMs that
// an exchange leaves are known less well.
TEST(QuickTimes, RingsAreAsTheSimulatorHasThem) {
  double sum = 0, largest = 0;
  int count = 0;
  for (const int ranks : {2, 4})
    for (const std::int64_t m : {1024, 4096, 16384})
      for (const std::int64_t n : {2048, 32768})
        for (const int chunks : {1, 2}) {
          const Problem p{Operator::all_gather_gemm, m, n, 8192, ranks, Type::bf16};
          const plan::Candidate ring{Strategy::decomposed, {.chunks = chunks, .partial = Type::bf16}};
          const Plan plan = make_plan(p, ring.strategy, ring.knobs);
          const double simulated = make_simulator(four_h200())->prepare(plan)->run({}).seconds,
                       error = std::abs(std::log(choose::quick_seconds(p, ring, four_h200()) / simulated));
          sum += error;
          largest = std::max(largest, error);
          ++count;
        }
  std::cout << 100 * sum / count << " % in the mean, at most " << 100 * largest << " %\n";
  EXPECT_LT(sum / count, 0.08);
  EXPECT_LT(largest, 0.35);
}

// Library plans copy what has gaps, once; fused ones read and write it where it lies.
TEST(QuickTimes, GapsCostLibraryPlansACopy) {
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                            Operator::gemm_all_to_all}) {
    const Problem p{op, 8192, 8192, 8192, 4, Type::bf16};
    Problem with = p;
    (op == Operator::all_gather_gemm ? with.lda : with.ldo) = 8208;
    const plan::Candidate sequence = choose::library_sequence(p), fused{Strategy::fused, {}};
    const auto more = [&](const plan::Candidate& c) {
      return choose::quick_seconds(with, c, four_h200()) - choose::quick_seconds(p, c, four_h200());
    };
    EXPECT_EQ(more(fused), 0);
    const RankShapes shapes = shapes_of(p);
    const Extent& copied = op == Operator::all_gather_gemm ? shapes.a : shapes.out;
    const double moved = 4.0 * static_cast<double>(copied.rows * copied.cols) / four_h200().memory_bandwidth.value;
    EXPECT_NEAR(more(sequence), moved + four_h200().copy_fixed.value, 1e-12) << name_of(op);
    // As in the plan.
    const auto simulated = [&](const Problem& problem) {
      return make_simulator(four_h200())
          ->prepare(make_plan(problem, sequence.strategy, sequence.knobs))
          ->run({})
          .seconds;
    };
    EXPECT_GT(simulated(with), simulated(p) + 0.5 * moved) << name_of(op);
  }
}

TEST(QuickTimes, IdleMatesFillUpPairs) {
  Knobs k;
  k.cluster = 2;
  const Problem three{Operator::gemm_all_to_all, 4 * 384, 8192, 8192, 4, Type::bf16};  // tiles of a shard's column
  EXPECT_EQ(choose::fused_tiles(three, k), 4 * 4 * 64);
  k.order = TileOrder::column_major;  // pairs go on in the next shard
  EXPECT_EQ(choose::fused_tiles(three, k), 4 * 3 * 64);
  k.cluster = 1;
  EXPECT_EQ(choose::fused_tiles(three, k), 4 * 3 * 64);
}

// Sizes whose logarithms are even.
Problem far_problem(test::Random& random) {
  Problem p;
  p.op = static_cast<Operator>(random.between(0, 3));
  p.ranks = random.one_of({2, 4});
  const auto size = [&](double low, double high, std::int64_t step) {
    const double exponent = static_cast<double>(random.between(0, 1000)) / 1000;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(low * std::pow(high / low, exponent)) / step) * step;
  };
  p.m = size(16, 4096, p.ranks);
  p.n = size(64, 4096, 8 * p.ranks);
  p.k = size(64, 4096, 8 * p.ranks);
  return p;
}

// Three shapes of tiles were timed on one GPU: the one that is predicted to be the fastest takes little longer than the
// one that was. The constants were fitted to the rest of the file.
TEST(QuickTimes, ChooseTheTileThatIsFastest) {
  const std::pair<const char*, const char*> cards[] = {{"4xh100", "all/4xh100/constants/1"}, {"4xh200", "constants/1"}};
  for (const auto& [name, folder] : cards) {
    const Machine machine = load_machine(name);
    std::ifstream file(std::string(BENCH_RESULTS) + "/" + folder + "/gemm.json");
    const nlohmann::json rows = nlohmann::json::parse(file).at("rows");
    double lost = 0, of_square = 0, most = 0;
    int count = 0;
    for (const auto& row : rows) {
      const auto& p = row.at("problem");
      const Problem problem{Operator::gemm_all_to_all, p.at("m"), p.at("n"), p.at("k"), 1, Type::bf16};
      // Fitted: 512, 2048 and 8192 rows of the first four layers.
      const bool fitted = (problem.m == 512 || problem.m == 2048 || problem.m == 8192) && count_layers(rows, row) < 4;
      if (problem.m < 512 || fitted) continue;
      std::map<std::int64_t, double> took, expected;
      for (const auto& plan : row.at("plans")) {
        if (!plan.contains("try")) continue;
        const Knobs knobs = plan::knobs_of(plan::Node(plan.at("knobs"), "knobs"));
        took[knobs.tile_n] = plan.at("us");
        expected[knobs.tile_n] = choose::quick_seconds(problem, {Strategy::fused, knobs}, machine);
      }
      ASSERT_EQ(took.size(), 3u);
      const auto least = [](const auto& times) {
        return std::min_element(times.begin(), times.end(), [](auto& x, auto& y) { return x.second < y.second; });
      };
      const double more = took.at(least(expected)->first) / least(took)->second - 1;
      lost += more;
      of_square += took.at(128) / least(took)->second - 1;
      most = std::max(most, more);
      ++count;
    }
    std::cout << name << ": " << 100 * lost / count << " % longer than the fastest tile, at most " << 100 * most
              << " %; 128x128 " << 100 * of_square / count << " %\n";
    EXPECT_GE(count, 20);
    EXPECT_LT(lost / count, 0.015);
    EXPECT_LT(most, 0.08);
  }
}

// Rows that begin amid sectors of memory are loaded more slowly, and wide tiles load less for each product. Five shapes
// of tiles were timed on an H200, whose constants the first problems gave.
TEST(QuickTimes, ChooseWideTilesWhereRowsAreNotAligned) {
  std::ifstream file(std::string(BENCH_RESULTS) + "/unaligned-1xh200.json");
  const nlohmann::json rows = nlohmann::json::parse(file).at("rows");
  const Machine& machine = four_h200();
  Machine without = machine;
  without.sm_unaligned_bandwidth = {};
  double lost = 0, lost_without = 0;
  int count = 0;
  for (const auto& row : rows) {
    Problem problem{Operator::all_gather_gemm, row.at("m"), row.at("n"), row.at("k"), 1, Type::bf16};
    if (row.at("b_layout") == "nxk") problem.b_layout = Layout::column_major;
    const auto least_of = [&](const Machine& on) {
      double least = 0, took = 0;
      for (const auto& [name, us] : row.at("us").items()) {
        Knobs knobs{.tile_m = std::stoi(name), .tile_n = std::stoi(name.substr(name.find('x') + 1))};
        knobs.split_k = row.at("split_k");
        const double seconds = choose::quick_seconds(problem, {Strategy::fused, knobs}, on);
        if (took == 0 || seconds < least) least = seconds, took = us;
      }
      return took;
    };
    double fastest = std::numeric_limits<double>::max();
    for (const auto& [name, us] : row.at("us").items()) fastest = std::min(fastest, us.get<double>());
    const std::int64_t step = 16;
    const bool aligned = problem.k % step == 0 && (problem.n % step == 0 || problem.b_layout == Layout::column_major);
    if (aligned) {
      EXPECT_EQ(least_of(machine), least_of(without));
      continue;
    }
    lost += least_of(machine) / fastest - 1;
    lost_without += least_of(without) / fastest - 1;
    ++count;
  }
  std::cout << 100 * lost / count << " % longer than the fastest tile; were they loaded as others "
            << 100 * lost_without / count << " %\n";
  EXPECT_GE(count, 20);
  EXPECT_LT(lost / count, 0.05);
  EXPECT_GT(lost_without, 2 * lost);
}

// Simulated, the candidate of the least quick time takes little longer than the best, on Hopper and on older GPUs; the
// library's sequence much.
TEST(QuickTimes, ChooseAsTheSimulator) {
  test::Random random(test::seed_from_environment());
  for (const bool hopper : {true, false}) {
    Machine machine = four_h200();
    if (!hopper) machine.own_one_step = machine.own_two_steps = {};
    std::erase_if(machine.tiles, [&](const TileRate& tile) {
      return !choose::has_kernel_tile(Type::bf16, hopper, tile.tile_m, tile.tile_n);
    });
    const auto simulator = make_simulator(machine);
    double lost = 0, of_sequences = 0, most = 0;
    constexpr int count = 60;
    for (int i = 0; i < count; ++i) {
      const Problem p = far_problem(random);
      const auto simulated = [&](const plan::Candidate& c) {
        return simulator->prepare(make_plan(p, c.strategy, c.knobs))->run({}).seconds;
      };
      std::vector<double> quick, seconds;
      for (const plan::Candidate& c : choose::candidates(p, machine, std::nullopt)) {
        quick.push_back(choose::quick_seconds(p, c, machine));
        seconds.push_back(simulated(c));
      }
      const double best = *std::min_element(seconds.begin(), seconds.end());
      const auto chosen = std::min_element(quick.begin(), quick.end()) - quick.begin();
      const double loss = std::log(seconds[static_cast<std::size_t>(chosen)] / best);
      lost += loss / count;
      most = std::max(most, loss);
      of_sequences += std::log(simulated(choose::library_sequence(p)) / best) / count;
    }
    std::cout << (hopper ? "Hopper: " : "older: ") << 100 * lost << " % in the mean, at most " << 100 * most
              << " %; sequences " << 100 * of_sequences << " %\n";
    EXPECT_LT(lost, 0.03);
    EXPECT_GT(of_sequences, 0.2);
  }
}

}  // namespace
}  // namespace imbrex
