// imbrex_operator_infer and imbrex_operator_rules_of.
#include <algorithm>
#include <array>
#include <cstddef>

#include "base/check.hpp"
#include "c/operator_options.hpp"
#include "imbrex/c/infer.h"
#include "ops/infer.hpp"
#include "problem/parts.hpp"

namespace imbrex::c {
namespace {

constexpr std::size_t first_call = 40, first_results = 4 * sizeof(imbrex_view) + 8, first_rules = 40;
// A caller that knew less of it could not make the operator that is told of.
constexpr std::size_t least_gemm = offsetof(imbrex_gemm, reserved) + sizeof(std::int32_t);
static_assert(sizeof(imbrex_call) == first_call && sizeof(imbrex_results) == first_results &&
              sizeof(imbrex_operator_rules) == first_rules);

// Names of operands are literals, so what C is given ends with a zero and lives for ever.
imbrex_operand operand_of(const Operand& operand) { return {operand.name.data(), view_of(operand.view)}; }

imbrex_gemm gemm_of(const GemmShape& shape) {
  return {.size = 0,
          .m = shape.m,
          .n = shape.n,
          .k = shape.k,
          .type = number_of(shape.type),
          .bias = shape.bias ? 1 : 0,
          .scales = static_cast<imbrex_scales>(shape.scales),
          .b_layout = static_cast<imbrex_layout>(shape.b_layout),
          .any_m = 0,
          .gathered_a = shape.gathered_a ? 1 : 0,
          .more_n = {shape.more_n[0], shape.more_n[1]},
          .lda = shape.lda,
          .ldb = shape.ldb,
          .ldo = shape.ldo,
          .more_ldb = {shape.more_ldb[0], shape.more_ldb[1]},
          .more_ldo = {shape.more_ldo[0], shape.more_ldo[1]},
          .packed = 0,
          .reserved = 0};
}

void write_operands(const ops::Inferred& inferred, imbrex_operand* operands, std::uint64_t* count) {
  expect_given(count, "count");
  IMBREX_EXPECTS(*count >= inferred.count, "count = {}: the call has {} operands", *count, inferred.count);
  *count = inferred.count;
  std::transform(inferred.operands.begin(), inferred.operands.begin() + static_cast<std::ptrdiff_t>(inferred.count),
                 operands, operand_of);
}

}  // namespace
}  // namespace imbrex::c

using namespace imbrex;
using imbrex::c::guarded;

imbrex_status imbrex_operator_rules_of(imbrex_operator_kind kind, imbrex_type type, int32_t ranks,
                                       imbrex_operator_rules* rules) noexcept {
  return guarded([&] {
    const Operator op = c::product_operator(kind);
    const problem::OperatorDescriptor& descriptor = problem::descriptor_of(op);
    const problem::Parts parts = problem::parts_of(op, ranks);
    c::write_structure(rules,
                       imbrex_operator_rules{.size = 0,
                                             .name = descriptor.name.c_str(),
                                             .out_type = c::number_of(output_type(c::type_of(type))),
                                             .sums = descriptor.sums ? 1 : 0,
                                             .several_b = descriptor.several_b ? 1 : 0,
                                             .rows_times = static_cast<int32_t>(parts.rows_times),
                                             .rows_over = static_cast<int32_t>(parts.rows_over),
                                             .reserved = 0},
                       c::first_rules, "imbrex_operator_rules");
  });
}

imbrex_status imbrex_operator_infer(const imbrex_call* call, imbrex_gemm* gemm, imbrex_results* results,
                                    imbrex_operand* operands, uint64_t* count) noexcept {
  return guarded([&] {
    const auto given = c::structure_of(call, c::first_call, "imbrex_call");
    const c::CallOperands list(given.operands, given.count);
    const ops::Inferred inferred = ops::infer({.op = c::product_operator(given.kind),
                                               .ranks = given.ranks,
                                               .dim = given.dim,
                                               .gathered_a = given.gathered_a != 0,
                                               .operands = list.list()});
    c::write_structure(gemm, c::gemm_of(inferred.shape), c::least_gemm, "imbrex_gemm");
    c::write_structure(results,
                       imbrex_results{.size = 0,
                                      .out = c::view_of(inferred.out[0]),
                                      .more_out = {c::view_of(inferred.out[1]), c::view_of(inferred.out[2])},
                                      .gathered = c::view_of(inferred.gathered)},
                       c::first_results, "imbrex_results");
    if (operands != nullptr) c::write_operands(inferred, operands, count);
  });
}
