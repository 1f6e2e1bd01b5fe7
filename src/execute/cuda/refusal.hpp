// Whether the CUDA executor would run a job, told before any rank starts and without a GPU. Built everywhere.
#pragma once

#include <string>
#include <string_view>

#include "imbrex/gpu.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::cuda {

/// What the executor does not run in a plan that passed check_format; empty if it runs it.
std::string refusal_of_plan(const Plan& plan);

/// Why plans of library strategies do not add the problem's bias; empty if they do.
std::string refusal_of_library_bias(const Problem& problem);

/// What keeps that many ranks from running on the GPUs that this process sees; empty if nothing does. `processes`:
/// ranks are processes, whose memory travels as file descriptors. `own`: each may see only its own GPU. `others`: of
/// other generations than Hopper, which run plans, and no collectives of Imbrex' own. `ranks_per_gpu` of them share
/// one.
std::string refusal_of_gpus(const GpuSurvey& survey, int ranks, bool processes, bool own, bool others = false,
                            int ranks_per_gpu = 1);

/// The refusal of the GPU that a rank's options name: `gpu` of the survey's, which has some.
std::string refusal_of_given_gpu(const GpuSurvey& survey, int gpu, bool processes);

/// What ranks that share GPUs do not run in a plan that passed check_format; empty if they run it, or have a GPU each.
/// `processes`: as above; library collectives tell ranks by them.
std::string refusal_of_sharing(const Plan& plan, int ranks_per_gpu, bool processes);

/// What plans that take turns, those of an operator of any M, do not run; empty if they run it. Copies of a plan whose
/// tasks are not stored are found when these are translated.
std::string refusal_of_turns(const Plan& plan);

/// What it says of copy engines.
std::string_view refusal_of_copies_in_turns();

/// What the refusal of sharing says of copy engines between ranks, and of library collectives of ranks that are
/// threads.
std::string refusal_of_shared_copies(int ranks_per_gpu);
std::string refusal_of_shared_libraries(int ranks_per_gpu);

}  // namespace imbrex::cuda
