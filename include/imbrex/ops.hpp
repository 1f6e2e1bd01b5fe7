// The operators: a GEMM and the collective that depends on it, on operands in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/operands.hpp"
#include "imbrex/options.hpp"
#include "imbrex/packed.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/timeline.hpp"
#include "imbrex/world.hpp"

namespace imbrex {

struct Machine;

/// Sizes of the whole GEMM; each operator below says what part of it a rank holds.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  Type type = Type::bf16;
  bool bias = false;             ///< a row that is added to every row of the output, as Problem's operators say
  Scales scales = Scales::none;  ///< type e4m3 only
  /// How B lies: row_major, K x N by rows; or column_major, N x K by rows, as a linear layer's weights lie. B of e4m3
  /// lies column_major, whatever is said here.
  Layout b_layout = Layout::row_major;
  /// Calls take any M from 1 to `m`, by which it divides by the ranks where `m` must, each its own.
  bool any_m = false;
  /// AllGatherGemm, without scales: N of a second and a third B, which one gathered A is multiplied by, too; 0: none.
  std::array<std::int64_t, max_products - 1> more_n{};
  bool gathered_a = false;  ///< AllGatherGemm: the gathered A is an output, "gathered"
  /// Elements from one row of "a", "b" and "out" to the next in memory (of B column_major: of N x K), the same on every
  /// rank and in every call; 0: no gaps. So an operand may be a slice of a wider tensor, and an output a block of its
  /// columns: what is between the rows is neither read nor written.
  std::int64_t lda = 0, ldb = 0, ldo = 0;
  std::array<std::int64_t, max_products - 1> more_ldb{}, more_ldo{};  ///< of "b1" and "b2", "out1" and "out2"
  /// GemmAllReduce, without `any_m` and `ldo`: "out" is a packed matrix, as packed_layout() says, which put_back takes
  /// (packed.hpp). The operator then runs a plan of strategy `signaled` with the knob `packed`, whose tiles' columns
  /// must divide N.
  bool packed = false;
};

struct OperatorOptions {
  std::optional<Strategy> strategy{};  ///< not set: the one measured, or else predicted, to be fastest
  std::optional<Knobs> knobs{};        ///< not set: chosen with the strategy
  CpuOptions cpu{};
  Device device = Device::automatic;
  CudaOptions cuda{};  ///< for the world's first operator on GPUs; later ones give the same, or none
  /// gemm_all_reduce and gemm_reduce_scatter: what the ranks' products are sent through to be summed, and the sums to
  /// be spread; a reduce-scatter has one phase, and the same codec twice. Not set: what the knobs say, or exact.
  /// Strategy fused sends no codes. Every group travels as codes: unlike AllReduce, operators take no tolerance.
  std::optional<CodecPair> codec = {};
  /// Names of the `knobs` that are kept, as plan files name them: {"tile_n"}. The others are chosen, as they would be
  /// without. Empty: all are kept. Unknown names are Error(invalid_input).
  std::vector<std::string> fixed_knobs = {};
  /// Not null: what runs, the same on every rank. It is a plan of the operator's problem that has passed check().
  /// Strategy, knobs and codec are the plan's, and none is given; nor is any_m. With `packed`, the plan says the
  /// blocks.
  std::shared_ptr<const Plan> plan = {};
};

/// What the four operators share. One object a rank; ranks make and destroy it together, and the world outlives it. The
/// calls of a rank, to all operators and collectives of the world, come from one thread at a time and in the same order
/// on every rank.
///
/// On GPUs the operators of a world share one executor, with one symmetric heap and its NCCL communicators, for as long
/// as the world lives. Making the first operator, and every call, makes the rank's GPU the calling thread's
/// (docs/operators.md says which one that is).
///
/// The constructors throw Error(invalid_input) for sizes that do not fit the operator or the number of ranks, and where
/// `device` insists on CUDA and something is missing. Where the ranks' operators, shapes or options differ, or one rank
/// refuses its own, every rank throws, naming the rank and the field.
///
/// With GemmShape::any_m, the rows of "a" say what M a call has, which is the same on every rank. No call needs a
/// collective set-up. Each rank makes the plan of an M when a call first has it. That takes a simulated run of every
/// candidate, unless strategy and knobs are given. Each rank keeps the plans of the 32 M called last, on GPUs if their
/// tables have room. Plans share memory, which is there when the operator is made. It suffices for the plans of `m`, a
/// half of it, a quarter and so on; on GPUs also for seven M between two of these. There, all operators of any M of a
/// world share one, as large as the largest needs, and where the plan of another M takes more, that of a larger M runs.
/// On the CPU, and where none serves, the call takes never used memory of the symmetric heap, and throws
/// Error(runtime_failure) on every rank where it is full; the operator stays usable. An M above `m`, or one that does
/// not divide by the ranks, is refused as operands are. If the ranks' M differ, ranks without the M of the rank that
/// came first refuse the call and name both. The call ends with Error(invalid_input) on every rank, like every call
/// that some ranks refuse.
///
/// On GPUs an operator of any M runs fused plans that store what they send, and plans of libraries: those of copy
/// engines, and of strategy signaled, work in memory of their own. They are chosen for the M that the operator was made
/// for alone, and refused with Error(invalid_input) where they are asked for.
/// The kernels that the sizes may choose are loaded, and communicators made, with the operator. The first call of an M
/// whose plan is a library's waits until this rank's calls are over. While a stream is captured, a call of an M that no
/// plan is kept for is refused with Error(invalid_input): call it once before. Plans whose calls were captured stay as
/// long as the operator, and on GPUs as the world, beside the 32.
///
/// No output shares a byte with another operand; rows may interleave. But "a" of an all-gather may be a rank's rows,
/// usually its own, of an output: of "gathered", or of one with as many columns, equally far apart. A call then works
/// on a copy of "a". The first such call takes memory for it, and is refused with Error(invalid_input) on a stream that
/// is captured.
///
/// Calls throw Error(invalid_input) for operands that do not fit, or that overlap in another way, naming operand, value
/// and rule, before anything is launched. A call that only some ranks refuse fails on all, with their reason, and the
/// next call works. A rank that had queued its call on a GPU gets the error after its next call, or from check or
/// synchronize. What the refused call wrote means nothing.
class GemmOperator {
 public:
  ~GemmOperator();
  GemmOperator(const GemmOperator&) = delete;
  GemmOperator& operator=(const GemmOperator&) = delete;

  /// This rank's operands, in order: "a", "b", "bias" if the shape has one, "a_scale" and "b_scale" if it has scales,
  /// "out"; of further B "b1", "bias1", "out1", "b2" and so on; "gathered". With any_m, those of the largest M, here
  /// and where none is given.
  const std::vector<OperandInfo>& operands() const;

  /// The operand of that name at `data`, where it lies as the shape says.
  Operand operand(std::string_view name, void* data) const;
  Operand operand(std::string_view name, const void* data) const;
  /// The operand of a call of that M. Throws Error(invalid_input) if the operator takes no such M.
  Operand operand(std::string_view name, void* data, std::int64_t m) const;
  Operand operand(std::string_view name, const void* data, std::int64_t m) const;

  /// On GPUs: queues the operator on `stream`, a stream of the rank's GPU, and returns. Operands lie in that GPU's
  /// memory, aligned to 16 bytes; "out" is complete when the stream has come past the call. The world's operators run
  /// one after another in the order of the calls, on whatever streams. While `stream` is captured, the call becomes
  /// part of the graph (docs/operators.md says what replays ask for). Kernels of others that wait for peers, such
  /// as NCCL's, are to be ordered with them by the caller. Throws Error(runtime_failure) for what failed before.
  ///
  /// On the CPU: operands lie in host memory, `stream` is null, and "out" is complete on return. Throws
  /// Error(runtime_failure) naming rank, task, signal, expected and seen if a wait passes its limit, or naming the lost
  /// rank; then every rank throws.
  void run(const Operands& operands, CudaStream stream = nullptr);

  /// As run, on a stream of the operator's own on GPUs, and waits until "out" is complete. Operands may also lie in
  /// host memory: they are copied to the GPU and back.
  Report run_and_wait(const Operands& operands);

  /// Collective, of an operator of one M. Seconds of a call of this rank, of `runs` calls one after another that have
  /// the GPUs to themselves: between two events on a stream of the operator's own, on which a graph of an even number
  /// of calls is replayed, after a few that let the ranks begin together. On the CPU: of `runs` calls. Operands lie
  /// where the operator works, and hold a result then. Throws as run.
  double time(const Operands& operands, int runs);

  /// Throws Error(runtime_failure) if a call is known to have failed, on any rank. Waits for no call; after a failure a
  /// few seconds, for what is under way to end.
  void check();

  /// Waits until `stream` is idle, then as check. On the CPU `stream` is null.
  void synchronize(CudaStream stream = nullptr);

  /// Collective, for operators with a codec. Waits as synchronize, and tells about the last call (on GPUs, of all
  /// operators of the world that were made alike): what the codec may have done to the sums of the ranks' products,
  /// each of which was rounded to the type of partial products (Knobs::partial). A bias comes after, with a rounding
  /// of its own. All zero where there is one rank, and before the first call. Throws Error(invalid_input) without a
  /// codec.
  CodecReport codec_report(CudaStream stream = nullptr);

  /// Collective. Memory for "out" where the operator works. On GPUs peers write it directly, which saves
  /// gemm_all_reduce and gemm_all_to_all a copy, if every rank's "out" is memory of one such call and has no gaps.
  /// Dropped by every rank, in one order, while the world lives.
  std::shared_ptr<void> allocate_output();

  /// How "out" lies; its array lives as long as the operator. Throws Error(invalid_input) unless made with
  /// GemmShape::packed.
  PackedLayout packed_layout() const;

  /// Collective, with any_m: from now on calls take any M up to `m`, where that is more than before. What is known of
  /// operands, plan and shapes is that of the new largest M then. Graphs that hold calls stay good: what their plans
  /// have of memory stays, too. The plan of the new largest M has no memory of its own. Throws Error(invalid_input),
  /// on every rank, without any_m or where the ranks' `m` differ, and what making an operator throws; then the operator
  /// is as it was.
  void grow(std::int64_t m);

  /// cpu or cuda.
  Device device() const;
  /// Why an operator made with Device::automatic works on the CPU; empty if it works on GPUs, or was told to.
  const std::string& why_cpu() const;
  /// All ranks' tasks; with any_m, those of the largest M. On GPUs the first call makes it: to run, a rank needs its
  /// own only.
  const Plan& plan() const;
  RankShapes shapes() const;
  /// On GPUs: what computes the products, a kernel as CudaOptions::kernel names it or the libraries. Else empty.
  std::string_view kernel_name() const;

 protected:
  GemmOperator(World& world, Operator op, const GemmShape& shape, const OperatorOptions& options);

 private:
  struct State;
  static std::unique_ptr<State> make(World& world, Operator op, const GemmShape& shape, const OperatorOptions& options,
                                     bool own_memory);
  std::unique_ptr<State> state_;
  std::vector<std::unique_ptr<State>> outgrown_;  // that graphs may hold
};

/// A: M/R x K, B: K x N/R -> M x N/R; M and N divide by the ranks. With `more_n`, each B of the list has an output, and
/// a bias where the shape has one; A travels once for all. With `gathered_a`: the gathered A, M x K.
class AllGatherGemm : public GemmOperator {
 public:
  AllGatherGemm(World& world, const GemmShape& shape, const OperatorOptions& options = {});
};

/// A: M x K/R, B: K/R x N -> M/R x N; M and K divide by the ranks.
class GemmReduceScatter : public GemmOperator {
 public:
  GemmReduceScatter(World& world, const GemmShape& shape, const OperatorOptions& options = {});
};

/// A: M x K/R, B: K/R x N -> M x N on every rank; K divides by the ranks.
class GemmAllReduce : public GemmOperator {
 public:
  GemmAllReduce(World& world, const GemmShape& shape, const OperatorOptions& options = {});
};

/// A: M x K, B: K x N -> M x N, row block s from rank s; M divides by the ranks. Unlike the others' sizes, M, N and K
/// are those of each rank's own product.
class GemmAllToAll : public GemmOperator {
 public:
  GemmAllToAll(World& world, const GemmShape& shape, const OperatorOptions& options = {});
};

/// The operator of that kind: one of those above.
std::unique_ptr<GemmOperator> make_operator(World& world, Operator op, const GemmShape& shape,
                                            const OperatorOptions& options = {});

/// Collective: gives the world's GPU memory back to the driver, on every rank, until it is needed again: the symmetric
/// heap of all operators, and the workspace of all collectives. Waits until the calls and replays of all ranks are
/// over; no stream of the process is being captured. Pieces of the heap that hold memory of allocate_output stay, with
/// what lies there; so do tables of plans, streams, what operators hold beside the heap, and what cuBLASLt and NCCL
/// have taken.
///
/// Operators, collectives and graphs stay good. The next call of any of them, which all ranks make, takes new memory at
/// the same addresses, as restore does; on a stream that is being captured it is refused with Error(invalid_input).
/// Until then no graph that holds calls of the world is replayed: it would touch addresses without memory, which ends
/// the process's use of the GPU. Graphs that are replayed after restore give the bits that they gave before.
///
/// The thread that makes the world's calls. On the CPU, and where the world has nothing on GPUs, it does nothing but
/// agree. Throws Error(invalid_input), on every rank, where ranks share GPUs, and where not all of them trim: what the
/// others called instead is refused; Error(runtime_failure) where the world failed.
void trim(World& world);

/// Collective: brings back what trim gave, at the same addresses. Returns when replays may follow, on every rank.
/// Nothing but an agreement where nothing is trimmed. Throws as trim; and Error(runtime_failure) where a GPU has no
/// memory left, on every rank: the world stays trimmed then, and a later call or restore may bring it back.
void restore(World& world);

/// Collective. Brings the ranks' measured spans together on rank 0, shifted so that the first begins at 0; empty on the
/// others. Takes about 150 bytes of the symmetric heap for each of the longest rank's spans, until it returns.
std::vector<Span> gather_spans(World& world, const std::vector<Span>& own);

/// The plan that an operator with these options runs on `machine`. Simulation chooses what the options leave open.
Plan choose_plan(const Problem& problem, const Machine& machine, const OperatorOptions& options = {});

}  // namespace imbrex
