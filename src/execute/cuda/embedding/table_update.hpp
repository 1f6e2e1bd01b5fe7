// Updates of tables on GPUs. Built everywhere.
#pragma once

#include <cstdint>
#include <memory>

#include "embedding/update.hpp"
#include "imbrex/options.hpp"
#include "plan/bags.hpp"

namespace imbrex::cuda {

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

  /// As Execution::take_misfits.
  virtual std::int64_t take_misfits(Misfits misfits) = 0;
};

/// `tables`: without addresses. Takes memory for calls of up to `most_indices`, and more once a call has more. Throws
/// Error(invalid_input) in a build without CUDA.
std::unique_ptr<TableUpdate> make_table_update(const embedding::Tables& tables, const embedding::Step& step,
                                               std::int64_t batch, std::int64_t most_indices);

}  // namespace imbrex::cuda
