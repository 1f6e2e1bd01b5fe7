// Whether GPUs are there for ranks.
#pragma once

#include "choose/choose_gpu.hpp"
#include "program/run.hpp"

namespace imbrex::program {

/// What keeps `ranks` processes or threads from a GPU each, as World and Executor would place them; empty if nothing
/// does. `own`: a launcher's rank may take the only GPU that it sees. Sets `gpus` where there are some. Starts nothing
/// that keeps this process from being forked, where ranks are to be forked. `others`, `ranks_per_gpu`: as
/// cuda::refusal_of_gpus.
std::string refusal_of_ranks(int ranks, bool threads, bool own, choose::GpuKind& gpus, bool others = false,
                             int ranks_per_gpu = 1);

/// Where such ranks work, if they need nothing but GPUs that reach each other: where `asked` says, or on GPUs if they
/// are there. Throws Error(invalid_input) where it asks for GPUs in vain.
Device device_of_ranks(Device asked, int ranks, bool threads, int ranks_per_gpu);

}  // namespace imbrex::program
