// Row operations on packed matrices (imbrex/packed.hpp), checked and with addresses in place of views.
#pragma once

#include "imbrex/packed.hpp"

namespace imbrex::collectives {

/// Absent operands are null.
struct RowWork {
  RowOperation operation = RowOperation::copy;
  PackedLayout layout{};
  Type type = Type::bf16;
  float eps = 0;
  const void *in = nullptr, *residual = nullptr, *weight = nullptr, *bias = nullptr;
  void *residual_out = nullptr, *out = nullptr;
};

/// On the calling thread.
void put_back_on_cpu(const RowWork& work);

/// Throws Error(runtime_failure) where CUDA refuses the launch, and Error(invalid_input) in a build without CUDA.
void put_back_on_gpu(const RowWork& work, CudaStream stream);

}  // namespace imbrex::collectives
