// Plans worth measuring on GPUs.
#pragma once

#include "choose/choose.hpp"

namespace imbrex::choose {

/// Candidates for `problem` on Hopper GPUs, the library strategies first, others in tiles that have a kernel. What each
/// shape of problem needs was learnt by measuring (docs/dev/cuda-executor.md).
std::vector<plan::Candidate> gpu_candidates(const Problem& problem);

}  // namespace imbrex::choose
