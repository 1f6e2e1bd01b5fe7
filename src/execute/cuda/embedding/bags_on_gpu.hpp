// Work of the kind `bags` on GPUs.
#pragma once

#include "execute/cuda/work_on_gpu.hpp"

namespace imbrex::cuda {

WorkOnGpu bags_on_gpu();

}  // namespace imbrex::cuda
