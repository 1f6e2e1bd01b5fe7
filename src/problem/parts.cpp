#include "problem/parts.hpp"

#include "base/check.hpp"

namespace imbrex::problem {

Parts parts_of(Operator op, int ranks) {
  expect_ranks(ranks);
  const OperatorDescriptor& descriptor = descriptor_of(op);
  IMBREX_EXPECTS(descriptor.multiplies, "operator {}: it multiplies no matrices", descriptor.name);
  // Each size is the ranks here, so that an extent is 1 where the ranks split it and the ranks where they do not.
  Problem problem;
  problem.op = op;
  problem.m = problem.n = problem.k = problem.ranks = ranks;
  const RankShapes shapes = descriptor.shapes(problem);
  const std::int64_t in = shapes.a.rows, out = shapes.out.rows;
  return {ranks / in, ranks / shapes.b.cols, ranks / shapes.depth, out > in ? out / in : 1, in > out ? in / out : 1};
}

}  // namespace imbrex::problem
