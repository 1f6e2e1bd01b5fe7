// The kernels of a build with CUDA, as a list.
#pragma once

#include <vector>

#include "execute/cuda/products/gemm.hpp"
#include "support/kernel_list.hpp"

namespace imbrex::test {

/// With the workers that they have on the current device; without a GPU they have none.
inline std::vector<ListedKernel> build_kernels() {
  std::vector<ListedKernel> list;
  const auto add = [&](const cuda::GemmKernel& kernel) { list.push_back({kernel, kernel.workers()}); };
  for (const cuda::GemmKernel* kernel : cuda::tensor_core_kernels()) add(*kernel);
  for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3}) add(cuda::plain_kernel(type));
  return list;
}

}  // namespace imbrex::test
