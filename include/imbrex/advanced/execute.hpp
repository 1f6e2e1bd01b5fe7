// Running a plan: one interface, several executors. For programs that make plans of their own; operators
// (imbrex/ops.hpp) choose and run theirs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "imbrex/codec.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/options.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/tables.hpp"
#include "imbrex/timeline.hpp"

namespace imbrex {

class World;

namespace plan {
class TaskStream;
}

/// Makes the tasks of a plan, one after another or all at once (src/plan/task_stream.hpp).
using TaskMaker = std::function<std::unique_ptr<plan::TaskStream>()>;

/// Where one rank's operands lie, as operands_of(problem) lists them; those that the problem has not are null. A
/// simulated run takes none. An executor says where the memory must live (host memory for the CPU executor). No output
/// overlaps another operand, which executors do not look for.
struct Addresses {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  const void* bias = nullptr;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;

  /// The operands that a further B brings.
  struct Further {
    const void* b = nullptr;
    const void* bias = nullptr;
    void* out = nullptr;

    bool operator==(const Further&) const = default;
  };
  std::array<Further, max_products - 1> more{};
  void* gathered = nullptr;

  /// Operands of an operator that multiplies no matrices, in the order of operands_of; it takes none of the above.
  std::array<void*, 8> others{};
  /// What blocks of a registered kind take beside operands, such as tables and indices; the kind says what it points
  /// to.
  const void* given = nullptr;

  /// Where `a` lies at the place of a rank's rows of an output: memory that an epoch first copies its rows to, and
  /// reads them from, as far apart as they are. Null: `a` is read where it lies, and no output overlaps it.
  struct Aside {
    void* memory = nullptr;
    std::size_t rows = 0, row_bytes = 0, pitch = 0;  ///< of `a`, in bytes

    bool operator==(const Aside&) const = default;
  };
  Aside aside{};

  bool operator==(const Addresses&) const = default;
};

/// A plan made ready to run any number of times; each run is one epoch.
class Execution {
 public:
  virtual ~Execution() = default;

  /// Runs one epoch. Collective: every rank of the world calls it, in the same order among executions. Returns when
  /// this rank's output is complete. Throws Error(runtime_failure) naming rank, task, signal, expected and seen
  /// if a wait passes its limit, or naming the lost rank; then every rank throws, and the execution is dead.
  virtual Report run(const Addresses& operands) = 0;

  /// Seconds an epoch of this rank, of `runs` epochs one after the other. Collective, and as run. On GPUs the epochs
  /// are replayed from a captured graph, and those that the clock does not count go before them; `runs` must be even.
  virtual double time(const Addresses& operands, int runs);

  /// On GPUs: queues one epoch on `stream`, of this rank's GPU, and returns; nothing waits for the host. `out` is
  /// complete when the stream has come past it. Collective, as run. Epochs of all executions of an executor run in the
  /// order in which they were queued, whatever their streams; the ranks queue them in one order. While `stream` is
  /// captured, the epoch becomes part of the graph (docs/operators.md says what its replays ask for). Throws what
  /// failed before; what fails later is thrown by the next call, by check or by synchronize. Throws
  /// Error(invalid_input) where the executor has no streams.
  virtual void enqueue(const Addresses& operands, CudaStream stream);

  /// Throws Error(invalid_input) where enqueue would refuse `stream`; queues nothing.
  virtual void expect_stream(CudaStream stream);

  /// This rank's part of what the last epoch's collectives through codecs did, once it is complete: its errors and
  /// counts are those of what this rank summed. All zero where there were none.
  virtual CodecReport codec_report();

  /// Waits for the calls, and counts this rank's indices since the last time that name no row of their table: what
  /// GPUs find only as they look up. Throws Error(invalid_input) for them where `misfits` refuses them. 0 from
  /// executions that look nothing up on a GPU.
  virtual std::int64_t take_misfits(Misfits misfits);

  /// On GPUs: what computes the products, a kernel as CudaOptions::kernel names it or the libraries. Else empty.
  virtual std::string_view kernel_name() const { return {}; }

  /// Throws Error(runtime_failure) as run does, if an epoch that was queued is known to have failed. Waits for no
  /// epoch; after a failure a few seconds, for what is under way to end.
  virtual void check();

  /// Waits until `stream` is idle, then as check. Ends when another rank fails.
  virtual void synchronize(CudaStream stream);
};

class Executor {
 public:
  virtual ~Executor() = default;

  /// Collective. Throws Error(invalid_input) if the plan's ranks are not the world's, its buffers do not fit, the
  /// executor does not run one of its tasks, or the ranks' plans differ; every rank throws then, naming the rank that
  /// differs or refuses, and the field.
  std::unique_ptr<Execution> prepare(const Plan& plan);

  /// As prepare(const Plan&), but the execution keeps the plan instead of a copy, which for large plans takes as long
  /// as making them.
  std::unique_ptr<Execution> prepare(std::shared_ptr<const Plan> plan);

  /// Prepares tasks that come one by one, which `make` makes: the two other functions, and all of Imbrex, go
  /// through. What `make` throws on one rank every rank throws.
  virtual std::unique_ptr<Execution> prepare_tasks(const TaskMaker& make) = 0;

  /// Collective, of the same size on every rank. Memory for `out` that peers can write: if every rank's `out` is such
  /// memory of one call, gemm_all_reduce and gemm_all_to_all save a copy of the output. Null where the executor has
  /// nothing to gain by it. To be dropped before the executor, on every rank.
  virtual std::shared_ptr<void> allocate_output(std::size_t bytes);
};

/// Ranks are the world's processes or threads; regions live in its symmetric heap; products come from a BLAS.
/// The executor keeps a reference to `world`. One thread per rank calls it.
std::unique_ptr<Executor> make_cpu_executor(World& world, const CpuOptions& options = {});

/// Ranks are processes or threads. A rank takes the GPU that its world's options name. Otherwise rank r takes GPU r if
/// its process sees one for every rank, or its process's only GPU if a launcher shows it one; with `ranks_per_gpu`, GPU
/// r / ranks_per_gpu. Operands live in that GPU's memory, aligned to 16 bytes. Waits are bounded by the world's limit.
/// Plans of strategy `fused` that push or store operands, or store results, run on Imbrex' kernels (on tensor cores for
/// 16-bit types in rows of whole 16 bytes). Plans with library collectives run on cuBLASLt and NCCL, which every rank's
/// environment must allow (docs/operators.md). Those of strategy `signaled` run on both. prepare refuses others with
/// Error(invalid_input), which says what is missing. Collective; `options` are the same on every rank, except delays.
/// Throws Error(runtime_failure) where there are too few GPUs, more ranks than `ranks_per_gpu` have the same one, or
/// one cannot reach another's memory, and Error(invalid_input) in a build without CUDA. A process that forks its ranks
/// must not use CUDA before.
std::unique_ptr<Executor> make_cuda_executor(World& world, const CudaOptions& options = {});

struct SimulateOptions {
  bool timeline = false;
  std::uint64_t skew_seed = 0;  ///< not 0: ranks start at random times
  double max_skew = 0;          ///< latest start, seconds
};

/// Runs plans in virtual time on `machine`. Needs no world; run() ignores its operands.
std::unique_ptr<Executor> make_simulator(const Machine& machine, const SimulateOptions& options = {});

}  // namespace imbrex
