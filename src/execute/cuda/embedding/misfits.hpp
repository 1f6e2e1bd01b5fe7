// What else than a run is asked of lookups on GPUs, and updates there. Built everywhere.
#pragma once

#include <cstdint>
#include <memory>

#include "embedding/update.hpp"
#include "execute/cuda/work_on_gpu.hpp"
#include "imbrex/advanced/execute.hpp"
#include "plan/bags.hpp"

namespace imbrex::cuda {

/// What an execution of lookups alone may be asked.
class FindsMisfits {
 public:
  virtual ~FindsMisfits() = default;

  /// Waits for the calls: this rank's ignored indices since the last time. Throws as check_bags for what was found.
  virtual std::int64_t take_misfits(Misfits misfits) = 0;
};

/// Lookups among the steps of a plan with library queues.
class BagBlocks : public BlockSteps {
 public:
  /// As above, of blocks that are over or on `stream`.
  virtual std::int64_t take_misfits(Misfits misfits, CudaStream stream) = 0;
};

/// FindsMisfits::take_misfits of any execution; 0 from one that looks nothing up on a GPU.
inline std::int64_t take_misfits(Execution& execution, Misfits misfits) {
  if (auto* alone = dynamic_cast<FindsMisfits*>(&execution)) return alone->take_misfits(misfits);
  std::int64_t found = 0;
  if (auto* holder = dynamic_cast<HoldsBlockSteps*>(&execution))
    holder->visit_steps(plan::bags_kind, [&](BlockSteps& steps, CudaStream stream) {
      found = static_cast<BagBlocks&>(steps).take_misfits(misfits, stream);
    });
  return found;
}

/// Updates of a rank's tables on the current GPU.
class TableUpdate {
 public:
  virtual ~TableUpdate() = default;

  /// Packs columns of `gradients`, [rows, pitch] elements of a type of `element` bytes, into the block at `to`,
  /// [rows, width].
  struct Copy {
    const void* from;
    void* to;
    std::int64_t rows, cols, pitch, width, element;
  };
  virtual void copy(const Copy& copy, CudaStream stream) = 0;

  /// Queues an update. `gradients.parts`, the tables and states are arrays of the host.
  virtual void launch(const plan::RankBags& bags, const embedding::Output& gradients, const embedding::Step& step,
                      CudaStream stream) = 0;

  /// As FindsMisfits::take_misfits.
  virtual std::int64_t take_misfits(Misfits misfits) = 0;
};

/// `tables`: without addresses. Takes memory for calls of up to `most_indices`, and more once a call has more. Throws
/// Error(invalid_input) in a build without CUDA.
std::unique_ptr<TableUpdate> make_table_update(const embedding::Tables& tables, const embedding::Step& step,
                                               std::int64_t batch, std::int64_t most_indices);

}  // namespace imbrex::cuda
