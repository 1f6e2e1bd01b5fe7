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
};

struct OperatorOptions {
  std::optional<Strategy> strategy;  ///< not set: the one predicted to be fastest on this machine
  std::optional<Knobs> knobs;        ///< not set: chosen with the strategy
  CpuOptions cpu;
};

/// What the four operators share. Made collectively by the world's ranks, which must outlive it; each rank's calls come
/// from one thread. Throws Error(invalid_input) for sizes that do not fit the operator or the number of ranks.
class GemmOperator {
 public:
  ~GemmOperator();
  GemmOperator(const GemmOperator&) = delete;
  GemmOperator& operator=(const GemmOperator&) = delete;

  /// Collective. `a`, `b` and `out` are this rank's row-major operands of the shape's type, in host memory; `out` is
  /// complete on return. Throws Error(runtime_failure) as Execution::run does.
  Report operator()(const void* a, const void* b, void* out);

  const Plan& plan() const;
  RankShapes shapes() const { return shapes_of(plan().problem); }

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
