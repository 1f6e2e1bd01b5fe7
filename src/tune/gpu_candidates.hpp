// Plans worth measuring on GPUs.
#pragma once

#include "tune/choose.hpp"

namespace imbrex::tune {

/// Candidates for `problem` on Hopper GPUs, the library strategies first, others in tiles that have a kernel. What each
/// shape of problem needs was learnt by measuring (docs/cuda-executor.md).
std::vector<Candidate> gpu_candidates(const Problem& problem);

}  // namespace imbrex::tune
