// The checker refuses what is wrong, naming fault and task: one plan, broken in one way each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "imbrex/error.hpp"
#include "imbrex/plan.hpp"
#include "plan/expect_fault.hpp"
#include "plan/small_plans.hpp"

namespace imbrex {
namespace {

using test::compute;
using test::expect_fault;
using test::small_tiles;

Plan reduce_scatter(Transport transport = Transport::store, Reducer reducer = Reducer::tile) {
  return make_plan({Operator::gemm_reduce_scatter, 16, 16, 8, 2, Type::fp32}, Strategy::fused,
                   small_tiles(transport, reducer));
}

Plan all_gather(Transport transport = Transport::push) {
  return make_plan({Operator::all_gather_gemm, 16, 16, 8, 2, Type::fp32}, Strategy::fused, small_tiles(transport));
}

std::vector<Task>& copies(Plan& plan, std::size_t rank) { return plan.ranks[rank].queues[1].tasks; }

TEST(Checker, AcceptsThePlansThatAreBrokenBelow) {
  for (const Plan& plan : {reduce_scatter(), reduce_scatter(Transport::push),
                           reduce_scatter(Transport::pull, Reducer::tail), all_gather(), all_gather(Transport::pull)}) {
    const auto finding = check(plan);
    EXPECT_FALSE(finding.has_value()) << finding->message;
  }
}

TEST(Checker, NamesWhatIsMalformed) {
  Plan plan = reduce_scatter();
  compute(plan, 1)[0].posts[0].signal = 99;
  expect_fault(plan, Fault::malformed, "rank 1 queue 0 task 0 (tile): posts to signal 99");
  plan = reduce_scatter();
  compute(plan, 0)[0].waits.push_back({0, 0});
  expect_fault(plan, Fault::malformed, "waits for 0 posts");
  plan = reduce_scatter();
  std::get<Tile>(compute(plan, 0)[0].work).b.rows = 2;
  expect_fault(plan, Fault::malformed, "operand A is 8 x 4 but operand B is 2 x 8");
  plan = reduce_scatter();
  plan.buffers[0].rows = 8;
  expect_fault(plan, Fault::malformed, "must be the caller's 16 x 4 fp32");
  plan = reduce_scatter();
  plan.ranks.pop_back();
  expect_fault(plan, Fault::malformed, "1 rank entries for 2 ranks");
  plan = make_plan({Operator::gemm_reduce_scatter, 16, 16, 8, 2, Type::fp32}, Strategy::sequential,
                   small_tiles(Transport::store));
  plan.ranks[1].queues[1].tasks.clear();
  expect_fault(plan, Fault::malformed, "rank 1 does not take part in collective 0, which joins it");
}

TEST(Checker, NamesTypesAndLayoutsThatDoNotSuit) {
  // Part of a slot is no part of a tile.
  Plan plan = reduce_scatter();
  const int slots = 3;
  ASSERT_EQ(plan.buffers.at(slots).layout, Layout::fragment);
  compute(plan, 0).push_back({Transfer{{0, slots, 0, 0, 1, 8}, {0, slots, 0, 8, 1, 8}}, {}, {}});
  expect_fault(plan, Fault::malformed, "slots are stored and added whole, and not copied");
  // The smaller type's memory is too small for the other's rows.
  plan = make_plan({Operator::gemm_all_to_all, 16, 16, 8, 2, Type::bf16}, Strategy::sequential,
                   small_tiles(Transport::store));
  auto& part = std::get<Collective>(plan.ranks[1].queues[1].tasks.at(0).work);
  for (Region* region : {&part.from, &part.to}) {
    region->buffer = static_cast<int>(plan.buffers.size());
    plan.buffers.push_back({"wide", BufferRole::workspace, Layout::row_major, Type::fp32, 16, 16, 2});
  }
  expect_fault(plan, Fault::malformed, "is of fp32 here, but of bf16 elsewhere");
  plan =
      make_plan({Operator::gemm_all_to_all, 16, 16, 16, 1, Type::bf16}, Strategy::fused, small_tiles(Transport::store));
  std::get<Tile>(compute(plan, 0).at(0).work).stores.at(0).to.buffer = static_cast<int>(plan.buffers.size());
  plan.buffers.push_back({"narrow", BufferRole::workspace, Layout::row_major, Type::e4m3, 16, 16, 2});
  expect_fault(plan, Fault::malformed, "a store is in narrow: products and sums are not rounded to e4m3");
}

TEST(Checker, BoundsAllBuffersTogether) {
  // A heap holds each alone, and no heap holds all of them.
  Plan plan = reduce_scatter();
  const auto add = [&](std::int64_t rows, int copies) {
    plan.buffers.push_back(
        {"large", BufferRole::workspace, Layout::row_major, Type::fp32, rows, std::int64_t{1} << 20, copies});
  };
  const std::int64_t half = std::int64_t{1} << 16;  // rows of 2^38 bytes together
  add(half, 1);
  EXPECT_FALSE(check(plan).has_value());
  add(half, 1);
  expect_fault(plan, Fault::malformed, "the workspaces up to large need more than 2^39 bytes");
  plan.buffers.pop_back();
  plan.buffers.back().copies = 2;
  expect_fault(plan, Fault::malformed, "the workspaces up to large need more than 2^39 bytes");
  plan.buffers.back() = {
      "large", BufferRole::workspace, Layout::row_major, Type::fp32, std::int64_t{1} << 25, std::int64_t{1} << 20, 1};
  expect_fault(plan, Fault::malformed, "buffer large of 33554432 x 1048576 is larger than 2^46 bytes");
}

// Each begins at a multiple of 256 bytes: what is left of the last of these counts, and no more.
TEST(Checker, BoundsBuffersAsTheyLie) {
  Plan plan = reduce_scatter();
  const Buffer& slots = plan.buffers.at(3);
  const std::int64_t taken = slots.rows * slots.cols * 4 * slots.copies;
  ASSERT_EQ(taken % 256, 0);
  const std::int64_t rows = (std::int64_t{1} << 31) - taken / 256 - 1;  // of 256 bytes
  plan.buffers.push_back({"large", BufferRole::workspace, Layout::row_major, Type::fp32, rows, 64, 1});
  for (const std::int64_t bytes : {1, 255, 256, 257}) {
    Plan full = plan;
    full.buffers.push_back({"rest", BufferRole::workspace, Layout::row_major, Type::e4m3, 1, bytes, 1});
    if (bytes <= 256)
      EXPECT_FALSE(check_format(full).has_value()) << bytes;
    else
      expect_fault(full, Fault::malformed, "the workspaces up to rest need more than 2^39 bytes");
    full.buffers.push_back({"next", BufferRole::workspace, Layout::row_major, Type::e4m3, 1, 1, 1});
    expect_fault(full, Fault::malformed, "need more than 2^39 bytes");
  }
}

TEST(Checker, NamesRegionsThatLeaveTheirBuffers) {
  Plan plan = all_gather();
  std::get<Transfer>(copies(plan, 0)[0].work).to.row = 9;
  expect_fault(plan, Fault::bounds, "rank 0 queue 1 task 0 (transfer): the destination, rows 9+8");
  plan = all_gather();
  std::get<Transfer>(copies(plan, 0)[0].work).to.row = -1;
  expect_fault(plan, Fault::bounds, "leaves buffer gathered");
}

TEST(Checker, NamesTheTaskThatNeverRuns) {
  Plan plan = all_gather();
  copies(plan, 0)[0].posts.clear();
  expect_fault(plan, Fault::deadlock, "but an epoch has only 0");
  // Own tile first: it waits for slots that the peer fills only after its own tile, which waits for this rank's.
  plan = reduce_scatter();
  for (std::size_t rank : {0u, 1u}) std::swap(compute(plan, rank).front(), compute(plan, rank).back());
  expect_fault(plan, Fault::deadlock, "never sees more than");
}

TEST(Checker, NamesReadsThatMayComeTooEarly) {
  Plan plan = all_gather();
  for (Task& task : compute(plan, 0))
    if (!task.waits.empty()) {
      task.waits.clear();
      break;
    }
  expect_fault(plan, Fault::race, "before rank 1 queue 1 task 0 (transfer) has written it");
  // A second post from the same tile lets the wait pass before the other rank has stored, with three ranks.
  Plan three = make_plan({Operator::gemm_reduce_scatter, 24, 8, 12, 3, Type::fp32}, Strategy::fused,
                         small_tiles(Transport::store));
  compute(three, 0)[0].posts.push_back(compute(three, 0)[0].posts[0]);
  expect_fault(three, Fault::race, "may read");
  // Pull without asking whether the owner has entered the epoch.
  plan = all_gather(Transport::pull);
  for (Task& task : copies(plan, 0))
    if (!std::get<Transfer>(task.work).from.empty()) task.waits.clear();
  expect_fault(plan, Fault::race, "before that rank is known to have entered the epoch");
  // Pull whose owner leaves without waiting for the readers.
  plan = all_gather(Transport::pull);
  copies(plan, 1).pop_back();
  expect_fault(plan, Fault::race, "that rank may leave the epoch before it is done");
  // An output is its caller's again as soon as its rank has left, like an input.
  plan = reduce_scatter();
  plan.buffers.push_back({"seen", BufferRole::workspace, Layout::row_major, Type::fp32, 8, 16, 2});
  const int seen = static_cast<int>(plan.buffers.size()) - 1, out = 2;
  compute(plan, 1).push_back({Transfer{{0, out, 0, 0, 8, 16}, {1, seen, 0, 0, 8, 16}}, {}, {}});
  expect_fault(plan, Fault::race, "(transfer): reads rows 0+8 cols 0+16 of out on rank 0");
  const auto finding = check(plan);
  EXPECT_NE(finding->message.find("the epoch"), std::string::npos) << finding->message;
}

TEST(Checker, NamesElementsThatAreMissingDoubledOrWrong) {
  Plan plan = all_gather();
  compute(plan, 1).pop_back();
  expect_fault(plan, Fault::coverage, "64 elements of the output are never written");
  plan = all_gather();
  compute(plan, 1).push_back(compute(plan, 1).back());
  expect_fault(plan, Fault::coverage, "writes too");
  // A shard's rows in another shard's place.
  plan = all_gather();
  for (Task& task : compute(plan, 0))
    if (auto& tile = std::get<Tile>(task.work); tile.a.rank == 0 && tile.a.buffer == 3) {
      tile.a.buffer = 0;
      tile.a.row = 0;
      task.waits.clear();
    }
  expect_fault(plan, Fault::coverage, "with what belongs elsewhere");
  // Own product in place of the peer's contribution: the same stretch of K twice.
  plan = make_plan({Operator::gemm_reduce_scatter, 16, 16, 8, 2, Type::fp32}, Strategy::fused,
                   small_tiles(Transport::store, Reducer::tail));
  for (Task& task : compute(plan, 0))
    if (auto* reduction = std::get_if<Reduction>(&task.work)) {
      reduction->from[1] = reduction->from[0];
      break;
    }
  expect_fault(plan, Fault::coverage, "the sum over k 0..3 would be counted twice");
  // A contribution left out.
  plan = reduce_scatter();
  for (Task& task : compute(plan, 0))
    if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && !tile->adds.empty()) {
      tile->adds.clear();
      tile->own = 0;
      break;
    }
  expect_fault(plan, Fault::coverage, "with the sum over k 0..3 instead of 0..7");
}

TEST(Checker, NamesWhatMeetsTheNextEpoch) {
  Plan plan = all_gather();
  for (Buffer& buffer : plan.buffers) buffer.copies = 1;
  expect_fault(plan, Fault::reuse, "may still read");
  // Three ranks post to one counter, and no rank hears from the waiting rank before it has passed.
  plan = make_plan({Operator::gemm_reduce_scatter, 24, 8, 12, 3, Type::fp32}, Strategy::fused,
                   small_tiles(Transport::store));
  plan.signal_copies = 1;
  expect_fault(plan, Fault::reuse, "posts of epoch e+1");
}

TEST(Checker, FollowsTheBias) {
  const auto with_bias = [](Operator op, Strategy strategy, Reducer reducer) {
    Problem problem{op, 16, 16, 8, 2, Type::fp32, true};
    return make_plan(problem, strategy, small_tiles(Transport::store, reducer));
  };
  // What rank 1's tasks add that add the bias.
  const auto sums_with_bias = [](Plan& plan) {
    std::vector<std::vector<Region>*> sums;
    for (Queue& queue : plan.ranks[1].queues)
      for (Task& task : queue.tasks) {
        if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && !tile->adds.empty())
          sums.push_back(&tile->adds);
        if (auto* reduction = std::get_if<Reduction>(&task.work)) sums.push_back(&reduction->from);
      }
    return sums;
  };
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (Strategy strategy : {Strategy::sequential, Strategy::fused})
      for (Reducer reducer : {Reducer::tile, Reducer::tail}) {
        // A library's product adds its bias itself: see FollowsDataThroughProducts.
        if (strategy == Strategy::sequential && (op == Operator::all_gather_gemm || op == Operator::gemm_all_to_all))
          continue;
        const Plan good = with_bias(op, strategy, reducer);
        SCOPED_TRACE(to_json(good));
        ASSERT_FALSE(check(good).has_value()) << check(good)->message;
        Plan plan = good;
        for (auto* sum : sums_with_bias(plan)) sum->pop_back();
        expect_fault(plan, Fault::coverage, "without the bias");
        plan = good;
        plan.problem.bias = false;
        expect_fault(plan, Fault::malformed, "buffer bias is number 3");
        plan = good;
        if (std::vector<Region>& sum = *sums_with_bias(plan).front(); sum.size() > 1) {
          std::swap(sum.back(), sum.at(sum.size() - 2));
          expect_fault(plan, Fault::malformed, "the bias comes last, from the own rank");
        }
        plan = good;
        Region& bias = sums_with_bias(plan).front()->back();
        bias.rank = 0;
        expect_fault(plan, Fault::malformed, "the bias comes last, from the own rank");
        if (plan.buffers[3].cols == bias.cols) continue;
        plan = good;
        Region& elsewhere = sums_with_bias(plan).front()->back();
        elsewhere.col = elsewhere.col == 0 ? elsewhere.cols : 0;
        expect_fault(plan, Fault::coverage, "to a sum at col");
      }
  // Each contribution with a bias of its own.
  Plan plan = with_bias(Operator::gemm_reduce_scatter, Strategy::fused, Reducer::tail);
  for (std::size_t rank = 0; rank < 2; ++rank)
    for (Task& task : compute(plan, rank))
      if (auto* tile = std::get_if<Tile>(&task.work))
        tile->adds = {{static_cast<int>(rank), 3, 0, tile->b.col, 1, tile->b.cols}};
  expect_fault(plan, Fault::coverage, "the bias would be counted twice");
  // A sum of the last stretch of K alone; the bias follows K among the terms, and is none of it.
  plan = with_bias(Operator::gemm_reduce_scatter, Strategy::fused, Reducer::tile);
  for (Task& task : compute(plan, 1))
    if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && tile->adds.size() == 2) {
      tile->adds.erase(tile->adds.begin());
      tile->own = 0;
    }
  expect_fault(plan, Fault::coverage, "with the sum over k 4..7 instead of 0..7");
  // A rank's blocks with the receiver's bias.
  plan = with_bias(Operator::gemm_all_to_all, Strategy::sequential, Reducer::tile);
  const int received = static_cast<int>(plan.buffers.size());
  plan.buffers.push_back({"received", BufferRole::workspace, Layout::row_major, Type::fp32, 16, 16, 1});
  for (int rank = 0; rank < 2; ++rank) {
    RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
    const int arrived = own.signals++;
    for (Task& task : own.queues[0].tasks) std::get<Product>(task.work).bias = {};
    std::get<Collective>(own.queues[1].tasks[0].work).to.buffer = received;
    own.queues[1].tasks[0].posts = {{rank, arrived}};
    for (std::int64_t row : {0, 8})
      own.queues[0].tasks.push_back(
          {Reduction{{{rank, received, row, 0, 8, 16}, {rank, 3, 0, 0, 1, 16}}, {{rank, 2, row, 0, 8, 16}}},
           {{arrived}},
           {}});
  }
  expect_fault(plan, Fault::coverage, "with another rank's bias");
}

// Ranks 0 and 1 on one node, 2 and 3 on the other: two reduce-scatters inside, then one across.
Plan over_nodes() {
  Knobs knobs = small_tiles(Transport::store);
  knobs.nodes = 2;
  return make_plan({Operator::gemm_reduce_scatter, 32, 8, 8, 4, Type::fp32}, Strategy::sequential, knobs);
}
Collective& collective(Plan& plan, std::size_t rank, std::size_t task) {
  return std::get<Collective>(plan.ranks[rank].queues[1].tasks.at(task).work);
}

TEST(Checker, NamesWhatIsMalformedInCollectivesOfSomeRanks) {
  Plan plan = over_nodes();
  EXPECT_FALSE(check(plan).has_value());
  EXPECT_EQ(collective(plan, 1, 0).ranks, (std::vector{0, 1}));
  EXPECT_EQ(collective(plan, 1, 2).ranks, (std::vector{1, 3}));
  collective(plan, 1, 0).ranks = {1, 0};
  expect_fault(plan, Fault::malformed, "a collective of ranks 1, 0: they must ascend from 0 to 3");
  plan = over_nodes();
  collective(plan, 1, 0).ranks = {1, 4};
  expect_fault(plan, Fault::malformed, "a collective of ranks 1, 4: they must ascend from 0 to 3");
  plan = over_nodes();
  collective(plan, 1, 0).ranks = {0, 2};
  expect_fault(plan, Fault::malformed,
               "rank 1 queue 1 task 0 (collective): a collective of ranks 0, 2 has a part on rank 1");
  plan = over_nodes();
  collective(plan, 1, 0).ranks = {1, 2};
  expect_fault(plan, Fault::malformed, "joins ranks 1, 2 here, but 0, 1 elsewhere");
  plan = over_nodes();
  collective(plan, 0, 0).ranks = {0, 2, 3};
  expect_fault(plan, Fault::malformed, "reduce_scatter of 16 rows gives 8 rows on 3 ranks");
  plan = over_nodes();
  collective(plan, 1, 0).kind = CollectiveKind::all_to_all;
  collective(plan, 1, 0).to.rows = 16;
  expect_fault(plan, Fault::malformed, "is all_to_all of 16 x 8 here, but reduce_scatter of 16 x 8 elsewhere");
  plan = over_nodes();
  for (Region* region : {&collective(plan, 1, 0).from, &collective(plan, 1, 0).to}) {
    region->buffer = static_cast<int>(plan.buffers.size());
    region->cols = 4;
    plan.buffers.push_back({"narrow", BufferRole::workspace, Layout::row_major, Type::fp32, 32, 4, 1});
  }
  expect_fault(plan, Fault::malformed, "is reduce_scatter of 16 x 4 here, but reduce_scatter of 16 x 8 elsewhere");
  plan = over_nodes();
  plan.ranks[3].queues[1].tasks.pop_back();
  expect_fault(plan, Fault::malformed, "rank 3 does not take part in collective");
}

TEST(Checker, FollowsDataThroughCollectivesOfSomeRanks) {
  // Sums of the own node once more instead of the other node's.
  Plan plan = over_nodes();
  const int across[] = {collective(plan, 0, 2).group, collective(plan, 1, 2).group};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    collective(plan, rank, 2).group = across[rank / 2];
    collective(plan, rank, 2).ranks = collective(plan, rank, 0).ranks;
  }
  expect_fault(plan, Fault::coverage, "which belongs at row");
  // The rows of another node's ranks.
  plan = over_nodes();
  for (std::size_t rank = 0; rank < 2; ++rank)
    std::swap(collective(plan, rank, 0).from.row, collective(plan, rank, 1).from.row);
  expect_fault(plan, Fault::coverage, "which belongs at row");
  // Across before inside on one rank, and on two that then wait for each other by way of the others.
  plan = over_nodes();
  const auto turn = [&](std::size_t rank) {
    auto& tasks = plan.ranks[rank].queues[1].tasks;
    std::swap(tasks[1].work, tasks[2].work);
    std::swap(tasks[0].work, tasks[1].work);
  };
  turn(0);
  expect_fault(plan, Fault::race, "before rank 0 queue 1 task 1 (collective) has written it");
  turn(3);
  expect_fault(plan, Fault::deadlock, "some rank never reaches this collective");
}

// A tiny write makes the grid that others are found in fine; each of these covers all of it, which took gigabytes.
TEST(Checker, ManyWritesOverAllOfABuffer) {
  Knobs whole;
  whole.tile_m = whole.tile_n = 4096;
  Plan plan = make_plan({Operator::gemm_all_to_all, 4096, 4096, 64, 2, Type::bf16}, Strategy::sequential, whole);
  std::vector<Task>& tiles = compute(plan, 0);
  ASSERT_EQ(tiles.size(), 1u);
  const Task all = tiles.front();
  auto& tiny = std::get<Product>(tiles.front().work);
  tiny.a.rows = tiny.b.cols = tiny.to.rows = tiny.to.cols = 1;
  tiles.resize(20000, all);
  plan.ranks[0].queues[1].tasks[0].waits[0].count = 20000;
  expect_fault(plan, Fault::coverage,
               "rank 0 queue 0 task 1 (product): writes rows 0+4096 cols 0+4096 of partial on rank 0, which rank 0 "
               "queue 0 task 0 (product) writes too");
}

// Each sum would be a copy of the one before: a file of a few MB took as many GB.
TEST(Checker, SumsOfVeryManyStretchesAreNotFollowed) {
  constexpr int count = 1100;
  Plan plan = make_plan({Operator::gemm_all_reduce, 1, 1, 2 * count, 1, Type::fp32}, Strategy::fused, {});
  const int sums = static_cast<int>(plan.buffers.size());
  plan.buffers.push_back({"sums", BufferRole::workspace, Layout::row_major, Type::fp32, count, 1, 2});
  std::vector<Task>& tasks = compute(plan, 0);
  tasks.clear();
  plan.ranks[0].signals = count;
  for (int i = 0; i < count; ++i) {
    Tile tile{{0, 0, 0, 2 * i, 1, 1}, {0, 1, 2 * i, 0, 1, 1}, {}, 0, {{{0, sums, i, 0, 1, 1}}}};
    Task task{tile, {}, {{0, i}}};
    if (i > 0) {
      std::get<Tile>(task.work).adds.push_back({0, sums, i - 1, 0, 1, 1});
      task.waits.push_back({i - 1});
    }
    tasks.push_back(std::move(task));
  }
  expect_fault(plan, Fault::coverage,
               "task 1024 (tile): adds rows 1023+1 cols 0+1 of sums on rank 0: a sum over more "
               "than 1024 separate stretches of K is not followed");
}

// Seconds of this process: what others do on the machine does not count.
double seconds_of_work() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Checker, TimeIsLinearInTasks) {
  Knobs fused, copied;
  fused.transport = Transport::store;
  for (const auto& [strategy, knobs] : {std::pair{Strategy::fused, fused}, std::pair{Strategy::fused, copied}}) {
    std::vector<Plan> plans;
    for (const int m : {8192, 16384})
      plans.push_back(make_plan({Operator::gemm_reduce_scatter, m, 28672, 8192, 4, Type::bf16}, strategy, knobs));
    const auto tasks = static_cast<double>(count_tasks(plans[0]));
    ASSERT_GE(tasks, 50000);
    ASSERT_NEAR(static_cast<double>(count_tasks(plans[1])) / tasks, 2, 0.1);
    // In turn, so that both meet the same machine; of the first pair memory is new.
    std::vector<double> ratios;
    for (int i = 0; i < 6; ++i) {
      double seconds[2];
      for (int which : {0, 1}) {
        const double begin = seconds_of_work();
        const auto finding = check(plans[static_cast<std::size_t>(which)]);
        seconds[which] = seconds_of_work() - begin;
        ASSERT_FALSE(finding.has_value()) << finding->message;
      }
      if (i > 0) ratios.push_back(seconds[1] / seconds[0]);
    }
    std::sort(ratios.begin(), ratios.end());
    EXPECT_LT(ratios[2], 3) << name_of(strategy) << ": twice the tasks; in proportion to their square it would be 4";
  }
}

}  // namespace
}  // namespace imbrex
