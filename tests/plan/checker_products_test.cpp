// The checker refuses what is wrong with products of libraries, and with what collectives send.
#include <gtest/gtest.h>

#include "imbrex/error.hpp"
#include "imbrex/plan.hpp"
#include "plan/expect_fault.hpp"

namespace imbrex {
namespace {

using test::expect_fault;

Plan library_plan(const Problem& problem, Strategy strategy, Knobs knobs = {}) {
  knobs.tile_m = knobs.tile_n = 8;
  return make_plan(problem, strategy, knobs);
}
Product& product(Plan& plan, std::size_t rank, std::size_t task = 0) {
  return std::get<Product>(plan.ranks[rank].queues[0].tasks.at(task).work);
}

TEST(Checker, NamesWhatIsMalformedInProducts) {
  const Problem problem{Operator::gemm_reduce_scatter, 32, 16, 16, 2, Type::bf16};
  const auto chunked = [&] { return library_plan(problem, Strategy::decomposed); };
  const auto expect = [&](auto&& spoil, const char* text, Fault fault = Fault::malformed) {
    Plan plan = chunked();
    ASSERT_FALSE(check(plan).has_value());
    spoil(plan, product(plan, 0));
    expect_fault(plan, fault, text);
  };
  Plan batches = chunked();
  EXPECT_EQ(product(batches, 0).batch, 2);
  expect([](Plan&, Product& p) { p.batch = 0; }, "a batch of 0: it must be from 1 to 2^16");
  expect([](Plan&, Product& p) { p.batch = 3; },
         "operand A of the batch, rows 0+8 and 2 more, 16 rows apart, leaves buffer a of 32 rows", Fault::bounds);
  expect([](Plan&, Product& p) { p.to_step = 64; },
         "the result of the batch, rows 0+8 and 1 more, 64 rows apart, leaves buffer partial of 32 rows",
         Fault::bounds);
  expect([](Plan&, Product& p) { p.a_step = std::int64_t{1} << 62; }, "operand A of the batch", Fault::bounds);
  expect([](Plan&, Product& p) { p.to_step = p.to.rows - 1; }, "they would overlap");
  expect([](Plan&, Product& p) { p.a_step = 0; }, "A steps by 0 rows in a batch");
  expect([](Plan&, Product& p) { p.batch = 1; }, "in a batch of one: they must be 0");
  expect([](Plan&, Product& p) { p.a.rank = 1; }, "operand A is on rank 1: a product's regions are its own rank's");
  expect([](Plan&, Product& p) { p.to.rank = 1; }, "the result is on rank 1");
  expect([](Plan&, Product& p) { p.to.rows = 4; }, "the result is 4 x 16, the product 8 x 16");
  expect([](Plan&, Product& p) { p.bias = {0, 0, 0, 0, 1, 8}; }, "the bias is in buffer 0");
  expect([](Plan&, Product& p) { p.algorithm.parts = 0; }, "its split-K 1 to 2^16");
  expect([](Plan& plan, Product&) { plan.ranks[0].queues[0].tile = {}; },
         "a product on a queue whose blocks are 0 x 0");
  expect([](Plan& plan, Product&) { plan.ranks[0].queues[0].engine = Engine::compute; },
         "products and collectives run on library queues");
  expect([](Plan& plan, Product&) { plan.ranks[0].queues[0].cluster = ClusterMode::single; },
         "cluster single is for compute queues");
  expect([](Plan& plan, Product&) { plan.ranks[0].queues[1].kept_free = -1; }, "keeps -1 SMs free");
}

TEST(Checker, FollowsDataThroughProducts) {
  const Problem problem{Operator::all_gather_gemm, 32, 16, 16, 2, Type::bf16};
  Plan plan = library_plan(problem, Strategy::sequential);
  EXPECT_FALSE(check(plan).has_value());
  // Before the gather.
  plan.ranks[0].queues[0].tasks[0].waits.clear();
  expect_fault(plan, Fault::race, "before rank 0 queue 1 task 0 (collective) has written it");
  // Rows that lie elsewhere.
  plan = library_plan(problem, Strategy::sequential);
  std::swap(product(plan, 0).a, product(plan, 1).a);
  product(plan, 0).a.rank = 0, product(plan, 1).a.rank = 1;
  product(plan, 0).to.row += 1;
  product(plan, 0).to.rows -= 1;
  product(plan, 0).a.rows -= 1;
  expect_fault(plan, Fault::coverage, "with what belongs elsewhere");
  // One product of a batch steps over others' rows.
  plan = library_plan({Operator::gemm_all_to_all, 32, 16, 16, 2, Type::bf16}, Strategy::decomposed);
  product(plan, 0).a_step -= 1;
  expect_fault(plan, Fault::coverage, "");
  // A bias twice, and none.
  Problem biased = problem;
  biased.bias = true;
  plan = library_plan(biased, Strategy::sequential);
  EXPECT_FALSE(check(plan).has_value());
  product(plan, 0).bias = {};
  expect_fault(plan, Fault::coverage, "without the bias");
}

// A sum of what all ranks have written there: what only some have would be lost.
TEST(Checker, NamesWhatOnlySomeRanksWriteOfASum) {
  const auto narrow = [](std::size_t rank) {
    Plan plan = library_plan({Operator::gemm_reduce_scatter, 16, 16, 8, 2, Type::fp32}, Strategy::sequential);
    EXPECT_FALSE(check(plan).has_value());
    product(plan, rank).b.cols = product(plan, rank).to.cols = 8;
    return plan;
  };
  expect_fault(
      narrow(0), Fault::coverage,
      "rank 1 queue 1 task 0 (collective): adds rows 0+8 cols 0+16 of partial on rank 1, of which 128 elements "
      "are written, to sums of 64 elements");
  expect_fault(
      narrow(1), Fault::coverage,
      "rank 1 queue 1 task 0 (collective): reads rows 0+8 cols 0+16 of partial on rank 1, of which 64 elements "
      "are never written");
}

TEST(Checker, NamesCodecsThatDoNotSuit) {
  Knobs knobs;
  knobs.codec = parse_codec_pair("int8");
  const auto plan_of = [&](Operator op) {
    return library_plan({op, 32, 16, 16, 2, Type::bf16}, Strategy::sequential, knobs);
  };
  const auto part = [](Plan& plan, std::size_t rank) -> Collective& {
    return std::get<Collective>(plan.ranks[rank].queues[1].tasks.at(0).work);
  };
  Plan plan = plan_of(Operator::gemm_all_reduce);
  EXPECT_FALSE(check(plan).has_value());
  part(plan, 1).codec = parse_codec_pair("int4");
  expect_fault(plan, Fault::malformed, "runs by imbrex through codec int4 here, but by imbrex through codec int8");
  plan = plan_of(Operator::gemm_all_reduce);
  part(plan, 0).backend = Backend::nccl;
  expect_fault(plan, Fault::malformed, "only collectives of backend imbrex");
  plan = plan_of(Operator::gemm_all_reduce);
  part(plan, 0).codec->all_gather.group = 7;
  expect_fault(plan, Fault::malformed, "codec: ");
  plan = plan_of(Operator::gemm_reduce_scatter);
  EXPECT_FALSE(check(plan).has_value());
  part(plan, 0).codec = parse_codec_pair("int4+int8");
  expect_fault(plan, Fault::malformed, "it has one phase, so it takes one codec");
  for (const char* pair : {"int4+int8"}) {
    knobs.codec = parse_codec_pair(pair);
    EXPECT_THROW(plan_of(Operator::gemm_reduce_scatter), Error);
    EXPECT_THROW(plan_of(Operator::all_gather_gemm), Error);
    EXPECT_THROW(make_plan({Operator::gemm_all_reduce, 32, 16, 16, 2, Type::bf16}, Strategy::fused, knobs), Error);
  }
}

}  // namespace
}  // namespace imbrex
