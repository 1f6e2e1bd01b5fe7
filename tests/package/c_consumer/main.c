/* Four processes multiply and sum through c.h, and are told what is wrong. Numbers are small integers, so that every
   sum is exact. Each rank says what it expected; the program fails if one rank does. */
#define _POSIX_C_SOURCE 200809L

#include <imbrex/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"
#include "infer.h"

enum { RANKS = 4, M = 64, N = 48, K = 128, PART = K / RANKS };

static float a_at(int row, int k) { return (float)((row * 3 + k * 5) % 7 - 3); }
static float b_at(int k, int col) { return (float)((k * 2 + col) % 5 - 2); }

static float product_at(int row, int col) {
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += a_at(row, k) * b_at(k, col);
  return sum;
}

static imbrex_view vector(void* data, int64_t count) {
  imbrex_view view = {data, IMBREX_FP32, 1, {count}, {1}};
  return view;
}

/* The operands of an operator, in its order, over the caller's memory. */
static void take_operands(const imbrex_operator* op, void* a, void* b, void* out, imbrex_operand* operands) {
  void* const places[] = {a, b, out};
  const char* const names[] = {"a", "b", "out"};
  EXPECT(imbrex_operator_operands(op) == 3);
  for (int32_t i = 0; i < 3; ++i) {
    imbrex_operand_info info = {.size = sizeof info};
    EXPECT_OK(imbrex_operator_operand(op, i, &info));
    EXPECT(strcmp(info.name, names[i]) == 0);
    EXPECT(info.role == (i < 2 ? IMBREX_INPUT : IMBREX_OUTPUT));
    EXPECT(info.bytes == (uint64_t)(info.rows * info.cols) * 4 && info.layout == IMBREX_ROW_MAJOR);
    EXPECT(info.view.dims == 2 && info.view.extents[1] == info.cols && info.view.strides[0] == info.cols);
    operands[i].name = info.name;
    operands[i].view = info.view;
    operands[i].view.data = places[i];
  }
}

/* One operator, calls of several M: the rows of "a" say which. */
static void multiply_any_m(imbrex_world* world) {
  const imbrex_gemm gemm = {.size = sizeof gemm, .m = M, .n = N, .k = K, .type = IMBREX_FP32, .any_m = 1};
  const imbrex_operator_options options = {.size = sizeof options, .device = IMBREX_CPU};
  imbrex_operator* op = NULL;
  EXPECT_OK(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op));
  static float a[M * PART], b[PART * N], out[M * N];
  for (int i = 0; i < M * PART; ++i) a[i] = a_at(i / PART, own_rank * PART + i % PART);
  for (int i = 0; i < PART * N; ++i) b[i] = b_at(own_rank * PART + i / N, i % N);
  imbrex_operand operands[3];
  take_operands(op, a, b, out, operands);
  EXPECT(operands[0].view.extents[0] == M);
  const int sizes[] = {M, 1, 3, M, 1};
  for (int turn = 0; turn < 5; ++turn) {
    operands[0].view.extents[0] = operands[2].view.extents[0] = sizes[turn];
    memset(out, 0xff, sizeof out);
    EXPECT_OK(imbrex_operator_run(op, operands, 3, NULL));
    for (int i = 0; i < sizes[turn] * N; ++i) EXPECT(out[i] == product_at(i / N, i % N));
  }
  operands[0].view.extents[0] = M + 1;
  EXPECT_REFUSED(imbrex_operator_run(op, operands, 3, NULL), "this operator takes M from 1 to");
  EXPECT_OK(imbrex_operator_destroy(op));
}

static void multiply(imbrex_world* world, imbrex_operator_kind kind, const char* strategy, const char* knobs) {
  const int scatters = kind == IMBREX_GEMM_REDUCE_SCATTER;
  const imbrex_gemm gemm = {.size = sizeof gemm, .m = M, .n = N, .k = K, .type = IMBREX_FP32};
  const imbrex_operator_options options = {
      .size = sizeof options, .strategy = strategy, .knobs = knobs, .device = IMBREX_CPU};
  imbrex_operator* op = NULL;
  EXPECT_OK(imbrex_operator_make(world, kind, &gemm, &options, &op));
  EXPECT(imbrex_operator_device(op) == IMBREX_CPU);
  EXPECT(strcmp(imbrex_operator_why_cpu(op), "") == 0);
  const char* plan = NULL;
  EXPECT_OK(imbrex_operator_plan(op, &plan));
  EXPECT(strategy == NULL || strstr(plan, strategy) != NULL);
  EXPECT(knobs == NULL || strstr(plan, "\"tile_m\": 32") != NULL || strstr(plan, "\"tile_m\":32") != NULL);

  static float a[M * PART], b[PART * N];
  for (int i = 0; i < M * PART; ++i) a[i] = a_at(i / PART, own_rank * PART + i % PART);
  for (int i = 0; i < PART * N; ++i) b[i] = b_at(own_rank * PART + i / N, i % N);
  void* out = NULL;
  EXPECT_OK(imbrex_operator_allocate_output(op, &out));
  imbrex_operand operands[3];
  take_operands(op, a, b, out, operands);
  const int rows = scatters ? M / RANKS : M;
  for (int turn = 0; turn < 3; ++turn) {
    double seconds = -1;
    memset(out, 0xff, sizeof(float) * (size_t)(rows * N));
    if (turn == 2)
      EXPECT_OK(imbrex_operator_run_and_wait(op, operands, 3, &seconds));
    else
      EXPECT_OK(imbrex_operator_run(op, operands, 3, NULL));
    EXPECT(turn < 2 || seconds >= 0);
    for (int i = 0; i < rows * N; ++i)
      EXPECT(((const float*)out)[i] == product_at(i / N + (scatters ? own_rank * rows : 0), i % N));
  }
  EXPECT_OK(imbrex_operator_check(op));
  EXPECT_OK(imbrex_operator_synchronize(op, NULL));

  /* What every rank refuses leaves the operator as it was. */
  EXPECT_REFUSED(imbrex_operator_run(op, operands, 2, NULL), "operand out is missing");
  EXPECT_REFUSED(imbrex_operator_run(op, NULL, 3, NULL), "operands is null");
  EXPECT_REFUSED(imbrex_operator_run(op, operands, 17, NULL), "count = 17");
  EXPECT_REFUSED(imbrex_operator_run(op, operands, 3, operands), "stream");
  imbrex_operand wrong[3];
  memcpy(wrong, operands, sizeof wrong);
  wrong[1].name = "weights";
  EXPECT_REFUSED(imbrex_operator_run(op, wrong, 3, NULL), "operand weights: this operator has no operand of that name");
  wrong[1].name = NULL;
  EXPECT_REFUSED(imbrex_operator_run(op, wrong, 3, NULL), "operands[1].name is null");
  wrong[1] = operands[1];
  wrong[2].view.data = NULL;
  EXPECT_REFUSED(imbrex_operator_run(op, wrong, 3, NULL), "operand out: its address is null");
  wrong[2] = operands[2];
  wrong[0].view.type = 9;
  EXPECT_REFUSED(imbrex_operator_run(op, wrong, 3, NULL), "operand a is of type 9");
  wrong[0] = operands[0];
  wrong[0].view.dims = 5;
  EXPECT_REFUSED(imbrex_operator_run(op, wrong, 3, NULL), "operand a has 5 extents");
  wrong[0].view.dims = -1;
  EXPECT_REFUSED(imbrex_operator_run(op, wrong, 3, NULL), "operand a has -1 extents");
  EXPECT_REFUSED(imbrex_world_destroy(world), "the world has 1 operators");
  EXPECT_OK(imbrex_operator_run(op, operands, 3, NULL));
  EXPECT_OK(imbrex_operator_destroy(op));
  EXPECT_REFUSED(imbrex_world_destroy(world), "1 outputs");
  EXPECT_OK(imbrex_operator_free_output(world, out));
  EXPECT_REFUSED(imbrex_operator_free_output(world, out), "no output was allocated there");
}

/* What is off is no more than the report says. */
static void multiply_through_a_codec(imbrex_world* world) {
  const imbrex_gemm gemm = {.size = sizeof gemm, .m = M, .n = N, .k = K, .type = IMBREX_FP32};
  imbrex_operator_options options = {.size = sizeof options, .device = IMBREX_CPU, .codec = "int4+int8"};
  imbrex_operator* op = NULL;
  EXPECT_OK(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op));
  static float a[M * PART], b[PART * N], out[M * N];
  for (int i = 0; i < M * PART; ++i) a[i] = a_at(i / PART, own_rank * PART + i % PART);
  for (int i = 0; i < PART * N; ++i) b[i] = b_at(own_rank * PART + i / N, i % N);
  imbrex_operand operands[3];
  take_operands(op, a, b, out, operands);
  EXPECT_OK(imbrex_operator_run(op, operands, 3, NULL));
  imbrex_report report = {.size = sizeof report};
  EXPECT_OK(imbrex_operator_codec_report(op, NULL, &report));
  EXPECT(report.largest_error > 0 && report.groups > 0 && !report.exact && report.non_finite == 0);
  double worst = 0;
  for (int i = 0; i < M * N; ++i) {
    const double off = out[i] - product_at(i / N, i % N);
    if (off > worst || -off > worst) worst = off < 0 ? -off : off;
  }
  EXPECT(worst > 0 && worst <= report.largest_error);
  EXPECT_REFUSED(imbrex_operator_codec_report(op, NULL, NULL), "imbrex_report is null");
  EXPECT_OK(imbrex_operator_destroy(op));

  imbrex_operator* none = op;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_ALL_GATHER_GEMM, &gemm, &options, &none), "sums nothing");
  EXPECT(none == NULL);
  options.codec = "int9";
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &none), "int9");
  options.codec = NULL;
  EXPECT_OK(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op));
  EXPECT_REFUSED(imbrex_operator_codec_report(op, NULL, &report), "was made without a codec");
  EXPECT_OK(imbrex_operator_destroy(op));
}

static void sum(imbrex_world* world) {
  enum { COUNT = 1000 };
  static float in[COUNT * RANKS], out[COUNT * RANKS], norm[COUNT], weight[COUNT];
  const imbrex_all_reduce_options exact = {.size = sizeof exact, .device = IMBREX_CPU};
  imbrex_collective* collective = NULL;
  EXPECT_OK(imbrex_all_reduce_make(world, COUNT, IMBREX_FP32, &exact, &collective));
  for (int i = 0; i < COUNT; ++i) in[i] = (float)(own_rank * 10 + i % 10);
  imbrex_operand operands[5] = {{"in", vector(in, COUNT)}, {"out", vector(out, COUNT)}};
  EXPECT_OK(imbrex_collective_run(collective, operands, 2, NULL));
  for (int i = 0; i < COUNT; ++i) EXPECT(out[i] == (float)(60 + 4 * (i % 10)));
  imbrex_report report = {.size = sizeof report};
  EXPECT_OK(imbrex_collective_report(collective, &report));
  EXPECT(report.exact && report.largest_error < 1e-3 && report.algorithm != NULL && report.raw_groups == 0);
  EXPECT(imbrex_collective_device(collective) == IMBREX_CPU);
  EXPECT_OK(imbrex_collective_synchronize(collective));
  EXPECT_OK(imbrex_collective_destroy(collective));

  const float tolerance = 8;
  const imbrex_all_reduce_options quantized = {
      .size = sizeof quantized, .codec = "int8", .algorithm = "two_shot", .tolerance = &tolerance, .device = IMBREX_CPU};
  EXPECT_OK(imbrex_all_reduce_make(world, COUNT, IMBREX_FP32, &quantized, &collective));
  EXPECT_OK(imbrex_collective_run(collective, operands, 2, NULL));
  EXPECT_OK(imbrex_collective_report(collective, &report));
  EXPECT(!report.exact && report.groups > 0 && report.largest_error > 0 && report.largest_error <= 8.1);
  EXPECT(strcmp(report.algorithm, "two_shot") == 0);
  for (int i = 0; i < COUNT; ++i) {
    const double error = out[i] - (60 + 4 * (i % 10));
    EXPECT(error <= report.largest_error && -error <= report.largest_error);
  }
  EXPECT_OK(imbrex_collective_destroy(collective));
  const float eps = 0;
  const imbrex_type fp32 = IMBREX_FP32;
  const imbrex_rms_norm_options norms = {.size = sizeof norms, .eps = &eps, .device = IMBREX_CPU, .weight_type = &fp32};
  EXPECT_OK(imbrex_all_reduce_rms_norm_make(world, 1, COUNT, IMBREX_FP32, &norms, &collective));
  for (int i = 0; i < COUNT; ++i) in[i] = i % 2 == 0 ? 2 : -2, weight[i] = (float)(i % 3);
  const imbrex_operand with_norm[] = {{"in", vector(in, COUNT)},
                                      {"weight", vector(weight, COUNT)},
                                      {"residual_out", vector(out, COUNT)},
                                      {"out", vector(norm, COUNT)}};
  EXPECT_OK(imbrex_collective_run(collective, with_norm, 4, NULL));
  for (int i = 0; i < COUNT; ++i) EXPECT(out[i] == 4 * in[i] && norm[i] == weight[i] * in[i] / 2);
  EXPECT_REFUSED(imbrex_collective_report(collective, &report), "has no report");
  EXPECT_OK(imbrex_collective_destroy(collective));

  const imbrex_exchange_options exchange = {.size = sizeof exchange, .device = IMBREX_CPU};
  EXPECT_OK(imbrex_exchange_make(world, IMBREX_ALL_TO_ALL, COUNT, IMBREX_FP32, &exchange, &collective));
  for (int i = 0; i < COUNT * RANKS; ++i) in[i] = (float)(own_rank * 100 + i / COUNT);
  operands[0].view = vector(in, COUNT * RANKS);
  operands[1].view = vector(out, COUNT * RANKS);
  EXPECT_OK(imbrex_collective_run(collective, operands, 2, NULL));
  for (int i = 0; i < COUNT * RANKS; ++i) EXPECT(out[i] == (float)(i / COUNT * 100 + own_rank));
  EXPECT_OK(imbrex_collective_report(collective, &report));
  EXPECT(report.exact && report.algorithm == NULL);
  EXPECT_OK(imbrex_collective_destroy(collective));
}

/* One gathered A, multiplied by three B, and handed out. */
static void multiply_by_several(imbrex_world* world) {
  enum { COLS = N / RANKS };
  const imbrex_gemm gemm = {
      .size = sizeof gemm, .m = M, .n = N, .k = K, .type = IMBREX_FP32, .more_n = {N, 2 * N}, .gathered_a = 1};
  const imbrex_operator_options options = {.size = sizeof options, .device = IMBREX_CPU};
  imbrex_operator* op = NULL;
  EXPECT_OK(imbrex_operator_make(world, IMBREX_ALL_GATHER_GEMM, &gemm, &options, &op));
  static float a[M / RANKS * K], b[3][K * 2 * COLS], out[3][M * 2 * COLS], gathered[M * K];
  for (int i = 0; i < M / RANKS * K; ++i) a[i] = a_at(own_rank * (M / RANKS) + i / K, i % K);
  imbrex_operand operands[8];
  const char* const names[] = {"a", "b", "out", "b1", "out1", "b2", "out2", "gathered"};
  void* const places[] = {a, b[0], out[0], b[1], out[1], b[2], out[2], gathered};
  EXPECT(imbrex_operator_operands(op) == 8);
  for (int32_t i = 0; i < 8; ++i) {
    imbrex_operand_info info = {.size = sizeof info};
    EXPECT_OK(imbrex_operator_operand(op, i, &info));
    EXPECT(strcmp(info.name, names[i]) == 0);
    operands[i].name = info.name;
    operands[i].view = info.view;
    operands[i].view.data = places[i];
    const int number = (i - 1) / 2, cols = (number == 2 ? 2 : 1) * COLS;
    if (info.role == IMBREX_INPUT && i > 0) {
      EXPECT(info.rows == K && info.cols == cols);
      for (int j = 0; j < K * cols; ++j) b[number][j] = b_at(j / cols, number + own_rank * cols + j % cols);
    }
  }
  EXPECT_OK(imbrex_operator_run(op, operands, 8, NULL));
  for (int number = 0; number < 3; ++number) {
    const int cols = (number == 2 ? 2 : 1) * COLS;
    for (int j = 0; j < M * cols; ++j)
      EXPECT(out[number][j] == product_at(j / cols, number + own_rank * cols + j % cols));
  }
  for (int j = 0; j < M * K; ++j) EXPECT(gathered[j] == a_at(j / K, j % K));
  EXPECT_REFUSED(imbrex_operator_run(op, operands, 7, NULL), "operand gathered is missing");
  EXPECT_OK(imbrex_operator_destroy(op));
}

/* Operands that are column blocks of wider matrices. */
static void multiply_blocks(imbrex_world* world) {
  enum { ROWS = M / RANKS, COLS = N / RANKS, LDA = K + 3, LDB = COLS + 5, LDO = COLS + 7 };
  const imbrex_gemm gemm = {
      .size = sizeof gemm, .m = M, .n = N, .k = K, .type = IMBREX_FP32, .lda = LDA, .ldb = LDB, .ldo = LDO};
  const imbrex_operator_options options = {.size = sizeof options, .device = IMBREX_CPU};
  imbrex_operator* op = NULL;
  EXPECT_OK(imbrex_operator_make(world, IMBREX_ALL_GATHER_GEMM, &gemm, &options, &op));
  static float a[ROWS * LDA], b[K * LDB], out[M * LDO];
  for (int i = 0; i < ROWS * LDA; ++i) a[i] = i % LDA < K ? a_at(own_rank * ROWS + i / LDA, i % LDA) : 1e30f;
  for (int i = 0; i < K * LDB; ++i) b[i] = i % LDB < COLS ? b_at(i / LDB, own_rank * COLS + i % LDB) : 1e30f;
  for (int i = 0; i < M * LDO; ++i) out[i] = -1;
  float* const places[] = {a, b, out};
  const int pitches[] = {LDA, LDB, LDO};
  imbrex_operand operands[3];
  for (int32_t i = 0; i < 3; ++i) {
    imbrex_operand_info info = {.size = sizeof info};
    EXPECT_OK(imbrex_operator_operand(op, i, &info));
    EXPECT(info.view.strides[0] == pitches[i] && info.view.strides[1] == 1);
    EXPECT(info.bytes == 4 * (uint64_t)((info.rows - 1) * pitches[i] + info.cols));
    operands[i].name = info.name;
    operands[i].view = info.view;
    operands[i].view.data = places[i];
  }
  EXPECT_OK(imbrex_operator_run(op, operands, 3, NULL));
  for (int i = 0; i < M * LDO; ++i)
    EXPECT(out[i] == (i % LDO < COLS ? product_at(i / LDO, own_rank * COLS + i % LDO) : -1));
  operands[0].view.strides[0] = K;
  EXPECT_REFUSED(imbrex_operator_run(op, operands, 3, NULL), "at the problem's leading dimension");
  EXPECT_OK(imbrex_operator_destroy(op));
}

/* Sums that stay in tiles until the next operation puts them in rows. */
static void multiply_packed(imbrex_world* world) {
  const imbrex_gemm gemm = {.size = sizeof gemm, .m = M, .n = N, .k = K, .type = IMBREX_FP32, .packed = 1};
  const imbrex_operator_options options = {.size = sizeof options,
                                           .knobs = "{\"tile_m\": 16, \"tile_n\": 16, \"group\": 2, \"chunks\": 3}",
                                           .device = IMBREX_CPU};
  imbrex_operator* op = NULL;
  EXPECT_OK(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op));
  static float a[M * PART], b[PART * N], packed[M * N], out[M * N], weight[N];
  for (int i = 0; i < M * PART; ++i) a[i] = a_at(i / PART, own_rank * PART + i % PART);
  for (int i = 0; i < PART * N; ++i) b[i] = b_at(own_rank * PART + i / N, i % N);
  imbrex_operand operands[3];
  take_operands(op, a, b, packed, operands);
  EXPECT_OK(imbrex_operator_run(op, operands, 3, NULL));
  imbrex_packed_layout layout = {.size = sizeof layout};
  EXPECT_OK(imbrex_operator_packed_layout(op, &layout));
  EXPECT(layout.rows == M && layout.cols == N && layout.block_rows == 32 && layout.block_cols == 16);
  EXPECT(layout.first_rows[1] == 32 && layout.first_rows[3] == 96 && layout.device == IMBREX_CPU);
  imbrex_operand back[] = {{"in", vector(packed, M * N)}, {"out", vector(out, M * N)}, {"weight", vector(weight, N)}};
  EXPECT_OK(imbrex_put_back(IMBREX_COPY, &layout, back, 2, 0, NULL));
  for (int i = 0; i < M * N; ++i) EXPECT(out[i] == product_at(i / N, i % N));
  EXPECT_OK(imbrex_put_back(IMBREX_RMS_NORM, &layout, back, 3, 1e-6f, NULL));
  EXPECT_REFUSED(imbrex_put_back(4, &layout, back, 2, 0, NULL), "operation = 4: it must be from 0 to 3");
  EXPECT_OK(imbrex_operator_destroy(op));
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_REDUCE_SCATTER, &gemm, NULL, &op), "packed with");
}

/* What cannot be made; where one rank asks for it, all are told. */
static void refuse(imbrex_world* world) {
  imbrex_gemm gemm = {.size = sizeof gemm, .m = M, .n = N, .k = K, .type = IMBREX_FP32};
  imbrex_operator_options options = {.size = sizeof options, .device = IMBREX_CPU};
  imbrex_operator* op = (imbrex_operator*)&gemm;
  imbrex_collective* collective = (imbrex_collective*)&gemm;
  EXPECT_REFUSED(imbrex_operator_make(NULL, 0, &gemm, &options, &op), "world is null");
  EXPECT(op == NULL);
  EXPECT_REFUSED(imbrex_operator_make(world, 4, &gemm, &options, &op), "kind = 4: it must be from 0 to 3");
  EXPECT_REFUSED(imbrex_operator_make(world, 0, NULL, &options, &op), "imbrex_gemm is null");
  EXPECT_REFUSED(imbrex_operator_make(world, 0, &gemm, &options, NULL), "made is null");
  gemm.k = K + 1;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "129");
  gemm.k = 0;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "K = 0");
  gemm.k = K;
  gemm.type = -1;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "type = -1");
  gemm.type = IMBREX_FP32;
  gemm.scales = 3;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "scales = 3");
  gemm.scales = IMBREX_SCALES_NONE;
  gemm.b_layout = 2;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "b_layout = 2");
  gemm.b_layout = IMBREX_ROW_MAJOR;
  gemm.more_n[0] = N;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "more_n holds");
  gemm.more_n[0] = 0;
  gemm.gathered_a = 1;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "gathered_a with");
  gemm.gathered_a = 0;
  gemm.ldb = N - 1;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "ldb = ");
  gemm.ldb = 0;
  gemm.size = 4;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "imbrex_gemm.size = 4");
  gemm.size = sizeof gemm;
  options.strategy = "quick";
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "quick");
  options.strategy = NULL;
  options.knobs = "{\"tile_q\": 1}";
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "tile_q");
  options.knobs = "[]";
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "JSON object");
  options.knobs = NULL;
  options.device = 3;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "device = 3");
  options.device = IMBREX_CUDA;
  options.reserved[0] = 4;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "reserved = 4");
  options.reserved[0] = 0;
  options.device = IMBREX_CPU;

  /* A later version's structure: what this library does not know must be zero. */
  struct {
    imbrex_gemm gemm;
    int64_t later;
  } grown = {gemm, 0};
  grown.gemm.size = sizeof grown;
  EXPECT_OK(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &grown.gemm, &options, &op));
  EXPECT_OK(imbrex_operator_destroy(op));
  grown.later = 7;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &grown.gemm, &options, &op), "must be zero");

  /* Rank 2 alone asks for what there is not, or for something else. */
  EXPECT_REFUSED(imbrex_operator_make(world, own_rank == 2 ? 9 : 1, &gemm, &options, &op), "kind = 9");
  EXPECT(own_rank == 2 || strstr(imbrex_error_message(), "rank 2") != NULL);
  gemm.n = own_rank == 2 ? 2 * N : N;
  EXPECT_REFUSED(imbrex_operator_make(world, IMBREX_GEMM_ALL_REDUCE, &gemm, &options, &op), "rank 2 asks for n = 96");
  const imbrex_all_reduce_options quantized = {
      .size = sizeof quantized, .codec = own_rank == 1 ? "int9" : "int8", .device = IMBREX_CPU};
  EXPECT_REFUSED(imbrex_all_reduce_make(world, 64, IMBREX_FP32, &quantized, &collective), "int9");
  EXPECT(collective == NULL);
  EXPECT_REFUSED(imbrex_all_reduce_make(world, -1, IMBREX_FP32, NULL, &collective), "-1");
  EXPECT_REFUSED(imbrex_exchange_make(world, 3, 64, IMBREX_FP32, NULL, &collective), "kind = 3");
  EXPECT_REFUSED(imbrex_all_reduce_rms_norm_make(world, 1, 0, IMBREX_FP32, NULL, &collective), "hidden = 0");

  EXPECT_REFUSED(imbrex_world_barrier(NULL), "world is null");
  EXPECT_REFUSED(imbrex_world_all_gather(world, NULL, NULL, 4), "mine is null");
  EXPECT_REFUSED(imbrex_world_ask(world, NULL, "[1]"), "field is null");
  EXPECT_REFUSED(imbrex_world_ask(world, "rows", NULL), "value is null");
  EXPECT_REFUSED(imbrex_operator_run(NULL, NULL, 0, NULL), "op is null");
  EXPECT_REFUSED(imbrex_collective_run(NULL, NULL, 0, NULL), "collective is null");
  EXPECT(imbrex_world_rank(NULL) == -1 && imbrex_operator_operands(NULL) == -1 && imbrex_operator_device(NULL) == -1);
  EXPECT_OK(imbrex_operator_destroy(NULL));
  EXPECT_OK(imbrex_collective_destroy(NULL));
  EXPECT_OK(imbrex_world_destroy(NULL));
}

/* The call that rank 1 alone refuses, which C's layer does before the operator sees it, fails on every rank. */
static void one_refuses(imbrex_world* world) {
  const imbrex_all_reduce_options exact = {.size = sizeof exact, .device = IMBREX_CPU};
  imbrex_collective* collective = NULL;
  EXPECT_OK(imbrex_all_reduce_make(world, 64, IMBREX_FP32, &exact, &collective));
  float values[64] = {0};
  const imbrex_operand operands[] = {{"in", vector(values, 64)}, {own_rank == 1 ? NULL : "out", vector(values, 64)}};
  EXPECT(imbrex_collective_run(collective, operands, 2, NULL) == IMBREX_INVALID_INPUT);
  EXPECT(strstr(imbrex_error_message(), "operands[1].name is null") != NULL);
  EXPECT(own_rank == 1 || strstr(imbrex_error_message(), "rank 1") != NULL);
  EXPECT_OK(imbrex_world_ask(world, "rows", own_rank == 1 ? "[1, 2]" : "[2, 1]"));
  EXPECT(imbrex_collective_run(collective, (imbrex_operand[]){{"in", vector(values, 64)}, {"out", vector(values, 64)}},
                               2, NULL) == IMBREX_INVALID_INPUT);
  EXPECT(strstr(imbrex_error_message(), "rows = [1, 2]") != NULL && strstr(imbrex_error_message(), "[2, 1]") != NULL);
  EXPECT_OK(imbrex_world_ask(world, "rows", "[0, 0]"));
  EXPECT_OK(imbrex_world_skip_call(world, "no rows"));
  EXPECT(imbrex_world_check_calls(world) == 0 && imbrex_world_trim(world) == 0 && imbrex_world_restore(world) == 0);
  EXPECT_OK(imbrex_collective_destroy(collective));
}

static imbrex_world* connect_ranks(const imbrex_unique_id* id) {
  imbrex_world* world = NULL;
  const int32_t gpu = 0; /* nothing here works on one */
  const imbrex_world_options options = {.size = sizeof options, .heap_bytes = 1 << 24, .wait_limit = 20, .gpu = &gpu};
  EXPECT_OK(imbrex_world_connect(id, own_rank, RANKS, &options, &world));
  EXPECT(imbrex_world_rank(world) == own_rank && imbrex_world_size(world) == RANKS);
  return world;
}

static void rank_main(const imbrex_unique_id ids[2]) {
  imbrex_world* world = connect_ranks(&ids[0]);
  int32_t squares[RANKS];
  const int32_t square = own_rank * own_rank;
  EXPECT_OK(imbrex_world_all_gather(world, &square, squares, sizeof square));
  for (int r = 0; r < RANKS; ++r) EXPECT(squares[r] == r * r);
  multiply(world, IMBREX_GEMM_REDUCE_SCATTER, NULL, NULL);
  multiply(world, IMBREX_GEMM_ALL_REDUCE, "fused", "{\"tile_m\": 32, \"tile_n\": 16}");
  multiply(world, IMBREX_GEMM_ALL_REDUCE, "sequential", NULL);
  multiply_through_a_codec(world);
  multiply_packed(world);
  multiply_any_m(world);
  multiply_by_several(world);
  multiply_blocks(world);
  sum(world);
  refuse(world);
  EXPECT_OK(imbrex_world_check(world));
  EXPECT_OK(imbrex_world_barrier(world));
  EXPECT_OK(imbrex_world_destroy(world));

  world = connect_ranks(&ids[1]);
  one_refuses(world);
  EXPECT_OK(imbrex_world_destroy(world));
}

int main(void) {
  EXPECT(strcmp(imbrex_error_message(), "") == 0);
  imbrex_unique_id ids[2];
  EXPECT_OK(imbrex_make_unique_id(&ids[0]));
  EXPECT_OK(imbrex_make_unique_id(&ids[1]));
  EXPECT_REFUSED(imbrex_make_unique_id(NULL), "id is null");
  EXPECT(strcmp(imbrex_version(), "0.1.0") == 0);
  infer();
  pid_t ranks[RANKS];
  for (int r = 0; r < RANKS; ++r) {
    ranks[r] = fork();
    EXPECT(ranks[r] >= 0);
    if (ranks[r] == 0) {
      own_rank = r;
      rank_main(ids);
      return 0;
    }
  }
  int failures = 0;
  for (int r = 0; r < RANKS; ++r) {
    int status = -1;
    EXPECT(waitpid(ranks[r], &status, 0) == ranks[r]);
    failures += status != 0;
  }
  printf("%d of %d ranks are right\n", RANKS - failures, RANKS);
  return failures != 0;
}
