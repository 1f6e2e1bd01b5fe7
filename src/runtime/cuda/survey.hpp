// What survey_gpus shares with callers that need not fork.
#pragma once

#include "imbrex/gpu.hpp"

namespace imbrex::runtime {

/// As survey_gpus, but in this process, which must not be forked for work with CUDA any more.
GpuSurvey survey_gpus_here();

}  // namespace imbrex::runtime
