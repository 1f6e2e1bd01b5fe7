/* Imbrex from C, and from whatever calls C: worlds, operators and collectives, as world.hpp, ops.hpp and
   collectives.hpp tell of them. docs/c.md has an example.

   Values of enumerations and fields of structures stay what they are in every later version. Structures grow at their
   end: the caller sets `size` to its sizeof and leaves every byte zero that it does not set. A zero is
   the default of each field.

   A function that can fail returns a status; what it has made goes to its last argument, which receives NULL where it
   fails. The text of the error is imbrex_error_message()'s. Null pointers and numbers that no enumeration has are
   refused like any other bad argument, with IMBREX_INVALID_INPUT. In the making of an operator or collective, every
   rank refuses; in a call, ops.hpp tells which ranks do. A function fails on this rank alone only if its object is
   missing. */
#ifndef IMBREX_C_H
#define IMBREX_C_H

#include <stddef.h>
#include <stdint.h>

#include "imbrex/version.hpp"

#ifdef __cplusplus
#define IMBREX_NOEXCEPT noexcept
extern "C" {
#else
#define IMBREX_NOEXCEPT
#endif

/* ---------------------------------------------------------------------------------------------------- errors */

typedef int32_t imbrex_status;
enum {
  IMBREX_OK = 0,
  IMBREX_UNSOUND = 1,         ///< a plan that the checker refutes
  IMBREX_INVALID_INPUT = 2,   ///< an argument, file or environment variable breaks a stated rule
  IMBREX_RUNTIME_FAILURE = 3  ///< a wait past its limit, a lost rank, an operating system refusal, no memory
};

/// Why the calling thread's last failed call failed, naming value and rule. Valid until its next one; empty before the
/// first.
const char* imbrex_error_message(void) IMBREX_NOEXCEPT;

/// "0.1.0": of the library, where IMBREX_VERSION_MAJOR and the others are the header's.
const char* imbrex_version(void) IMBREX_NOEXCEPT;

/* ---------------------------------------------------------------------------------------------------- values */

typedef int32_t imbrex_type;
enum {
  IMBREX_BF16 = 0,
  IMBREX_FP16 = 1,
  IMBREX_FP32 = 2,
  IMBREX_E4M3 = 3,
  IMBREX_INT8 = 16,  ///< integers: of operands of embeddings only
  IMBREX_INT32 = 17,
  IMBREX_INT64 = 18
};

typedef int32_t imbrex_device;
enum { IMBREX_AUTOMATIC = 0, IMBREX_CPU = 1, IMBREX_CUDA = 2 };

typedef int32_t imbrex_scales;
enum { IMBREX_SCALES_NONE = 0, IMBREX_SCALES_TENSOR = 1, IMBREX_SCALES_ROW = 2 };

typedef int32_t imbrex_layout;
enum { IMBREX_ROW_MAJOR = 0, IMBREX_COLUMN_MAJOR = 1 };

typedef int32_t imbrex_role;
enum { IMBREX_INPUT = 0, IMBREX_OUTPUT = 1 };

enum { IMBREX_MOST_DIMS = 4 };

/// Element (i, j, ...) lies i * strides[0] + j * strides[1] + ... elements after `data`. Never grows.
typedef struct imbrex_view {
  void* data;
  imbrex_type type;
  int32_t dims;
  int64_t extents[IMBREX_MOST_DIMS];
  int64_t strides[IMBREX_MOST_DIMS];
} imbrex_view;

/// Never grows.
typedef struct imbrex_operand {
  const char* name;
  imbrex_view view;
} imbrex_operand;

/* ---------------------------------------------------------------------------------------------------- worlds */

/// One rank's membership. Functions on it, and on all that is made with it, are called by one thread at a time.
typedef struct imbrex_world imbrex_world;

typedef struct imbrex_unique_id {
  char bytes[128];
} imbrex_unique_id;

typedef struct imbrex_world_options {
  size_t size;
  uint64_t heap_bytes;    ///< symmetric heap per rank, in host memory; 0: 1 GiB
  double wait_limit;      ///< seconds of a wait to which all ranks have come; 0: IMBREX_WAIT_LIMIT, or 30
  const int32_t* gpu;     ///< this rank's GPU, as CUDA numbers those that this process sees; NULL: by the rank
  int32_t ranks_per_gpu;  ///< ranks that share each GPU, the same on every rank; 0: one
  int32_t reserved;
  int32_t sms_for_others;  ///< SMs of each GPU that kernels which wait for peers leave to NCCL's and others', the same
                           ///< on every rank
  int32_t reserved2;
  double entry_limit;  ///< seconds that ranks wait for one that has not come; 0: the wait limit where that is set, here
                       ///< or by IMBREX_WAIT_LIMIT, else 600
} imbrex_world_options;

/// What one process makes, and hands to the others by means of its own.
imbrex_status imbrex_make_unique_id(imbrex_unique_id* id) IMBREX_NOEXCEPT;

/// Collective; `options` may be NULL, here and below.
imbrex_status imbrex_world_connect(const imbrex_unique_id* id, int32_t rank, int32_t size,
                                   const imbrex_world_options* options, imbrex_world** world) IMBREX_NOEXCEPT;

/// By the variables of a launcher that docs/launching.md names; a world of one rank where none is set.
imbrex_status imbrex_world_from_environment(const imbrex_world_options* options, imbrex_world** world) IMBREX_NOEXCEPT;

/// Tells the peers that this rank ended well: a rank that did not calls imbrex_world_fail before. Refused while
/// operators or collectives of the world live. NULL is allowed.
imbrex_status imbrex_world_destroy(imbrex_world* world) IMBREX_NOEXCEPT;

/// -1 for NULL.
int32_t imbrex_world_rank(const imbrex_world* world) IMBREX_NOEXCEPT;
int32_t imbrex_world_size(const imbrex_world* world) IMBREX_NOEXCEPT;

/// Returns when every rank has called it.
imbrex_status imbrex_world_barrier(imbrex_world* world) IMBREX_NOEXCEPT;

/// Bytes r * bytes ... of `all` receive rank r's `mine`; up to 4096 bytes a rank.
imbrex_status imbrex_world_all_gather(imbrex_world* world, const void* mine, void* all, size_t bytes) IMBREX_NOEXCEPT;

/// Every wait of every rank ends with this message. Any thread may call it.
imbrex_status imbrex_world_fail(imbrex_world* world, const char* message) IMBREX_NOEXCEPT;

/// IMBREX_RUNTIME_FAILURE once a rank has failed or was lost. Costs one load; any thread may call it.
imbrex_status imbrex_world_check(const imbrex_world* world) IMBREX_NOEXCEPT;

/// For callers that check more of a call than the library does: this rank refuses its next call, of whatever operator
/// or collective, for `reason`. Every rank's call fails with it, with IMBREX_INVALID_INPUT, and the next call is a call
/// like any other (operators.md, "What some ranks refuse"). A rank that stayed away would be waited for. Where peers
/// have taken the call it returns when that has ended; it waits for no other rank.
imbrex_status imbrex_world_refuse_call(imbrex_world* world, const char* reason) IMBREX_NOEXCEPT;

/// For callers that derive a call from more than the library sees: this rank's next call is asked for `field` =
/// `value`, as "rows" = "[3, 0]". Every rank refuses that call where it was not asked for the same.
imbrex_status imbrex_world_ask(imbrex_world* world, const char* field, const char* value) IMBREX_NOEXCEPT;

/// This rank has no rows for its next call. Returns when all ranks have come to that call: IMBREX_OK if none has any,
/// and the call is over; else IMBREX_INVALID_INPUT, on every rank, with `reason`, which says what this rank was given.
imbrex_status imbrex_world_skip_call(imbrex_world* world, const char* reason) IMBREX_NOEXCEPT;

/// IMBREX_INVALID_INPUT, once for each, where a peer refused a call that this rank had queued: its outputs mean
/// nothing. The next call says so, too. IMBREX_RUNTIME_FAILURE where the world, or a collective of it on the GPU, is
/// known to have failed. For the thread that makes the world's calls.
imbrex_status imbrex_world_check_calls(imbrex_world* world) IMBREX_NOEXCEPT;

/// Collective: gives GPU memory of the world's operators and collectives back to the driver until the next call, or
/// imbrex_world_restore. Until then no graph that holds calls is replayed. See trim and restore in ops.hpp.
imbrex_status imbrex_world_trim(imbrex_world* world) IMBREX_NOEXCEPT;
imbrex_status imbrex_world_restore(imbrex_world* world) IMBREX_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------- operators */

typedef struct imbrex_operator imbrex_operator;

typedef int32_t imbrex_operator_kind;
enum {
  IMBREX_ALL_GATHER_GEMM = 0,
  IMBREX_GEMM_REDUCE_SCATTER = 1,
  IMBREX_GEMM_ALL_REDUCE = 2,
  IMBREX_GEMM_ALL_TO_ALL = 3
};

enum { IMBREX_MOST_PRODUCTS = 3 };

/// Sizes of the whole GEMM, as GemmShape has them.
typedef struct imbrex_gemm {
  size_t size;
  int64_t m, n, k;
  imbrex_type type;
  int32_t bias;            ///< not 0: there is one
  imbrex_scales scales;    ///< of IMBREX_E4M3 only
  imbrex_layout b_layout;  ///< IMBREX_COLUMN_MAJOR: B lies as N x K by rows, as a linear layer's weights do, and as
                           ///< B of IMBREX_E4M3 always does
  int32_t any_m;           ///< not 0: calls take any M from 1 to `m`; see GemmShape
  int32_t gathered_a;      ///< IMBREX_ALL_GATHER_GEMM, not 0: "gathered", the gathered A, is an output
  int64_t more_n[IMBREX_MOST_PRODUCTS - 1];  ///< IMBREX_ALL_GATHER_GEMM without scales: N of a second and a third B, by
                                             ///< which the gathered A is multiplied, too; 0: none
  int64_t lda, ldb, ldo;  ///< elements from one row of "a", "b" (IMBREX_COLUMN_MAJOR: of N x K) and "out" to the next;
                          ///< 0: no gaps. What is between the rows is neither read nor written
  int64_t more_ldb[IMBREX_MOST_PRODUCTS - 1], more_ldo[IMBREX_MOST_PRODUCTS - 1];  ///< of the further B and outputs
  int32_t packed;  ///< IMBREX_GEMM_ALL_REDUCE, not 0: "out" is a packed matrix: imbrex_operator_packed_layout
  int32_t reserved;
} imbrex_gemm;

/// The same on every rank.
typedef struct imbrex_operator_options {
  size_t size;
  const char* strategy;  ///< "sequential", "decomposed", "fused" or "signaled"; NULL: the one predicted to be fastest
  const char* knobs;     ///< a JSON object, as plans have them; what it leaves out is chosen. NULL: all are
  imbrex_device device;
  int32_t cpu_workers;  ///< CPU: threads a rank that take compute tasks; 0: one
  uint64_t heap_bytes;  ///< GPUs: symmetric heap per rank, at first; 0: 64 MiB. With the world's first operator
  int32_t reserved[2];
  const char* codec;    ///< of the two operators that sum: "int8", "int4+int8", "flash6" ... (docs/quantization.md);
                        ///< NULL: what the knobs say, or exact. Unlike an all-reduce, it takes no tolerance
  uint64_t heap_limit;  ///< GPUs: bytes that the symmetric heap has at most, per rank: what needs more is refused; 0:
                        ///< as many as there are. With the world's first operator
} imbrex_operator_options;

struct imbrex_report;

/// One operand of this rank.
typedef struct imbrex_operand_info {
  size_t size;
  const char* name;  ///< lives as long as the operator
  imbrex_role role;
  imbrex_layout layout;
  int64_t rows, cols;
  uint64_t bytes;
  imbrex_view view;  ///< of such an operand, where it lies as imbrex_gemm says; its data is NULL
} imbrex_operand_info;

/// Collective. The ranks destroy it together, too, before the world.
imbrex_status imbrex_operator_make(imbrex_world* world, imbrex_operator_kind kind, const imbrex_gemm* gemm,
                                   const imbrex_operator_options* options, imbrex_operator** made) IMBREX_NOEXCEPT;

/// Collective, with `any_m`: calls take any M up to `m` from now on, where that is more than before. See
/// GemmOperator::grow.
imbrex_status imbrex_operator_grow(imbrex_operator* op, int64_t m) IMBREX_NOEXCEPT;

/// NULL is allowed.
imbrex_status imbrex_operator_destroy(imbrex_operator* op) IMBREX_NOEXCEPT;

/// How many operands a call takes; -1 for NULL.
int32_t imbrex_operator_operands(const imbrex_operator* op) IMBREX_NOEXCEPT;

/// The operand at `index`, in the order in which calls find their operands soonest; with `any_m`, of the largest M.
/// `info->size` is set before.
imbrex_status imbrex_operator_operand(const imbrex_operator* op, int32_t index,
                                      imbrex_operand_info* info) IMBREX_NOEXCEPT;

/// A call. No output shares a byte with another operand; rows may interleave, and "a" of an all-gather may be a
/// rank's rows of an output (docs/operators.md). On GPUs it is queued on `stream`, a cudaStream_t, and returns; on the
/// CPU the output is complete on return, and `stream` is NULL. Where nothing is wrong, what C adds to the call
/// allocates nothing.
imbrex_status imbrex_operator_run(imbrex_operator* op, const imbrex_operand* operands, size_t count,
                                  void* stream) IMBREX_NOEXCEPT;

/// As imbrex_operator_run, on a stream of its own, and waits; operands may lie in host memory. `seconds`, from this
/// rank's entry to its last task's end, may be NULL.
imbrex_status imbrex_operator_run_and_wait(imbrex_operator* op, const imbrex_operand* operands, size_t count,
                                           double* seconds) IMBREX_NOEXCEPT;

/// Fails if a call is known to have failed, on any rank; waits for none.
imbrex_status imbrex_operator_check(imbrex_operator* op) IMBREX_NOEXCEPT;

/// Waits until `stream` is idle, then as imbrex_operator_check.
imbrex_status imbrex_operator_synchronize(imbrex_operator* op, void* stream) IMBREX_NOEXCEPT;

/// Collective, for operators with a codec: waits until `stream` is idle, and tells what the codec may have done to the
/// sums of the last call. `report->size` is set before; raw_groups is 0 and algorithm NULL, and exact says whether
/// nothing went through the codec, as where there is one rank.
imbrex_status imbrex_operator_codec_report(imbrex_operator* op, void* stream,
                                           struct imbrex_report* report) IMBREX_NOEXCEPT;

/// Collective: memory for "out", which peers write directly on GPUs. Given back by imbrex_operator_free_output, by
/// every rank in one order, before the world is destroyed.
imbrex_status imbrex_operator_allocate_output(imbrex_operator* op, void** memory) IMBREX_NOEXCEPT;
imbrex_status imbrex_operator_free_output(imbrex_world* world, void* memory) IMBREX_NOEXCEPT;

/// How a packed matrix lies, as PackedLayout has it (packed.hpp).
typedef struct imbrex_packed_layout {
  size_t size;
  int64_t rows, cols;
  int64_t block_rows, block_cols;
  const int32_t* first_rows;  ///< in the memory of `device`; NULL: the matrix lies in rows
  imbrex_device device;       ///< IMBREX_CPU or IMBREX_CUDA
  int32_t reserved;
} imbrex_packed_layout;

/// Tells how "out" of an operator made with `packed` lies: `layout->size` is set before. The array lives as long as the
/// operator.
imbrex_status imbrex_operator_packed_layout(const imbrex_operator* op, imbrex_packed_layout* layout) IMBREX_NOEXCEPT;

typedef int32_t imbrex_row_operation;
enum { IMBREX_COPY = 0, IMBREX_RMS_NORM = 1, IMBREX_SILU_MULTIPLY = 2, IMBREX_GELU = 3 };

/// Puts a packed matrix back in rows by the operation that comes next, on operands as put_back has them (packed.hpp).
/// Needs no world. On GPUs it is queued on `stream`; on the CPU the result is complete on return, and `stream` is NULL.
imbrex_status imbrex_put_back(imbrex_row_operation operation, const imbrex_packed_layout* layout,
                              const imbrex_operand* operands, size_t count, float eps, void* stream) IMBREX_NOEXCEPT;

/// IMBREX_CPU or IMBREX_CUDA; -1 for NULL.
imbrex_device imbrex_operator_device(const imbrex_operator* op) IMBREX_NOEXCEPT;

/// Why an operator of IMBREX_AUTOMATIC works on the CPU; empty if it does not, or was told to. Lives as long as `op`.
const char* imbrex_operator_why_cpu(const imbrex_operator* op) IMBREX_NOEXCEPT;

/// The plan as JSON (docs/dev/plan-format.md); with `any_m`, that of the largest M. Lives as long as the operator.
imbrex_status imbrex_operator_plan(imbrex_operator* op, const char** json) IMBREX_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ embeddings */

/// Embedding tables over several ranks, as EmbeddingAllToAll has them (embedding.hpp).
typedef struct imbrex_embedding imbrex_embedding;

typedef int32_t imbrex_table_rows;
enum { IMBREX_ROWS_FP32 = 0, IMBREX_ROWS_FP16 = 1, IMBREX_ROWS_BF16 = 2, IMBREX_ROWS_INT8 = 3 };

typedef int32_t imbrex_pooling;
enum { IMBREX_POOLING_SUM = 0, IMBREX_POOLING_MEAN = 1 };

typedef int32_t imbrex_optimizer;
enum { IMBREX_NO_OPTIMIZER = 0, IMBREX_SGD = 1, IMBREX_ROW_WISE_ADAGRAD = 2 };

/// A whole table. Never grows.
typedef struct imbrex_table {
  int64_t rows;
  int32_t dim;  ///< columns: a multiple of 4 from 4 to 1024
  int32_t reserved;
  double hotness;  ///< rows that a bag holds, on average, for the placement; 0: one
} imbrex_table;

/// Columns [begin, end) of a table, on one rank. Never grows.
typedef struct imbrex_table_shard {
  int32_t table, rank, begin, end;
} imbrex_table_shard;

/// The same on every rank, as EmbeddingShape.
typedef struct imbrex_embedding_shape {
  size_t size;
  const imbrex_table* tables;  ///< in the order of their columns in the output
  uint64_t table_count;
  const imbrex_table_shard* shards;  ///< of all ranks; NULL: as imbrex_place_tables deals them
  uint64_t shard_count;
  int64_t batch;  ///< rows of the largest global batch; the ranks divide it
  imbrex_table_rows rows;
  imbrex_pooling pooling;
  imbrex_type index_type;  ///< of indices and offsets: IMBREX_INT32 or IMBREX_INT64; 0: IMBREX_INT64
  imbrex_type out;         ///< IMBREX_BF16, IMBREX_FP16 or IMBREX_FP32
  int32_t weighted;        ///< not 0: each index has a weight
  int32_t ignore_misfits;  ///< not 0: indices that are no rows are as if they were not there, and counted
  imbrex_optimizer optimizer;
  int32_t reserved;
  const float* epsilon;  ///< of IMBREX_ROW_WISE_ADAGRAD; NULL: 1e-8
} imbrex_embedding_shape;

/// Deals the shape's tables to ranks (place_tables): `shards` receives *count shards, where it has room for them;
/// *count, which says for how many there is room, becomes how many there are. `memory`: bytes of a rank's tables at
/// most; 0: as many as there are. `balance`, the largest of the ranks' loads over their mean, may be NULL. Needs no
/// world.
imbrex_status imbrex_place_tables(const imbrex_embedding_shape* shape, int32_t ranks, int64_t memory,
                                  imbrex_table_shard* shards, uint64_t* count, double* balance) IMBREX_NOEXCEPT;

/// Collective. Strategies are "fused", "sequential" and "decomposed"; the options' codec is NULL. The ranks destroy it
/// together, too, before the world.
imbrex_status imbrex_embedding_make(imbrex_world* world, const imbrex_embedding_shape* shape,
                                    const imbrex_operator_options* options, imbrex_embedding** made) IMBREX_NOEXCEPT;

/// NULL is allowed.
imbrex_status imbrex_embedding_destroy(imbrex_embedding* embedding) IMBREX_NOEXCEPT;

/// All ranks' shards: an array that lives as long as the operator. A rank's own ones, in this order, are those of its
/// operands rows0, rows1 ...
imbrex_status imbrex_embedding_shards(const imbrex_embedding* embedding, const imbrex_table_shard** shards,
                                      uint64_t* count) IMBREX_NOEXCEPT;

/// How many operands a lookup takes or, with `update` not 0, an update; -1 for NULL.
int32_t imbrex_embedding_operands(const imbrex_embedding* embedding, int32_t update) IMBREX_NOEXCEPT;

/// The operand at `index`, of the largest batch. An extent of 0, and then `bytes`, is the call's own: of "indices" and
/// "weights". Vectors have one extent; `rows` is it, and `cols` 1. `info->size` is set before.
imbrex_status imbrex_embedding_operand(const imbrex_embedding* embedding, int32_t update, int32_t index,
                                       imbrex_operand_info* info) IMBREX_NOEXCEPT;

/// A lookup; streams as imbrex_operator_run.
imbrex_status imbrex_embedding_run(imbrex_embedding* embedding, const imbrex_operand* operands, size_t count,
                                   void* stream) IMBREX_NOEXCEPT;

/// Takes an optimizer step with gradients of a lookup's output.
imbrex_status imbrex_embedding_update(imbrex_embedding* embedding, const imbrex_operand* operands, size_t count,
                                      float rate, void* stream) IMBREX_NOEXCEPT;

/// As imbrex_world_refuse_call, of this rank's next lookup or update. Returns the refusal, IMBREX_INVALID_INPUT.
imbrex_status imbrex_embedding_refuse(imbrex_embedding* embedding, const char* reason) IMBREX_NOEXCEPT;

/// Collective: waits for the calls, and on GPUs for replays of graphs that hold some. `ignored`, the indices that were
/// no rows, of all ranks since the last report, may be NULL. Fails on every rank where misfits are not ignored and a
/// GPU found some, naming one; the calls' operands may be gone.
imbrex_status imbrex_embedding_report(imbrex_embedding* embedding, int64_t* ignored) IMBREX_NOEXCEPT;

/// As for operators.
imbrex_status imbrex_embedding_check(imbrex_embedding* embedding) IMBREX_NOEXCEPT;
imbrex_status imbrex_embedding_synchronize(imbrex_embedding* embedding, void* stream) IMBREX_NOEXCEPT;
imbrex_status imbrex_embedding_allocate_output(imbrex_embedding* embedding, void** memory) IMBREX_NOEXCEPT;
imbrex_device imbrex_embedding_device(const imbrex_embedding* embedding) IMBREX_NOEXCEPT;
const char* imbrex_embedding_why_cpu(const imbrex_embedding* embedding) IMBREX_NOEXCEPT;
imbrex_status imbrex_embedding_plan(imbrex_embedding* embedding, const char** json) IMBREX_NOEXCEPT;

/* ----------------------------------------------------------------------------------------------- collectives */

/// An all-reduce, one with residual and RMSNorm, or one of the exchanges that all-reduces are made of.
typedef struct imbrex_collective imbrex_collective;

enum { IMBREX_EXACT_BELOW_MEASURED = -1 };

/// The same on every rank, as AllReduceOptions.
typedef struct imbrex_all_reduce_options {
  size_t size;
  const char* codec;       ///< "int8", "int4+int8", "flash6" ... (docs/quantization.md); NULL: exact
  const char* algorithm;   ///< "one_shot", "two_shot" or "ring"; NULL: "auto"
  const float* tolerance;  ///< the largest error that the codec may cause; NULL: none is stated
  int64_t exact_below;     ///< tensors of fewer bytes are summed exactly, or IMBREX_EXACT_BELOW_MEASURED
  int32_t whole_call;      ///< not 0: the whole call is exact if one group could exceed the tolerance
  int32_t batch_invariant;
  int32_t no_report;  ///< not 0: imbrex_collective_report has nothing to tell
  int32_t ctas;       ///< GPUs: thread blocks; 0: by size
  imbrex_device device;
  int32_t reserved;
} imbrex_all_reduce_options;

/// The same on every rank, as AllReduceRmsNormOptions.
typedef struct imbrex_rms_norm_options {
  size_t size;
  const char* algorithm;  ///< "one_shot" or "two_shot"; NULL: "auto"
  const float* eps;       ///< NULL: 1e-6
  int32_t ctas;
  imbrex_device device;
  const imbrex_type* weight_type;  ///< of "weight": IMBREX_FP32 or the rows' type; NULL: the rows' type
} imbrex_rms_norm_options;

typedef int32_t imbrex_exchange_kind;
enum { IMBREX_REDUCE_SCATTER = 0, IMBREX_ALL_GATHER = 1, IMBREX_ALL_TO_ALL = 2 };

typedef struct imbrex_exchange_options {
  size_t size;
  const char* codec;  ///< one: "int8"; NULL: exact
  int32_t no_report;
  int32_t ctas;
  imbrex_device device;
  int32_t reserved;
} imbrex_exchange_options;

/// What became of the last call, over all ranks.
typedef struct imbrex_report {
  size_t size;
  double largest_error;  ///< no finite element of the output is farther from the exact sum than this
  int64_t non_finite;
  int64_t groups;
  int64_t raw_groups;
  int32_t exact;  ///< not 0: without codec
  int32_t reserved;
  const char* algorithm;  ///< of an all-reduce; NULL for exchanges. Lives for ever
} imbrex_report;

/// Collective. Operands "in" and "out", of up to `max_count` elements.
imbrex_status imbrex_all_reduce_make(imbrex_world* world, int64_t max_count, imbrex_type type,
                                     const imbrex_all_reduce_options* options,
                                     imbrex_collective** made) IMBREX_NOEXCEPT;

/// Collective. Operands "in", "residual" (or without), "weight", "residual_out" and "out".
imbrex_status imbrex_all_reduce_rms_norm_make(imbrex_world* world, int64_t max_rows, int64_t hidden, imbrex_type type,
                                              const imbrex_rms_norm_options* options,
                                              imbrex_collective** made) IMBREX_NOEXCEPT;

/// Collective. Operands "in" and "out", in blocks of up to `max_count` elements. "in" of an all-gather may be a block
/// of "out", and "out" of a reduce-scatter a block of "in"; usually it is this rank's.
imbrex_status imbrex_exchange_make(imbrex_world* world, imbrex_exchange_kind kind, int64_t max_count, imbrex_type type,
                                   const imbrex_exchange_options* options, imbrex_collective** made) IMBREX_NOEXCEPT;

/// The ranks destroy it together, before the world. NULL is allowed.
imbrex_status imbrex_collective_destroy(imbrex_collective* collective) IMBREX_NOEXCEPT;

/// As imbrex_operator_run.
imbrex_status imbrex_collective_run(imbrex_collective* collective, const imbrex_operand* operands, size_t count,
                                    void* stream) IMBREX_NOEXCEPT;

/// Collective. `report->size` is set before. Refused for an all-reduce with RMSNorm, and after `no_report`.
imbrex_status imbrex_collective_report(imbrex_collective* collective, imbrex_report* report) IMBREX_NOEXCEPT;

/// Waits until the last call is complete; fails for what failed.
imbrex_status imbrex_collective_synchronize(imbrex_collective* collective) IMBREX_NOEXCEPT;

/// As for operators.
imbrex_device imbrex_collective_device(const imbrex_collective* collective) IMBREX_NOEXCEPT;
const char* imbrex_collective_why_cpu(const imbrex_collective* collective) IMBREX_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#include "imbrex/c/infer.h"

#endif
