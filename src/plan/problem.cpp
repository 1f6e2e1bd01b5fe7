#include "plan/problem.hpp"

namespace imbrex {

Problem plan::without_gaps(Problem problem) {
  problem.lda = problem.ldb = problem.ldo = 0;
  problem.more_ldb = problem.more_ldo = {};
  return problem;
}

double plan::shortening(const CodecPair& codec, Type type) {
  return (wire_bits(codec.reduce_scatter) + wire_bits(codec.all_gather)) / 2 / (8 * static_cast<double>(size_of(type)));
}

bool plan::owns_columns(const Problem& problem, const Knobs& knobs) {
  return problem.op == Operator::gemm_all_reduce && !knobs.one_shot && problem.m < problem.ranks * knobs.tile_m;
}

plan::ProductSize plan::product_of_rank(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  // Where each rank's A has a scale, in e4m3, ranks' rows are products of their own. Several B: the first one's.
  const bool at_once = problem.op == Operator::all_gather_gemm && problem.scales != Scales::tensor;
  return {at_once ? problem.m : shapes.a.rows, shapes.b.cols, shapes.a.cols, problem.type, problem.b_layout};
}

}  // namespace imbrex
