// What a plan may hold at most: the format check proves it, and strategies refuse to make more before they make
// anything.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <limits>

#include "imbrex/error.hpp"
#include "imbrex/plan.hpp"
#include "plan/limits.hpp"
#include "plan/rank_plan.hpp"
#include "plan/task_stream.hpp"

namespace imbrex {
namespace {

constexpr std::int64_t largest = 2147483647;
static_assert(largest == plan::most_extent);

// One rank; B goes by way of a workspace whose rows are that long.
Plan by_way_of_a_wide_workspace(std::int64_t cols) {
  Plan plan = make_plan({Operator::gemm_all_reduce, 64, 64, 8, 1, Type::fp32}, Strategy::sequential, {});
  plan.buffers.push_back({"wide", BufferRole::workspace, Layout::row_major, Type::fp32, 8, cols, 1});
  plan.ranks[0].signals = 1;
  auto& tasks = plan.ranks[0].queues[0].tasks;
  const Region wide{0, 3, 0, 0, 8, 64};
  std::get<Product>(tasks[0].work).b = wide;
  tasks[0].waits.push_back({0});
  tasks.insert(tasks.begin(), {Transfer{{0, 1, 0, 0, 8, 64}, wide}, {}, {{0, 0}}});
  return plan;
}

std::string fault_of(const Plan& plan) {
  const auto finding = check_format(plan);
  return finding ? std::string(name_of(finding->fault)) + ": " + finding->message : "none";
}

TEST(Limits, RowsAndColumnsFit32Bits) {
  EXPECT_FALSE(check(by_way_of_a_wide_workspace(largest)).has_value());
  EXPECT_EQ(fault_of(by_way_of_a_wide_workspace(largest + 1)),
            "malformed: buffer wide is 8 x 2147483648: rows and columns are at most 2147483647, which 32-bit integers "
            "hold");
  // What is left of this pitch in 32 bits is a pitch that would suit.
  EXPECT_NE(fault_of(by_way_of_a_wide_workspace((std::int64_t{1} << 32) + 64)), "none");
  EXPECT_THROW(validate({Operator::gemm_all_reduce, 64, largest + 1, 64, 1, Type::bf16}), Error);
  EXPECT_NO_THROW(validate({Operator::gemm_all_reduce, 64, largest, 64, 1, Type::bf16}));
}

TEST(Limits, TilesHaveAsManyElementsAs32BitsCount) {
  Plan plan = make_plan({Operator::gemm_all_reduce, 64, 64, 64, 1, Type::fp32}, Strategy::fused, {});
  plan.ranks[0].queues[0].tile = {largest, largest};
  plan.buffers.push_back({"tall", BufferRole::workspace, Layout::row_major, Type::fp32, 2147418113, 1, 1});
  plan.buffers.push_back({"wide", BufferRole::workspace, Layout::row_major, Type::fp32, 1, largest, 1});
  auto& tile = std::get<Tile>(plan.ranks[0].queues[0].tasks[0].work);
  tile.a = {0, 3, 0, 0, 2147418113, 1};
  tile.b = {0, 4, 0, 0, 1, largest};
  EXPECT_EQ(fault_of(plan),
            "malformed: rank 0 queue 0 task 0 (tile): the tile is 2147418113 x 2147483647: it may have 2147483647 "
            "elements");
}

TEST(Limits, NamesAreShortAndPrintable) {
  Plan plan = make_plan({Operator::gemm_all_reduce, 8, 8, 8, 2, Type::fp32}, Strategy::fused, {});
  plan.buffers[3].name = "slots \x1b[31m";
  EXPECT_EQ(fault_of(plan), "malformed: buffer 3 is called 'slots \\x1b[31m': a name is one line of at most 100 bytes");
  plan.buffers[3].name = std::string(101, 'n');
  EXPECT_EQ(fault_of(plan),
            "malformed: buffer 3 is called '" + std::string(80, 'n') + "...': a name is one line of at most 100 bytes");
  plan.buffers[3].name = std::string(100, 'n');
  EXPECT_EQ(fault_of(plan), "none");
}

// ------------------------------------------------------------------------------------------------- before it is made

long most_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;  // KiB
}

struct Asked {
  const char* what;
  void (*set)(Knobs&);
};

// Whatever the knobs ask for: at once there is a plan or an error that names the numbers, and little memory is touched.
TEST(Limits, CountsAreBoundedBeforeAnythingIsMade) {
  constexpr int most = 2147483647;
  const Asked all[] = {
      {"one element a tile", [](Knobs& k) { k.tile_m = k.tile_n = 1; }},
      {"k_slices", [](Knobs& k) { k.k_slices = most; }},
      {"split_k", [](Knobs& k) { k.split_k = most; }},
      {"chunks", [](Knobs& k) { k.chunks = most; }},
      {"comm_rows", [](Knobs& k) { k.comm_rows = 1; }},
      {"comm_rows, stored", [](Knobs& k) { k.comm_rows = 1, k.transport = Transport::store; }},
      {"comm_rows, pulled",
       [](Knobs& k) { k.comm_rows = 1, k.transport = Transport::pull, k.reducer = Reducer::tail; }},
      {"spanning", [](Knobs& k) { k.span_shards = true, k.tile_m = k.tile_n = 1, k.reducer = Reducer::tail; }},
      {"one shot",
       [](Knobs& k) {
         k.one_shot = true, k.tile_m = k.tile_n = 1, k.reducer = Reducer::tail, k.transport = Transport::store;
       }},
      {"nodes", [](Knobs& k) { k.nodes = 2, k.chunks = most; }},
      {"slices and pieces",
       [](Knobs& k) { k.k_slices = 1 << 10, k.comm_rows = 1 << 10, k.transport = Transport::store; }},
      {"large numbers of little meaning",
       [](Knobs& k) {
         k.tile_m = most, k.tile_n = 1, k.group = most, k.own_shift = most, k.abreast = most;
         k.comm_rows = std::numeric_limits<std::int64_t>::max(), k.order = TileOrder::column_major;
         k.transport = Transport::store;
       }},
  };
  const long before = most_memory();
  int refused = 0;
  for (const std::int64_t size : {std::int64_t{1} << 25, largest / 8 * 8})
    for (const int ranks : {1, 8})
      for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                Operator::gemm_all_to_all})
        for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::fused})
          for (const Asked& asked : all) {
            Knobs knobs;
            asked.set(knobs);
            const auto begin = std::chrono::steady_clock::now();
            const auto attempt = [&](auto&& make) {
              try {
                make();
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::invalid_input);
                ++refused;
              }
            };
            const Problem problem{op, size, size, size, ranks, Type::bf16};
            attempt([&] { make_plan(problem, strategy, knobs); });
            attempt([&] { plan::make_rank_tasks(problem, strategy, knobs, 0); });
            const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
            const auto where = [&] {
              return std::string(asked.what) + ": " + std::string(name_of(op)) + ", " + std::string(name_of(strategy)) +
                     ", " + std::to_string(ranks) + " ranks, " + std::to_string(size);
            };
            ASSERT_LT(seconds.count(), 5) << where();
            ASSERT_LT(most_memory() - before, 1L << 19) << where();
          }
  EXPECT_GT(refused, 300);
}

TEST(Limits, RefusalsNameTheNumbers) {
  Knobs knobs;
  knobs.k_slices = 2147483647;
  try {
    make_plan({Operator::all_gather_gemm, 4096, 4096, largest, 2, Type::bf16}, Strategy::fused, knobs);
    ADD_FAILURE() << "was made";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("4096 x 4096 x 2147483647 in tiles of 128 x 128, 2 ranks: a plan of "), 0u)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("k_slices"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace imbrex
