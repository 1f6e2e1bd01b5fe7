// The compiled kernels as a GPU has them, in a text: what choosing among them takes, where there is no GPU.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "execute/cuda/products/kernel_choice.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::test {

struct ListedKernel {
  cuda::KernelVariant variant;
  int workers = 0;  ///< clusters that run at once on the GPU
};

struct KernelList {
  std::string about;                        ///< one line: the GPU, and how its workers are known
  int generation = 0;                       ///< the major number of its compute capability
  std::vector<ListedKernel> kernels;        ///< in the order of the build's, the plain ones last
  std::shared_ptr<const std::string> text;  ///< where the names lie
};

/// A line a kernel, which bench/kernel_list.cpp writes; parse_kernel_list reads it.
std::string to_text(const KernelList& list);

/// Throws Error(invalid_input) naming `where`, the line and the rule.
KernelList parse_kernel_list(std::string text, std::string_view where);

/// The list in that file.
KernelList read_kernel_list(const std::string& path);

/// What choosing among them asks for, for plans of a type. `list` outlives it.
cuda::Kernels kernels_for(const KernelList& list, Type type);

/// The name of what multiplies where the CUDA executor runs the plan on such GPUs: rank 0 chooses, by its own tasks.
/// Throws Error(invalid_input) where the executor would refuse.
std::string kernel_of(plan::TaskStream& tasks, const KernelList& list);

}  // namespace imbrex::test
