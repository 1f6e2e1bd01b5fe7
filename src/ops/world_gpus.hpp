// The GPUs of a world, for all its operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "execute/cuda/pooled_plans.hpp"
#include "execute/cuda/world_executor.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/world.hpp"
#include "ops/plans_by_size.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex::ops {

/// What was asked for; a codec is in given knobs, too. A plan that is given says the rest.
struct PlanRequest {
  std::optional<Strategy> strategy;
  plan::GivenKnobs knobs;
  std::optional<CodecPair> codec;
  std::shared_ptr<const Plan> plan{};

  bool operator==(const PlanRequest&) const = default;
};

/// What operators of one problem and one request share: their calls never overlap.
struct GpuOperation {
  Problem problem;
  PlanRequest request;
  bool any_m = false;
  /// For a copy of A, once a call had it in an output; longer there than what may read it.
  std::unique_ptr<runtime::DeviceMemory> aside{};
  plan::Candidate chosen{};                    ///< what runs: make_plan's plan; with any M, for the largest
  std::unique_ptr<cuda::PooledPlans> plans{};  ///< with any M
  std::shared_ptr<Execution> own{};            ///< of the problem's M, in memory of its own; null: it takes turns
  std::optional<PlansBySize> by_size{};        ///< with any M, of all that take turns

  bool has_own(std::int64_t m) const { return own != nullptr && m == problem.m; }
  bool keeps(std::int64_t m) const { return has_own(m) || by_size->has(m); }
  Execution& at(std::int64_t m) { return has_own(m) ? *own : by_size->at(m); }

  /// One that tells of failures, and waits for calls: all of an operation fail together.
  Execution& any() {
    Execution* const last = by_size ? by_size->last() : nullptr;
    return last != nullptr ? *last : at(problem.m);
  }

  /// As Execution's.
  void expect_stream(CudaStream stream) const { plans ? plans->expect_stream(stream) : own->expect_stream(stream); }

  /// Throws Error(invalid_input) where a call of that M cannot be put on the stream: it is captured, and no plan kept.
  void expect_ready(std::int64_t m, CudaStream stream) const {
    if (!keeps(m)) plans->expect_uncaptured(stream, m);
  }

  /// Memory for a copy of A, of `bytes` that are the same in every call, which is put on the stream. Throws
  /// Error(invalid_input) where it is captured, and no memory there yet.
  void* memory_aside(std::size_t bytes, CudaStream stream, int gpu);
};

struct WorldGpus {
  std::string refusal;   ///< why the ranks cannot have their GPUs, the same on all; empty if they can
  choose::GpuKind gpus;  ///< all ranks'
  bool leads = false;    ///< this is rank 0, which notes sizes without a tuning entry
  CudaOptions options;
  std::unique_ptr<cuda::WorldExecutor> executor;  ///< null where refused
  int own_gpu = -1;                               ///< number of this rank's, where there is an executor
  std::vector<std::weak_ptr<GpuOperation>> operations;

  /// Collective. The operation that exists, or a new one, by rank 0's choice of a plan. Throws Error(invalid_input)
  /// where the executor does not run the plan.
  std::shared_ptr<GpuOperation> operation(World& world, const Problem& problem, const PlanRequest& request);

  /// Collective. The same for any M up to the problem's: plans for the Ms met are made later, by each rank for itself.
  /// All operations of the world take turns in one memory. `own_memory`: the plan of the largest M may have memory of
  /// its own, where the one that is chosen takes no turns.
  std::shared_ptr<GpuOperation> operation_of_any_m(World& world, const Problem& problem, const PlanRequest& request,
                                                   bool own_memory);

 private:
  void note(const Problem& problem, const PlanRequest& request) const;
  std::size_t table_bytes() const;
  void make_room(const Problem& problem, std::int64_t m);
  std::shared_ptr<GpuOperation> find(const Problem& problem, const PlanRequest& request, bool any_m);
  cuda::PlanToRun plan_of(const Problem& largest, const PlanRequest& request, std::int64_t m) const;
  cuda::PlanToRun plan_in_turn(const GpuOperation& operation, std::int64_t m) const;
  std::shared_ptr<Execution> prepare_in_turn(const GpuOperation& operation, std::int64_t m);
  void prepare_any_m(World& world, GpuOperation& operation);
  void prepare_largest(World& world, GpuOperation& operation, bool own_memory);

  std::uint64_t clock_ = 0;  // of calls of operations of any M
};

/// Collective. Made by the first call and kept with the world. Throws Error(invalid_input) for `options` that are
/// neither default nor those of the first call, and Error(runtime_failure) as make_cuda_executor.
std::shared_ptr<WorldGpus> gpus_of(World& world, const CudaOptions& options);

/// Memory of allocate_output that a call which a rank stands in for is stored into: what lies there comes back.
class LentOutput {
 public:
  /// `place` as runtime::Calls::place; `bytes` of an output.
  LentOutput() = default;
  LentOutput(WorldGpus& gpus, std::uint64_t place, std::size_t bytes);
  ~LentOutput();
  LentOutput(LentOutput&&) = default;

  explicit operator bool() const { return memory_ != nullptr; }
  void* get() const { return memory_->get(); }

 private:
  std::unique_ptr<runtime::DeviceMemory> memory_;
  std::vector<std::byte> before_;
};

/// Collective: why the ranks cannot have a GPU each, the same on all; empty if they can.
std::string why_no_gpus(World& world);

}  // namespace imbrex::ops
