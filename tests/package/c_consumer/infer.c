/* What follows from the operands of a call, in C: no world is there yet. */
#include "infer.h"

#include "expect.h"

static imbrex_view matrix(int64_t rows, int64_t cols) {
  const imbrex_view view = {NULL, IMBREX_FP32, 2, {rows, cols}, {cols, 1}};
  return view;
}

void infer(void) {
  /* Three dimensions, of which the second is gathered; rows of b lie apart. */
  const imbrex_view a = {NULL, IMBREX_FP32, 3, {1, 8, 6}, {48, 6, 1}};
  const imbrex_view b = {NULL, IMBREX_FP32, 2, {6, 4}, {10, 1}};
  imbrex_operand given[] = {{"a", a}, {"b", b}, {"b1", matrix(6, 2)}};
  given[2].view.strides[0] = 7;
  imbrex_call call = {.size = sizeof call, .kind = IMBREX_ALL_GATHER_GEMM, .ranks = 4, .dim = 1, .gathered_a = 1};
  call.operands = given;
  call.count = 3;
  imbrex_gemm gemm = {.size = sizeof gemm};
  imbrex_results results = {.size = sizeof results};
  imbrex_operand operands[8];
  uint64_t count = 8;
  EXPECT_OK(imbrex_operator_infer(&call, &gemm, &results, operands, &count));
  EXPECT(gemm.m == 32 && gemm.n == 16 && gemm.k == 6 && gemm.more_n[0] == 8 && gemm.gathered_a == 1);
  EXPECT(gemm.lda == 0 && gemm.ldb == 10 && gemm.more_ldb[0] == 7 && gemm.any_m == 0);
  EXPECT(results.out.dims == 3 && results.out.extents[0] == 1 && results.out.extents[1] == 32 &&
         results.out.extents[2] == 4);
  EXPECT(results.more_out[0].extents[2] == 2 && results.more_out[1].dims == 0 && results.gathered.extents[2] == 6);
  const char* const names[] = {"a", "b", "out", "b1", "out1", "gathered"};
  EXPECT(count == 6);
  for (uint64_t i = 0; i < count; ++i) EXPECT(strcmp(operands[i].name, names[i]) == 0 && operands[i].view.dims == 2);

  call.kind = IMBREX_GEMM_REDUCE_SCATTER;
  call.ranks = 3;
  EXPECT_REFUSED(imbrex_operator_infer(&call, &gemm, &results, NULL, NULL),
                 "a is 1 x 8 x 6: its dimension 1 must divide by the 3 ranks");
  imbrex_operator_rules rules = {.size = sizeof rules};
  EXPECT_OK(imbrex_operator_rules_of(IMBREX_GEMM_REDUCE_SCATTER, IMBREX_E4M3, 3, &rules));
  EXPECT(strcmp(rules.name, "gemm_reduce_scatter") == 0 && rules.out_type == IMBREX_BF16);
  EXPECT(rules.sums && !rules.several_b && rules.rows_times == 1 && rules.rows_over == 3);
  EXPECT_REFUSED(imbrex_operator_rules_of(4, IMBREX_FP32, 3, &rules), "kind = 4: it must be from 0 to 3");
}
