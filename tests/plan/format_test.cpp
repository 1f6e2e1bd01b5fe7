// Each rule of the format refuses what breaks it, at both ends of its range, and nothing within.
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <stdexcept>

#include "imbrex/plan.hpp"
#include "plan/limits.hpp"
#include "plan/small_plans.hpp"

namespace imbrex {
namespace {

using test::small_tiles;

constexpr std::int64_t extent = plan::most_extent;

// Rank 0: queue 0 computes; of the tiles the last four add a slot.
Plan fused() {
  return make_plan({Operator::gemm_reduce_scatter, 32, 16, 16, 2, Type::fp32}, Strategy::fused,
                   small_tiles(Transport::store));
}
// Queue 0 computes, queue 1 copies: the first task pushes 8 x 8 of a to rows 0 to 7 of 16 of gathered on rank 1.
Plan pushed() {
  return make_plan({Operator::all_gather_gemm, 16, 16, 8, 2, Type::fp32}, Strategy::fused,
                   small_tiles(Transport::push));
}
// Queue 0 multiplies 32 x 8 by 8 x 16, queue 1 sums the products.
Plan sequential(Operator op = Operator::gemm_reduce_scatter) {
  return make_plan({op, 32, 16, 16, 2, Type::fp32}, Strategy::sequential, small_tiles(Transport::store));
}
// Queue 1 first sums 16 x 16 and its own rows.
Plan reduced() {
  Knobs knobs = small_tiles(Transport::store);
  knobs.reducer = Reducer::tail;
  return make_plan({Operator::gemm_reduce_scatter, 32, 16, 16, 2, Type::fp32}, Strategy::fused, knobs);
}

struct Case {
  const char* text;  // "": it is accepted
  std::function<void(Plan&)> change;
};

void expect_each(const Plan& good, std::initializer_list<Case> cases) {
  ASSERT_FALSE(check_format(good).has_value()) << check_format(good)->message;
  int number = 0;
  for (const Case& one : cases) {
    SCOPED_TRACE("case " + std::to_string(number++) + ", " + one.text);
    Plan plan = good;
    one.change(plan);
    const auto finding = check_format(plan);
    if (*one.text == '\0') {
      EXPECT_FALSE(finding.has_value()) << finding->message;
      continue;
    }
    ASSERT_TRUE(finding.has_value()) << "the plan passed";
    const bool leaves = std::string(one.text).find("leaves buffer") != std::string::npos;
    EXPECT_EQ(name_of(finding->fault), name_of(leaves ? Fault::bounds : Fault::malformed)) << finding->message;
    EXPECT_NE(finding->message.find(one.text), std::string::npos) << finding->message;
  }
}

Task& task(Plan& p, std::size_t queue, std::size_t number) { return p.ranks[0].queues.at(queue).tasks.at(number); }
Queue& queue(Plan& p, std::size_t number) { return p.ranks[0].queues.at(number); }
template <typename Work>
Work& work(Plan& p, std::size_t queue, std::size_t number) {
  return std::get<Work>(task(p, queue, number).work);
}
// The number of a buffer that is added.
int with_buffer(Plan& p, Layout layout, Type type, std::int64_t rows, std::int64_t cols) {
  p.buffers.push_back({"more", BufferRole::workspace, layout, type, rows, cols, 1});
  return static_cast<int>(p.buffers.size()) - 1;
}

TEST(Format, OfPlansAndBuffers) {
  using P = Plan;
  expect_each(
      fused(),
      {{"", [](P& p) { p.signal_copies = 1; }},
       {"signal_copies is 0: it must be 1 or 2", [](P& p) { p.signal_copies = 0; }},
       {"signal_copies is 3: it must be 1 or 2", [](P& p) { p.signal_copies = 3; }},
       {"the first buffers must be a, b, out; there are 2", [](P& p) { p.buffers.resize(2); }},
       {"buffer slots is -1 x 64", [](P& p) { p.buffers[3].rows = -1; }},
       {"buffer slots is 4 x -1", [](P& p) { p.buffers[3].cols = -1; }},
       {"", [](P& p) { with_buffer(p, Layout::row_major, Type::fp32, extent, 1); }},
       {"buffer more is 2147483648 x 1: rows and columns are at most 2147483647",
        [](P& p) { with_buffer(p, Layout::row_major, Type::fp32, extent + 1, 1); }},
       {"buffer more is 1 x 2147483648", [](P& p) { with_buffer(p, Layout::row_major, Type::fp32, 1, extent + 1); }},
       {"", [](P& p) { p.buffers[3].copies = 1; }},
       {"buffer slots has 0 copies: it must have 1 or 2", [](P& p) { p.buffers[3].copies = 0; }},
       {"buffer slots has 3 copies: it must have 1 or 2", [](P& p) { p.buffers[3].copies = 3; }},
       {"buffer slots is number 3: only the first 3", [](P& p) { p.buffers[3].role = BufferRole::output; }},
       {"buffer more is column_major", [](P& p) { with_buffer(p, Layout::column_major, Type::fp32, 8, 8); }},
       {"buffer 0 (a) must be the caller's", [](P& p) { p.buffers[0].role = BufferRole::workspace; }},
       {"buffer 1 (b) must be the caller's", [](P& p) { p.buffers[1].layout = Layout::column_major; }},
       {"buffer 2 (out) must be the caller's", [](P& p) { p.buffers[2].copies = 2; }},
       {"buffer 2 (out) must be the caller's", [](P& p) { p.buffers[2].type = Type::bf16; }},
       {"buffer 2 (out) must be the caller's", [](P& p) { p.buffers[2].rows += 1; }},
       {"buffer 2 (out) must be the caller's", [](P& p) { p.buffers[2].cols += 1; }}});
}

TEST(Format, OfRanksAndQueues) {
  using P = Plan;
  const auto more_queues = [](P& p, std::size_t count) { p.ranks[0].queues.resize(count, {Engine::copy}); };
  expect_each(
      pushed(),
      {{"", [](P& p) { p.ranks[1].signals = (1 << 22) - p.ranks[0].signals; }},
       {"all ranks together may have 2^22", [](P& p) { p.ranks[1].signals = (1 << 22) - p.ranks[0].signals + 1; }},
       {"rank 1 has -1 signals", [](P& p) { p.ranks[1].signals = -1; }},
       {"", [&](P& p) { more_queues(p, plan::most_queues); }},
       {"rank 0 has 65 queues: at most 64", [&](P& p) { more_queues(p, plan::most_queues + 1); }},
       {"", [](P& p) { queue(p, 0).workers = plan::most_workers; }},
       {"rank 0 queue 0 reserves -1 workers", [](P& p) { queue(p, 0).workers = -1; }},
       {"rank 0 queue 1 reserves 65537 workers", [](P& p) { queue(p, 1).workers = plan::most_workers + 1; }},
       {"",
        [](P& p) {
          queue(p, 1).tile = {extent, extent};
        }},
       {"rank 0 queue 1 computes blocks of -1 x 0",
        [](P& p) {
          queue(p, 1).tile = {-1, 0};
        }},
       {"rank 0 queue 1 computes blocks of 0 x -1",
        [](P& p) {
          queue(p, 1).tile = {0, -1};
        }},
       {"rank 0 queue 1 computes blocks of 2147483648 x 0",
        [](P& p) {
          queue(p, 1).tile = {extent + 1, 0};
        }},
       {"rank 0 queue 1 computes blocks of 0 x 2147483648",
        [](P& p) {
          queue(p, 1).tile = {0, extent + 1};
        }},
       {"rank 0 queue 1 is a copy queue: cluster share_b", [](P& p) { queue(p, 1).cluster = ClusterMode::share_b; }},
       {"rank 0 queue 1 is a copy queue: only library", [](P& p) { queue(p, 1).kept_free = 1; }},
       {"only transfers run on a copy queue", [](P& p) { task(p, 1, 0).work = Reduction{}; }}});
  expect_each(sequential(),
              {{"", [](P& p) { queue(p, 1).kept_free = plan::most_workers; }},
               {"rank 0 queue 1 keeps 65537 SMs free", [](P& p) { queue(p, 1).kept_free = plan::most_workers + 1; }},
               {"rank 0 queue 1 keeps -1 SMs free", [](P& p) { queue(p, 1).kept_free = -1; }},
               {"tiles run on compute queues", [](P& p) { task(p, 0, 0).work = Tile{}; }}});
}

TEST(Format, OfWaitsAndPosts) {
  using P = Plan;
  expect_each(fused(), {{"",
                         [](P& p) {
                           task(p, 0, 4).waits = {{p.ranks[0].signals - 1, (1u << 30) - 1}};
                         }},
                        {"waits for signal 5 of 5", [](P& p) { task(p, 0, 4).waits = {{p.ranks[0].signals}}; }},
                        {"waits for signal -1 of 5", [](P& p) { task(p, 0, 4).waits = {{-1}}; }},
                        {"waits for 0 posts",
                         [](P& p) {
                           task(p, 0, 4).waits = {{0, 0}};
                         }},
                        {"waits for 1073741824 posts",
                         [](P& p) {
                           task(p, 0, 4).waits = {{0, 1u << 30}};
                         }},
                        {"",
                         [](P& p) {
                           task(p, 0, 4).waits = {{0, 1, WaitPoint::load, 7}};
                         }},
                        {"from column 8 on",
                         [](P& p) {
                           task(p, 0, 4).waits = {{0, 1, WaitPoint::load, 8}};
                         }},
                        {"from column -1 on",
                         [](P& p) {
                           task(p, 0, 4).waits = {{0, 1, WaitPoint::load, -1}};
                         }},
                        {"from column 4 on",
                         [](P& p) {
                           task(p, 0, 4).waits = {{0, 1, WaitPoint::epilogue, 4}};
                         }},
                        {"",
                         [](P& p) {
                           task(p, 0, 4).posts = {{1, p.ranks[1].signals - 1}};
                         }},
                        {"posts to signal 5 of 5 on rank 1",
                         [](P& p) {
                           task(p, 0, 4).posts = {{1, 5}};
                         }},
                        {"posts to signal -1 of 5 on rank 1",
                         [](P& p) {
                           task(p, 0, 4).posts = {{1, -1}};
                         }},
                        {"posts to rank 2 of 2",
                         [](P& p) {
                           task(p, 0, 4).posts = {{2, 0}};
                         }},
                        {"posts to rank -1 of 2", [](P& p) {
                           task(p, 0, 4).posts = {{-1, 0}};
                         }}});
  expect_each(pushed(), {{"only a tile waits at its epilogue",
                          [](P& p) {
                            task(p, 1, 0).waits = {{0, 1, WaitPoint::epilogue}};
                          }},
                         {"a wait from column 1 on is not inside the tile's depth", [](P& p) {
                            task(p, 1, 0).waits = {{0, 1, WaitPoint::load, 1}};
                          }}});
}

TEST(Format, OfRegions) {
  using P = Plan;
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = -most - 1;
  const auto to = [](P& p) -> Region& { return work<Transfer>(p, 1, 0).to; };
  expect_each(pushed(), {{"", [&](P& p) { to(p).row = 8; }},
                         {"leaves buffer gathered of 16 x 8", [&](P& p) { to(p).row = 9; }},
                         {"leaves buffer", [&](P& p) { to(p).row = -1; }},
                         {"leaves buffer", [&](P& p) { to(p).row = most; }},
                         {"leaves buffer", [&](P& p) { to(p).row = least; }},
                         {"leaves buffer", [&](P& p) { to(p).col = 1; }},
                         {"leaves buffer", [&](P& p) { to(p).col = -1; }},
                         {"leaves buffer", [&](P& p) { to(p).col = most; }},
                         {"leaves buffer", [&](P& p) { to(p).rows = 17; }},
                         {"leaves buffer", [&](P& p) { to(p).rows = -1; }},
                         {"leaves buffer", [&](P& p) { to(p).rows = most; }},
                         {"leaves buffer", [&](P& p) { to(p).cols = 9; }},
                         {"leaves buffer", [&](P& p) { to(p).cols = -1; }},
                         {"leaves buffer", [&](P& p) { to(p).cols = most; }},
                         {"the destination is on rank 2 of 2", [&](P& p) { to(p).rank = 2; }},
                         {"the destination is on rank -1 of 2", [&](P& p) { to(p).rank = -1; }},
                         {"the destination is in buffer 4 of 4", [&](P& p) { to(p).buffer = 4; }},
                         {"the destination is in buffer -1 of 4", [&](P& p) { to(p).buffer = -1; }},
                         {"the destination is in the caller's input a", [&](P& p) { to(p) = {0, 0, 0, 0, 8, 8}; }}});
}

TEST(Format, OfTiles) {
  using P = Plan;
  const auto tile = [](P& p) -> Tile& { return work<Tile>(p, 0, 4); };  // the first that adds a slot, and goes to out
  const auto sent = [](P& p) -> Tile& { return work<Tile>(p, 0, 0); };
  expect_each(
      fused(),
      {{"operand A is empty", [&](P& p) { tile(p).a.rows = 0; }},
       {"operand B is on rank 1", [&](P& p) { tile(p).b.rank = 1; }},
       {"operands must be fp32",
        [&](P& p) { tile(p).a = {0, with_buffer(p, Layout::row_major, Type::bf16, 8, 8), 0, 0, 8, 8}; }},
       {"operands must be fp32",
        [&](P& p) { tile(p).b = {0, with_buffer(p, Layout::row_major, Type::bf16, 8, 8), 0, 0, 8, 8}; }},
       {"A row_major", [&](P& p) { tile(p).a = {0, with_buffer(p, Layout::fragment, Type::fp32, 8, 8), 0, 0, 8, 8}; }},
       {"B row_major", [&](P& p) { tile(p).b = {0, with_buffer(p, Layout::fragment, Type::fp32, 8, 8), 0, 0, 8, 8}; }},
       {"a tile of 8 x 8 on a queue whose blocks are 7 x 8",
        [&](P& p) {
          queue(p, 0).tile = {7, 8};
        }},
       {"a tile of 8 x 8 on a queue whose blocks are 8 x 7",
        [&](P& p) {
          queue(p, 0).tile = {8, 7};
        }},
       {"", [&](P& p) { tile(p).own = 1; }},
       {"own position 2 of 1 slots", [&](P& p) { tile(p).own = 2; }},
       {"own position -1 of 1 slots", [&](P& p) { tile(p).own = -1; }},
       {"a slot to add must be one whole slot of 64", [&](P& p) { tile(p).adds[0].rows = 2; }},
       {"a slot to add must be one whole slot of 64", [&](P& p) { tile(p).adds[0].cols = 63; }},
       {"a slot to add must be one whole slot of 64",
        [&](P& p) { tile(p).adds[0].col = 1, tile(p).adds[0].cols = 63; }},
       {"a slot to add is 8 x 7, the tile 8 x 8", [&](P& p) { tile(p).adds[0] = {0, 2, 0, 0, 8, 7}; }},
       {"a slot to add is 7 x 8, the tile 8 x 8", [&](P& p) { tile(p).adds[0] = {0, 2, 0, 0, 7, 8}; }},
       {"a store is in the caller's input a", [&](P& p) { tile(p).stores[0].to.buffer = 0; }},
       {"a fragment slot takes the whole tile", [&](P& p) { sent(p).stores[0].row = 1; }},
       {"a fragment slot takes the whole tile", [&](P& p) { sent(p).stores[0].col = 1; }},
       {"a store must be one whole slot of 64", [&](P& p) { sent(p).stores[0].to.cols = 63; }},
       {"",
        [&](P& p) {
          tile(p).stores[0] = {{0, 2, 0, 0, 7, 7}, 1, 1};
        }},
       {"a store of 2+7 x 1+7 leaves the tile of 8 x 8",
        [&](P& p) {
          tile(p).stores[0] = {{0, 2, 0, 0, 7, 7}, 2, 1};
        }},
       {"a store of 1+7 x 2+7 leaves the tile of 8 x 8",
        [&](P& p) {
          tile(p).stores[0] = {{0, 2, 0, 0, 7, 7}, 1, 2};
        }},
       {"a store of -1+7 x 1+7",
        [&](P& p) {
          tile(p).stores[0] = {{0, 2, 0, 0, 7, 7}, -1, 1};
        }},
       {"a store of 1+7 x -1+7",
        [&](P& p) {
          tile(p).stores[0] = {{0, 2, 0, 0, 7, 7}, 1, -1};
        }},
       {"", [&](P& p) { queue(p, 0).cluster = ClusterMode::share_k; }},
       {"columns 0+4 of A on a queue with cluster share_k",
        [&](P& p) {
          queue(p, 0).cluster = ClusterMode::share_k;
          tile(p).a.cols = tile(p).b.rows = 4;
        }},
       {"columns 4+4 of A on a queue with cluster share_k", [&](P& p) {
          queue(p, 0).cluster = ClusterMode::share_k;
          tile(p).a.col = tile(p).a.cols = tile(p).b.rows = 4;
        }}});
}

TEST(Format, OfScales) {
  using P = Plan;
  const Plan plan =
      make_plan({Operator::gemm_reduce_scatter, 32, 16, 32, 2, Type::e4m3, false, Scales::row}, Strategy::fused, [] {
        Knobs knobs = small_tiles(Transport::store);
        knobs.partial = Type::bf16;
        return knobs;
      }());
  const auto tile = [](P& p) -> Tile& { return work<Tile>(p, 0, 4); };
  expect_each(
      plan,
      {{"the scales of A are 7 x 1: with scales row, they must be 8 x 1", [&](P& p) { tile(p).a_scale.rows = 7; }},
       {"scales must be row_major fp32, not row_major bf16",
        [&](P& p) { tile(p).a_scale = {0, with_buffer(p, Layout::row_major, Type::bf16, 8, 1), 0, 0, 8, 1}; }},
       {"scales must be row_major fp32, not fragment fp32",
        [&](P& p) { tile(p).a_scale = {0, with_buffer(p, Layout::fragment, Type::fp32, 8, 1), 0, 0, 8, 1}; }},
       {"the scales of A is empty", [&](P& p) { tile(p).a_scale.rows = 0; }}});
}

TEST(Format, OfProducts) {
  using P = Plan;
  const auto product = [](P& p) -> Product& { return work<Product>(p, 0, 0); };
  const auto batch = [&](P& p, int count, std::int64_t a_step, std::int64_t to_step) {
    product(p).a.rows = product(p).to.rows = 8;
    product(p).batch = count;
    product(p).a_step = a_step;
    product(p).to_step = to_step;
  };
  expect_each(sequential(),
              {{"", [&](P& p) { batch(p, 4, 8, 8); }},
               {"a batch of 65537: it must be from 1 to 2^16", [&](P& p) { batch(p, plan::most_batch + 1, 8, 8); }},
               {"steps of 1 and 0 rows in a batch of one", [&](P& p) { batch(p, 1, 1, 0); }},
               {"steps of 0 and 1 rows in a batch of one", [&](P& p) { batch(p, 1, 0, 1); }},
               {"", [&](P& p) { batch(p, 4, 1, 8); }},
               {"leaves buffer a of 32 rows", [&](P& p) { batch(p, 4, 9, 8); }},
               {"leaves buffer partial of 32 rows", [&](P& p) { batch(p, 4, 8, 9); }},
               {"leaves buffer a of 32 rows", [&](P& p) { batch(p, 4, 8, 8), product(p).a.row = 1; }},
               {"the result must be row_major, not fragment",
                [&](P& p) { product(p).to.buffer = with_buffer(p, Layout::fragment, Type::fp32, 32, 16); }},
               {"the result is 32 x 15, the product 32 x 16", [&](P& p) { product(p).to.cols = 15; }},
               {"the result is 31 x 16, the product 32 x 16", [&](P& p) { product(p).to.rows = 31; }},
               {"",
                [&](P& p) {
                  product(p).algorithm = {0, 1 << 16};
                }},
               {"algorithm [0, 65537]",
                [&](P& p) {
                  product(p).algorithm = {0, (1 << 16) + 1};
                }},
               {"algorithm [-1, 1]",
                [&](P& p) {
                  product(p).algorithm = {-1, 1};
                }},
               {"a product on a queue whose blocks are 0 x 8",
                [&](P& p) {
                  queue(p, 0).tile = {0, 8};
                }},
               {"a product on a queue whose blocks are 8 x 0",
                [&](P& p) {
                  queue(p, 0).tile = {8, 0};
                }},
               {"the destination is on rank 1: tasks of library queues stay on their rank",
                [&](P& p) {
                  queue(p, 0).tasks.push_back({Transfer{{0, 2, 0, 0, 8, 16}, {1, 3, 0, 0, 8, 16}}, {}, {}});
                }},
               {"the source is on rank 1: tasks of library queues stay on their rank",
                [&](P& p) {
                  queue(p, 0).tasks.push_back({Transfer{{1, 2, 0, 0, 8, 16}, {0, 3, 0, 0, 8, 16}}, {}, {}});
                }},
               {"a source is on rank 1: tasks of library queues stay on their rank",
                [&](P& p) {
                  queue(p, 0).tasks.push_back({Reduction{{{1, 3, 0, 0, 8, 16}}, {{0, 2, 0, 0, 8, 16}}}, {}, {}});
                }},
               {"a destination is on rank 1: tasks of library queues stay on their rank", [&](P& p) {
                  queue(p, 0).tasks.push_back({Reduction{{{0, 3, 0, 0, 8, 16}}, {{1, 2, 0, 0, 8, 16}}}, {}, {}});
                }}});
}

TEST(Format, OfBlocksOfProducts) {
  using P = Plan;
  // Batches of products of 2^16 x 2^16, each a row of A further.
  const auto large = [](P& p, int count, Extent tile) {
    constexpr std::int64_t side = 1 << 16;
    auto& product = work<Product>(p, 0, 0);
    product.batch = count;
    product.a_step = count > 1 ? 1 : 0;
    product.to_step = count > 1 ? side : 0;
    product.a = {0, with_buffer(p, Layout::row_major, Type::fp32, side + count, 8), 0, 0, side, 8};
    product.b = {0, with_buffer(p, Layout::row_major, Type::fp32, 8, side), 0, 0, 8, side};
    product.to = {0, with_buffer(p, Layout::row_major, Type::fp32, count * side, side), 0, 0, side, side};
    queue(p, 0).tile = tile;
  };
  expect_each(sequential(), {{"",
                              [](P& p) {
                                queue(p, 0).tile = {extent, extent};
                              }},
                             {"",
                              [&](P& p) {
                                large(p, 1, {extent, 32767});
                              }},
                             {"",
                              [&](P& p) {
                                large(p, 1, {32767, extent});
                              }},
                             {"blocks of 65536 x 32768: one may have 2147483647 elements",
                              [&](P& p) {
                                large(p, 1, {extent, 32768});
                              }},
                             {"blocks of 32768 x 65536: one may have 2147483647 elements",
                              [&](P& p) {
                                large(p, 1, {32768, extent});
                              }},
                             {"",
                              [&](P& p) {
                                large(p, 16, {1, 1});
                              }},
                             {"products of 73014444032 blocks of 1 x 1: there may be 68719476736",
                              [&](P& p) {
                                large(p, 17, {1, 1});
                              }},
                             {"",
                              [&](P& p) {
                                large(p, 17, {2, 1});
                              }},
                             {"", [&](P& p) {
                                large(p, 17, {1, 2});
                              }}});
}

TEST(Format, OfTransfersAndReductions) {
  using P = Plan;
  const auto copy = [](P& p) -> Transfer& { return work<Transfer>(p, 1, 0); };
  expect_each(
      pushed(),
      {{"", [&](P& p) { copy(p) = {}; }},
       {"one side of the transfer is empty", [&](P& p) { copy(p).from = {}; }},
       {"one side of the transfer is empty", [&](P& p) { copy(p).to = {}; }},
       {"8 x 8 is copied to 7 x 8", [&](P& p) { copy(p).to.rows = 7; }},
       {"8 x 8 is copied to 8 x 7", [&](P& p) { copy(p).to.cols = 7; }},
       {"one element type and layout",
        [&](P& p) { copy(p).to = {1, with_buffer(p, Layout::row_major, Type::bf16, 8, 8), 0, 0, 8, 8}; }},
       {"one element type and layout",
        [&](P& p) { copy(p).to = {1, with_buffer(p, Layout::fragment, Type::fp32, 8, 8), 0, 0, 8, 8}; }},
       {"a transfer between ranks 1 and 1 runs on neither", [&](P& p) { copy(p).from.rank = copy(p).to.rank = 1; }}});
  const Plan plan = reduced();
  const auto sum = [](P& p) -> Reduction& {
    for (Queue& one : p.ranks[0].queues)
      for (Task& task : one.tasks)
        if (auto* reduction = std::get_if<Reduction>(&task.work)) return *reduction;
    throw std::logic_error("no reduction");
  };
  expect_each(plan, {{"a reduction needs sources and destinations", [&](P& p) { sum(p).from.clear(); }},
                     {"a reduction needs sources and destinations", [&](P& p) { sum(p).to.clear(); }},
                     {"the first source 8 x 8", [&](P& p) { --sum(p).from.back().rows; }},
                     {"the first source 8 x 8", [&](P& p) { --sum(p).from.back().cols; }},
                     {"a destination is 7 x 8, the first source 8 x 8", [&](P& p) { --sum(p).to[0].rows; }},
                     {"a destination is in the caller's input a", [&](P& p) { sum(p).to[0].buffer = 0; }},
                     {"a source must be row-major", [&](P& p) {
                        sum(p).from.back() = {0, with_buffer(p, Layout::fragment, Type::fp32, 8, 8), 0, 0, 8, 8};
                      }}});
}

TEST(Format, OfCollectives) {
  using P = Plan;
  const auto part = [](P& p) -> Collective& { return work<Collective>(p, 1, 0); };
  expect_each(
      sequential(),
      {{"a collective's regions are on its own rank", [&](P& p) { part(p).from.rank = 1; }},
       {"a collective's regions are on its own rank", [&](P& p) { part(p).to.rank = 1; }},
       {"row-major and have one element type",
        [&](P& p) { part(p).from.buffer = with_buffer(p, Layout::fragment, Type::fp32, 32, 16); }},
       {"row-major and have one element type",
        [&](P& p) { part(p).to.buffer = with_buffer(p, Layout::fragment, Type::fp32, 16, 16); }},
       {"row-major and have one element type",
        [&](P& p) { part(p).from.buffer = with_buffer(p, Layout::row_major, Type::bf16, 32, 16); }},
       {"a collective works on whole rows", [&](P& p) { part(p).from.cols = part(p).to.cols = 8; }},
       {"a collective works on whole rows", [&](P& p) { part(p).from.cols = 8; }},
       {"a collective works on whole rows", [&](P& p) { part(p).to.cols = 8; }},
       {"a collective works on whole rows",
        [&](P& p) { part(p).to = {0, with_buffer(p, Layout::row_major, Type::fp32, 16, 8), 0, 0, 16, 8}; }},
       {"reduce_scatter of 30 rows gives 16 rows on 2 ranks", [&](P& p) { part(p).from.rows = 30; }},
       {"source and destination overlap", [&](P& p) { part(p).from.rows = 20, part(p).to = {0, 3, 19, 0, 10, 16}; }},
       {"a collective of kind reduce_scatter sends to rank 1", [&](P& p) { part(p).send_to = 1; }},
       {"a collective of kind reduce_scatter receives from rank 1", [&](P& p) { part(p).receive_from = 1; }},
       {"collective group 0 appears twice on this rank",
        [&](P& p) { queue(p, 1).tasks.push_back(queue(p, 1).tasks[0]); }},
       {"collective group 0 runs by nccl here, but by imbrex elsewhere", [](P& p) {
          work<Collective>(p, 1, 0).backend = Backend::imbrex;
          std::get<Collective>(p.ranks[1].queues[1].tasks[0].work).backend = Backend::nccl;
        }}});
  expect_each(sequential(Operator::gemm_all_to_all),
              {{"31 rows do not divide by 2 ranks", [&](P& p) { part(p).from.rows = part(p).to.rows = 31; }}});
}

}  // namespace
}  // namespace imbrex
