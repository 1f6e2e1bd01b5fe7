// Where a plan's buffers lie, as one rank's tables say it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "execute/cuda/tables/table.hpp"
#include "execute/layout.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

/// What all regions of a buffer share, in bytes.
struct BufferPlace {
  std::uint64_t address = 0;  ///< of rank 0's first element, relative to `base`
  std::uint64_t rank_stride = 0, copy_stride = 0, row_stride = 0, element = 0;
  std::uint64_t pitch = 0;  ///< from row to row, as tasks go through them: a bias has one row for all
  Base base = Base::heap;
  std::uint32_t output = 0;  ///< of outputs and biases: TaskEntry::output of the tasks that touch it
};

/// By buffer. As translate's. Throws Error(invalid_input) where other ranks touch another output than `out`.
std::vector<BufferPlace> places_of(const Plan& frame, const execute::HeapLayout& layout, int rank,
                                   const HeapHandle& heap, std::size_t offset);

}  // namespace imbrex::cuda
