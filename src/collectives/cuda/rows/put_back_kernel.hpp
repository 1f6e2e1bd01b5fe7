// What a launch of a row operation is, and who has the kernels.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "collectives/rms_norm.hpp"
#include "imbrex/packed.hpp"

namespace imbrex::collectives {

/// By value into the kernel. Lengths are in packets.
struct PutBackArgs {
  const uint4 *in, *residual, *by_column;  ///< by_column: the weight or the bias; null: there is none
  uint4 *residual_out, *out;
  const std::int32_t* first_rows;  ///< null: the matrix is one block
  std::uint32_t rows, row, block_rows, block_row, across;
  float hidden, eps;
};

/// `batches`: packets of a thread. A block has the threads of a RowShape.
const void* put_back_kernel(Type type, RowOperation operation, std::uint32_t batches);

}  // namespace imbrex::collectives
