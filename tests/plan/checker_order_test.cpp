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

}  // namespace
}  // namespace imbrex
