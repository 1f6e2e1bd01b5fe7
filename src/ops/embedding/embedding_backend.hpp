// Where an embedding works.
#pragma once

#include <cstdint>
#include <memory>

#include "imbrex/embedding.hpp"
#include "ops/embedding/embedding_operands.hpp"
#include "ops/world_gpus.hpp"

namespace imbrex::ops {

/// One rank's; all calls are the world's, in one order.
class EmbeddingBackend {
 public:
  virtual ~EmbeddingBackend() = default;

  /// What `rules` make of the operands of the next call. Throws Error(invalid_input) for what it does not take; a CPU
  /// reads the bags too, and every rank throws what one does. `rate`: of an update, else 0.
  virtual const EmbeddingCall& resolve(EmbeddingRules& rules, const Operands& operands, float rate,
                                       CudaStream stream) = 0;

  /// Says whether the call that is made now waits for the other ranks before it is queued.
  virtual bool meets(const EmbeddingCall& call) const = 0;
  virtual void run(const EmbeddingCall& call, CudaStream stream) = 0;
  virtual void update(const EmbeddingCall& call, float rate, CudaStream stream) = 0;

  /// Waits for the calls: this rank's ignored indices since the last time. Throws Error(invalid_input) for misfits that
  /// it found and that are refused.
  virtual std::int64_t take_ignored() = 0;

  virtual void check() = 0;
  virtual void synchronize(CudaStream stream) = 0;
  virtual std::shared_ptr<void> allocate_output(std::size_t bytes) = 0;

  /// On GPUs: this rank's, and the place of a call's output.
  virtual int gpu() const { return -1; }
  virtual LentOutput lent_output(std::uint64_t) { return {}; }
};

/// Collective, as the operator's constructor. Strategy, knobs and the largest batch's plan are set. `made`: it is what
/// they make, and other batches have theirs.
std::unique_ptr<EmbeddingBackend> make_cpu_embedding(World& world, const EmbeddingShape& shape, const Problem& problem,
                                                     const OperatorOptions& options, bool made);

/// The backend on the world's GPUs, which it has. Throws Error(invalid_input) where the executor does not run the plan.
std::unique_ptr<EmbeddingBackend> make_gpu_embedding(World& world, std::shared_ptr<WorldGpus> gpus,
                                                     const EmbeddingShape& shape, const Problem& problem,
                                                     const OperatorOptions& options, bool made);

/// What the columns of an update's gradients are exchanged as: blocks of part_rows x width for every rank, in which
/// those of its shards lie side by side.
class GradientBlocks {
 public:
  explicit GradientBlocks(const Problem& problem);

  /// Elements of a row of a block.
  std::int64_t width() const { return width_; }

  /// Runs of columns: from `to` of the gradients to `from` of the block for `rank`.
  std::vector<problem::Run> runs(int rank) const;

 private:
  std::vector<problem::OwnShards> own_;
  std::int64_t width_ = 0;
};

}  // namespace imbrex::ops
