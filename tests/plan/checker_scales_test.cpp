// The checker refuses scales that belong to other rows, or to another stretch of K, than what they multiply.
#include <gtest/gtest.h>

#include <stdexcept>

#include "imbrex/plan.hpp"
#include "plan/expect_fault.hpp"
#include "plan/small_plans.hpp"

namespace imbrex {
namespace {

using test::compute;
using test::expect_fault;

constexpr int a_scale_buffer = 3;  // after a, b and out

Knobs scales_knobs(Transport transport) {
  Knobs knobs;
  knobs.tile_m = knobs.tile_n = 8;
  knobs.cluster = 1;  // without pairs: each of them would be at fault where tasks come or change
  knobs.transport = transport;
  return knobs;
}

Plan scaled_all_gather(Scales scales, Transport transport = Transport::push) {
  const Knobs knobs = scales_knobs(transport);
  return make_plan({Operator::all_gather_gemm, 32, 16, 8, 2, Type::e4m3, false, scales}, Strategy::fused, knobs);
}

// The first tile of rank 0 that reads gathered rows.
Tile& gathering_tile(Plan& plan) {
  for (Task& task : compute(plan, 0))
    if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && tile->a.buffer != 0) return *tile;
  throw std::logic_error("no tile reads gathered rows");
}

TEST(Checker, FollowsScales) {
  for (const Scales scales : {Scales::none, Scales::tensor, Scales::row})
    for (const Transport transport : {Transport::store, Transport::push, Transport::pull}) {
      const auto finding = check(scaled_all_gather(scales, transport));
      EXPECT_FALSE(finding.has_value()) << finding->message;
    }
  // A tile that waits for its rows only.
  Plan plan = scaled_all_gather(Scales::row);
  for (Task& task : compute(plan, 0))
    if (task.waits.size() > 1) task.waits.erase(task.waits.begin());
  expect_fault(plan, Fault::race, "gathered_scales on rank 0 before rank 1 queue 0 task 0 (transfer) has written it");
  // Workers that store no scales, though they post.
  plan = scaled_all_gather(Scales::row, Transport::store);
  std::get<Transfer>(compute(plan, 1)[0].work) = {};
  expect_fault(plan, Fault::coverage, "gathered_scales on rank 0, of which 8 elements are never written");
  // Other rows' scales, and another shard's.
  plan = scaled_all_gather(Scales::row);
  gathering_tile(plan).a_scale.row += 8;
  expect_fault(plan, Fault::coverage, "of A by rows");
  plan = scaled_all_gather(Scales::tensor);
  gathering_tile(plan).a_scale = {0, a_scale_buffer, 0, 0, 1, 1};
  expect_fault(plan, Fault::coverage, "which belongs to rows 0+16");
  // None, the wrong number, and what holds no scales.
  plan = scaled_all_gather(Scales::tensor);
  gathering_tile(plan).a_scale = {};
  expect_fault(plan, Fault::malformed, "the scales of A is empty");
  plan = scaled_all_gather(Scales::row);
  gathering_tile(plan).a_scale.rows = 4;
  expect_fault(plan, Fault::malformed, "the scales of A are 4 x 1: with scales row, they must be 8 x 1");
  // A column of a wider buffer, whose scales executors would look for one after another.
  for (const Scales scales : {Scales::tensor, Scales::row}) {
    plan = scaled_all_gather(scales);
    plan.buffers.at(static_cast<std::size_t>(gathering_tile(plan).a_scale.buffer)).cols = 16;
    expect_fault(plan, Fault::malformed, "in gathered_scales, which has 16 columns: they must lie one after another");
  }
  plan = scaled_all_gather(Scales::none);
  gathering_tile(plan).a_scale = {0, 0, 0, 0, 1, 1};
  expect_fault(plan, Fault::malformed, "in a problem with scales none");
  plan = scaled_all_gather(Scales::tensor);
  gathering_tile(plan).a_scale = {0, a_scale_buffer + 1, 0, 0, 1, 1};
  expect_fault(plan, Fault::coverage, "which holds no scales of A");
  plan = scaled_all_gather(Scales::tensor);
  plan.buffers[1].layout = Layout::row_major;
  expect_fault(plan, Fault::malformed, "must be the caller's 8 x 8 e4m3, column_major");
}

// A rank's scale goes to the other one, whose first tile multiplies by it: its rows are all ranks', and its K is not.
TEST(Checker, FollowsScalesAlongK) {
  for (const Scales scales : {Scales::tensor, Scales::row})
    for (const int owner : {0, 1}) {
      Plan plan = make_plan({Operator::gemm_reduce_scatter, 16, 16, 32, 2, Type::e4m3, false, scales}, Strategy::fused,
                            scales_knobs(Transport::store));
      EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
      const int user = 1 - owner, sent = static_cast<int>(plan.buffers.size());
      plan.buffers.push_back(plan.buffers[a_scale_buffer]);
      plan.buffers.back().name = "sent";
      plan.buffers.back().role = BufferRole::workspace;
      plan.buffers.back().copies = 2;
      const std::int64_t count = plan.buffers.back().rows;
      RankPlan& to = plan.ranks[static_cast<std::size_t>(user)];
      const int arrived = to.signals++;
      auto& tasks = compute(plan, static_cast<std::size_t>(owner));
      tasks.insert(
          tasks.begin(),
          {Transfer{{owner, a_scale_buffer, 0, 0, count, 1}, {user, sent, 0, 0, count, 1}}, {}, {{user, arrived}}});
      for (Task& task : compute(plan, static_cast<std::size_t>(user)))
        if (auto* tile = std::get_if<Tile>(&task.work)) {
          tile->a_scale.rank = user;
          tile->a_scale.buffer = sent;
          task.waits.push_back({arrived});
          break;
        }
      expect_fault(plan, Fault::coverage,
                   owner == 1 ? "scales products from k = 0 by rows" : "scales products from k = 16 by rows");
      expect_fault(plan, Fault::coverage, owner == 1 ? "which belongs to k 16..31" : "which belongs to k 0..15");
    }
}

}  // namespace
}  // namespace imbrex
