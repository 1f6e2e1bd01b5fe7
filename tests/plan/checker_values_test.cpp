// The checker refuses what multiplies, adds or stores something else than the place where it goes says.
#include <gtest/gtest.h>

#include "imbrex/plan.hpp"
#include "plan/expect_fault.hpp"
#include "plan/small_plans.hpp"

namespace imbrex {
namespace {

using test::compute, test::expect_fault;

constexpr int buffer_a = 0, buffer_b = 1, buffer_out = 2;

Plan plan_of(Operator op, Transport transport, Reducer reducer = Reducer::tile) {
  return make_plan({op, 16, 16, 8, 2, Type::fp32}, Strategy::fused, test::small_tiles(transport, reducer));
}

// All of these are 8 x 8, from row 0, column 0 and k = 0 on, as what they stand for.
TEST(Checker, TellsOperandsAndProductsApart) {
  const auto gather = [] { return plan_of(Operator::all_gather_gemm, Transport::push); };
  Plan plan = gather();
  std::get<Tile>(compute(plan, 0).at(0).work).a.buffer = buffer_b;
  expect_fault(plan, Fault::coverage, "task 0 (tile): multiplies something else than a part of A by a part of B");
  plan = gather();
  std::get<Tile>(compute(plan, 0).at(0).work).b.buffer = buffer_a;
  expect_fault(plan, Fault::coverage, "task 0 (tile): multiplies something else than a part of A by a part of B");
  for (const int operand : {buffer_a, buffer_b}) {
    plan = gather();
    compute(plan, 0).at(0).work = Transfer{{0, operand, 0, 0, 8, 8}, {0, buffer_out, 0, 0, 8, 8}};
    expect_fault(plan, Fault::coverage,
                 "task 0 (transfer): writes rows 0+8 cols 0+8 of out on rank 0 with what belongs "
                 "elsewhere");
    plan = gather();
    compute(plan, 0).at(0).work = Reduction{{{0, operand, 0, 0, 8, 8}}, {{0, buffer_out, 0, 0, 8, 8}}};
    expect_fault(plan, Fault::coverage, "task 0 (reduction): adds rows 0+8 cols 0+8 of");
    expect_fault(plan, Fault::coverage, "on rank 0, which holds no sum");
  }
}

// A slot has as many elements for a tile of 4 x 16 as for one of 8 x 8.
TEST(Checker, NamesSlotsOfTilesOfAnotherShape) {
  Plan plan = plan_of(Operator::gemm_reduce_scatter, Transport::store);
  plan.ranks[1].queues[0].tile = {8, 16};
  Tile& sent = std::get<Tile>(compute(plan, 1).at(0).work);
  sent.a.rows = 4;
  sent.b.col = 0;
  sent.b.cols = 16;
  expect_fault(plan, Fault::coverage, "which holds a tile of 4 x 16");
}

}  // namespace
}  // namespace imbrex
