// What the operators put on the wire, counted by hand.
#include <gtest/gtest.h>

#include "imbrex/problem.hpp"
#include "problem/descriptor.hpp"

namespace imbrex {
namespace {

double wire_bytes(const Problem& problem) { return problem::descriptor_of(problem.op).wire_bytes(problem); }

// 16 rows, 24 columns, K 40, on four ranks.
TEST(WireBytes, OfProducts) {
  const auto bytes = [](Operator op, Type type) { return wire_bytes({op, 16, 24, 40, 4, type}); };
  // A rank's 4 rows of A, to each of three others.
  EXPECT_EQ(bytes(Operator::all_gather_gemm, Type::bf16), 3 * 4 * 40 * 2);
  EXPECT_EQ(bytes(Operator::all_gather_gemm, Type::e4m3), 3 * 4 * 40 * 1);
  // A part of its product, to each of three owners of 4 rows; products of 8-bit floats are bf16.
  EXPECT_EQ(bytes(Operator::gemm_reduce_scatter, Type::fp32), 3 * 4 * 24 * 4);
  EXPECT_EQ(bytes(Operator::gemm_reduce_scatter, Type::e4m3), 3 * 4 * 24 * 2);
  EXPECT_EQ(bytes(Operator::gemm_all_to_all, Type::fp16), 3 * 4 * 24 * 2);
  // A part of its product to each owner, and the sums of its own rows back to the three.
  EXPECT_EQ(bytes(Operator::gemm_all_reduce, Type::bf16), 2 * 3 * 4 * 24 * 2);
}

TEST(WireBytes, OfOneRankAreNone) {
  for (const Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    EXPECT_EQ(wire_bytes({op, 16, 24, 40, 1, Type::bf16}), 0);
  Problem problem{embedding_all_to_all, 12, 0, 0, 1, Type::bf16};
  problem.tables.shards = {{0, 100, 16, 0}};
  EXPECT_EQ(wire_bytes(problem), 0);
}

// A batch of 12 rows on three ranks: an owner keeps the 4 rows of its own part of the batch, and sends 8.
TEST(WireBytes, OfTablesAreThoseOfTheRankThatSendsMost) {
  Problem problem{embedding_all_to_all, 12, 0, 0, 3, Type::bf16};
  problem.tables.shards = {{0, 100, 16, 0}, {2, 100, 8, 16}, {2, 1000, 12, 24}, {1, 10, 4, 36}};
  EXPECT_EQ(wire_bytes(problem), 8 * (8 + 12) * 2);
  problem.type = Type::fp32;
  EXPECT_EQ(wire_bytes(problem), 8 * (8 + 12) * 4);
  problem.tables.shards[0].dim = 24;
  EXPECT_EQ(wire_bytes(problem), 8 * 24 * 4);
}

}  // namespace
}  // namespace imbrex
