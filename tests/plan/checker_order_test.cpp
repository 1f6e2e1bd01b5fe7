// The checker refuses what is ordered in some schedules only: no executor here can show that it does harm, or no
// strategy's plan comes near.
#include <gtest/gtest.h>

#include "imbrex/plan.hpp"
#include "plan/expect_fault.hpp"

namespace imbrex {
namespace {

using test::expect_fault;

Plan plan_of(Operator op, Strategy strategy, Transport transport) {
  Knobs knobs;
  knobs.tile_m = knobs.tile_n = 8;
  knobs.cluster = 1;
  knobs.transport = transport;
  return make_plan({op, 16, 16, 8, 2, Type::fp32}, strategy, knobs);
}

std::vector<Task>& tasks_of(Plan& plan, std::size_t rank, std::size_t queue) {
  return plan.ranks[rank].queues.at(queue).tasks;
}

// A rank's part reads once that rank comes to it, whatever the other ranks' parts have waited for. The CPU executor
// reads after all have come.
TEST(Checker, OthersWaitsDoNotOrderWhatACollectiveReads) {
  Plan plan = plan_of(Operator::gemm_reduce_scatter, Strategy::sequential, Transport::store);
  tasks_of(plan, 0, 0).at(0).posts = {{1, 0}};
  tasks_of(plan, 1, 1).at(0).waits.at(0).count = 2;
  Task& part = tasks_of(plan, 0, 1).at(0);
  part.waits.clear();
  expect_fault(plan, Fault::race,
               "rank 0 queue 1 task 0 (collective): may read rows 0+8 cols 0+16 of partial on rank 0 before rank 0 "
               "queue 0 task 0 (product) has written it");
  tasks_of(plan, 0, 0).at(0).posts.push_back({0, 0});
  part.waits = {{0}};
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
}

// A wait for one post of an in-order queue is over before the second.
TEST(Checker, AWaitForOnePostDoesNotHoldForTheNext) {
  Plan plan = plan_of(Operator::all_gather_gemm, Strategy::fused, Transport::pull);
  auto& copies = tasks_of(plan, 0, 1);
  const Post exit = copies.at(1).posts.at(1);
  Wait& leave = tasks_of(plan, 1, 1).back().waits.at(0);
  ASSERT_EQ(exit, (Post{1, leave.signal}));
  copies.insert(copies.begin() + 1, {Transfer{}, {}, {exit}});
  expect_fault(plan, Fault::race,
               "rank 0 queue 1 task 2 (transfer): reads rows 0+8 cols 0+8 of a on rank 1, and that rank may leave the "
               "epoch before it is done");
  leave.count = 2;
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
}

// Tasks of a compute queue end in any order: a wait for one of two posts may be over before either.
TEST(Checker, AWaitForOneOfTwoPostsHoldsForNeither) {
  Plan plan = plan_of(Operator::all_gather_gemm, Strategy::fused, Transport::pull);
  auto& tasks = tasks_of(plan, 0, 0);
  const Post exit = tasks_of(plan, 0, 1).at(1).posts.at(1);
  Task& pull = tasks_of(plan, 0, 1).at(1);
  tasks.insert(tasks.begin(), {pull.work, pull.waits, pull.posts});
  pull = {Transfer{}, {}, {}};
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  tasks.push_back({Transfer{}, {}, {exit}});
  expect_fault(plan, Fault::race, "of a on rank 1, and that rank may leave the epoch before it is done");
  tasks_of(plan, 1, 1).back().waits.at(0).count = 2;
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
}

// Nor does it order what comes with the second.
TEST(Checker, AWaitForOnePostDoesNotOrderTheNext) {
  Plan plan = plan_of(Operator::all_gather_gemm, Strategy::fused, Transport::push);
  auto& copies = tasks_of(plan, 0, 1);
  const Post arrival = copies.at(0).posts.at(0);
  Task& tile = tasks_of(plan, 1, 0).at(1);
  ASSERT_EQ(tile.waits, (std::vector<Wait>{{arrival.signal}}));
  copies.insert(copies.begin(), {Transfer{}, {}, {arrival}});
  const char* fault = "before rank 0 queue 1 task 1 (transfer) has written it";
  expect_fault(plan, Fault::race, fault);
  tile.waits[0].count = 2;
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  // By way of a queue that passes both on.
  const int passed_on = plan.ranks[1].signals++;
  plan.ranks[1].queues.push_back({Engine::copy});
  tasks_of(plan, 1, 2) = {{Transfer{}, {}, {{1, passed_on}}}, {Transfer{}, {{arrival.signal, 2}}, {{1, passed_on}}}};
  Wait& own = tasks_of(plan, 1, 0).at(1).waits[0];
  own.signal = passed_on;
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  own.count = 1;
  expect_fault(plan, Fault::race, fault);
}

// Two queues of one rank, each in order, are not in order together, though the tile comes late for another reason.
TEST(Checker, TwoQueuesOfOneRankPostInAnyOrder) {
  Plan plan = plan_of(Operator::all_gather_gemm, Strategy::fused, Transport::push);
  const Post arrival = tasks_of(plan, 0, 1).at(0).posts.at(0);
  const int late = plan.ranks[1].signals++;
  auto& tasks = tasks_of(plan, 0, 0);
  tasks.insert(tasks.begin(), {Transfer{}, {}, {{1, late}}});
  plan.ranks[0].queues.push_back({Engine::copy});
  tasks_of(plan, 0, 2).push_back({Transfer{}, {}, {arrival}});
  Task& tile = tasks_of(plan, 1, 0).at(1);
  tile.waits.push_back({late});
  expect_fault(plan, Fault::race, "before rank 0 queue 1 task 0 (transfer) has written it");
  tile.waits.at(0).count = 2;
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
}

// What a tile loads before a wait's columns, it loads before that wait.
TEST(Checker, AWaitForLaterColumnsDoesNotShowThatARankHasEntered) {
  Plan plan = plan_of(Operator::all_gather_gemm, Strategy::fused, Transport::pull);
  // The tile multiplies the other rank's shard where it lies, in place of the copy that brought it.
  auto& copies = tasks_of(plan, 0, 1);
  const Task pull = copies.at(1);
  copies.erase(copies.begin() + 1);
  Task& task = tasks_of(plan, 0, 0).at(1);
  std::get<Tile>(task.work).a = std::get<Transfer>(pull.work).from;
  task.waits = pull.waits;
  task.posts = {pull.posts.at(1)};
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  task.waits.at(0).k_begin = 4;
  expect_fault(plan, Fault::race,
               "rank 0 queue 0 task 1 (tile): reads rows 0+8 cols 0+8 of a on rank 1 before that rank is known to have "
               "entered the epoch");
}

// A tile of rank 0 writes to rank 1's output, in place of rank 1's own tile: the output is its caller's until rank 1
// has entered, and again when it has left.
TEST(Checker, CallersMemoryIsWrittenWithinItsRanksEpoch) {
  Plan plan = plan_of(Operator::all_gather_gemm, Strategy::fused, Transport::push);
  auto& theirs = tasks_of(plan, 1, 0);
  const Region out = std::get<Tile>(theirs.back().work).stores.at(0).to;
  theirs.back().work = Transfer{};
  Task& early = tasks_of(plan, 0, 0).at(0);
  Task& late = tasks_of(plan, 0, 0).at(1);
  ASSERT_TRUE(early.waits.empty() && !late.waits.empty());
  const auto write = [&](Task& task) { std::get<Tile>(task.work).stores.push_back({out, 0, 0}); };
  write(early);
  expect_fault(plan, Fault::race,
               "rank 0 queue 0 task 0 (tile): writes rows 0+8 cols 0+8 of out on rank 1 before that rank is known to "
               "have entered the epoch");
  std::get<Tile>(early.work).stores.pop_back();
  write(late);
  expect_fault(plan, Fault::race,
               "rank 0 queue 0 task 1 (tile): writes rows 0+8 cols 0+8 of out on rank 1, and that rank may leave the "
               "epoch before it is done");
  // The rank stays until the tile has ended.
  const int written = plan.ranks[1].signals++;
  late.posts.push_back({1, written});
  theirs.push_back({Transfer{}, {{written}}, {}});
  expect_fault(plan, Fault::coverage, "with what belongs elsewhere");
}

// What one search found on its way says nothing of the next task.
TEST(Checker, OneReadsOrderIsNotAnothers) {
  Plan plan = make_plan({Operator::gemm_all_reduce, 8, 8, 8, 1, Type::fp32}, Strategy::fused, {});
  const int first = static_cast<int>(plan.buffers.size());
  for (const char* name : {"written", "read", "read_early"})
    plan.buffers.push_back({name, BufferRole::workspace, Layout::row_major, Type::fp32, 8, 8, 2});
  const auto place = [&](int buffer) { return Region{0, buffer, 0, 0, 8, 8}; };
  plan.ranks[0].signals = 2;
  auto& tasks = tasks_of(plan, 0, 0);
  ASSERT_EQ(tasks.size(), 1u);
  tasks.push_back({Transfer{place(0), place(first)}, {}, {{0, 0}}});
  // Both come before the read, each by itself.
  for (int i = 0; i < 2; ++i) tasks.push_back({Transfer{}, {{0}}, {{0, 1}}});
  tasks.push_back({Transfer{place(first), place(first + 1)}, {{1, 2}}, {}});
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  tasks.push_back({Transfer{place(first), place(first + 2)}, {}, {}});
  expect_fault(
      plan, Fault::race,
      "rank 0 queue 0 task 5 (transfer): may read rows 0+8 cols 0+8 of written on rank 0 before rank 0 queue 0 "
      "task 1 (transfer) has written it");
}

// A collective has ended only after every rank has come to it: what a rank did before is there behind all parts.
TEST(Checker, ACollectiveOrdersWhatAllRanksDidBefore) {
  Plan plan = plan_of(Operator::all_gather_gemm, Strategy::sequential, Transport::store);
  const int pushed = static_cast<int>(plan.buffers.size());
  for (const char* name : {"pushed", "seen"})
    plan.buffers.push_back({name, BufferRole::workspace, Layout::row_major, Type::fp32, 8, 8, 2});
  const int sent = plan.ranks[1].signals++;
  const Transfer push{{1, 0, 0, 0, 8, 8}, {0, pushed, 0, 0, 8, 8}};
  plan.ranks[1].queues.push_back({Engine::copy, 0, {{push, {}, {{1, sent}}}}});
  Task& part = tasks_of(plan, 1, 1).at(0);
  part.waits.push_back({sent});
  const Post gathered = tasks_of(plan, 0, 1).at(0).posts.at(0);
  plan.ranks[0].queues.push_back(
      {Engine::copy, 0, {{Transfer{push.to, {0, pushed + 1, 0, 0, 8, 8}}, {{gathered.signal}}, {}}}});
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  part.waits.pop_back();
  expect_fault(plan, Fault::race,
               "may read rows 0+8 cols 0+8 of pushed on rank 0 before rank 1 queue 2 task 0 (transfer)");
}

}  // namespace
}  // namespace imbrex
