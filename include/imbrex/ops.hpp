// The operators: a GEMM and the collective that depends on it, on operands in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "imbrex/execute.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace imbrex {

/// Global sizes; include/imbrex/plan.hpp tells what each rank holds.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  Type type = Type::bf16;
  bool bias = false;             ///< calls give a bias, which is added as Problem's operators say
  Scales scales = Scales::none;  ///< of e4m3: calls give scales
};

struct OperatorOptions {
  std::optional<Strategy> strategy;  ///< not set: the one predicted to be fastest on this machine
  std::optional<Knobs> knobs;        ///< not set: chosen with the strategy
  CpuOptions cpu;
  Device device = Device::automatic;
  CudaOptions cuda{};  ///< of the world's first operator on GPUs; later ones give the same, or none
};

/// What the four operators share. Made and destroyed collectively by the world's ranks, which must outlive it; each
/// rank's calls, on all operators of the world, come from one thread at a time. On GPUs the operators of a world share
/// one executor, with one symmetric heap and its NCCL communicators, for as long as the world lives; making the
/// first one, and every call, makes the rank's GPU (docs/cuda-executor.md) the calling thread's. Throws
/// Error(invalid_input) for sizes that do not fit the operator or the number of ranks, and naming what is missing where
/// `device` insists on CUDA. Where the ranks' operators, shapes or options differ, or one rank refuses its own, every
/// rank throws, naming the rank and the field.
class GemmOperator {
 public:
  ~GemmOperator();
  GemmOperator(const GemmOperator&) = delete;
  GemmOperator& operator=(const GemmOperator&) = delete;

  /// Collective. `a`, `b` and `out` are this rank's operands, as Operands has them; `out` is complete on return. On the
  /// CPU they lie in host memory, on GPUs anywhere: what is in host memory is copied to the GPU and back, on the
  /// default stream. Throws Error(runtime_failure) as Execution::run does.
  Report operator()(const void* a, const void* b, void* out);

  /// The same of a shape with a bias: a row as wide as the output, of its type.
  Report operator()(const void* a, const void* b, const void* bias, void* out);

  /// The same of any shape; e4m3 with scales is called so.
  Report operator()(const Operands& operands);

  /// On GPUs: queues the operator on `stream`, of the rank's GPU, and returns; operands lie in that GPU's memory,
  /// aligned to 16 bytes. Order, graphs and failures are as Execution::enqueue says: the world's operators run one
  /// after another, in the order of the calls, which is the same on every rank, on whatever streams. Kernels of others
  /// that wait for peers, such as NCCL's, are to be ordered with them by the caller. Throws Error(invalid_input) on the
  /// CPU, and naming both GPUs where the stream or an operand is another one's.
  void operator()(const void* a, const void* b, void* out, CudaStream stream);
  void operator()(const void* a, const void* b, const void* bias, void* out, CudaStream stream);
  void operator()(const Operands& operands, CudaStream stream);

  /// Throws Error(runtime_failure) if a queued call is known to have failed, on any rank. Waits for no call; after a
  /// failure a few seconds, for what is under way to end.
  void check();

  /// Waits until `stream` is idle, then as check.
  void synchronize(CudaStream stream);

  /// Collective. Memory for `out` where the operator works; on GPUs peers write it directly, which saves
  /// gemm_all_reduce and gemm_all_to_all a copy, if every rank's `out` is memory of one such call. Dropped by every
  /// rank, in one order, while the world lives.
  std::shared_ptr<void> allocate_output();

  /// cpu or cuda.
  Device device() const;
  /// All ranks' tasks. On GPUs the first call makes it: to run, a rank needs its own only.
  const Plan& plan() const;
  RankShapes shapes() const;

 protected:
  GemmOperator(World& world, const Problem& problem, const OperatorOptions& options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A: M/R x K, B: K x N/R -> M x N/R; M and N divide by the ranks.
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

/// A: M x K, B: K x N -> M x N, row block s from rank s; M divides by the ranks.
class GemmAllToAll : public GemmOperator {
 public:
  GemmAllToAll(World& world, const GemmShape& shape, const OperatorOptions& options = {});
};

/// Collective. Brings the ranks' measured spans together on rank 0, shifted so that the first begins at 0; empty on the
/// others. Takes about 150 bytes of the symmetric heap for each of the longest rank's spans, until it returns.
std::vector<Span> gather_spans(World& world, const std::vector<Span>& own);

/// The plan that an operator without given strategy and knobs runs on `machine`.
Plan choose_plan(const Problem& problem, const Machine& machine, const OperatorOptions& options = {});

}  // namespace imbrex
