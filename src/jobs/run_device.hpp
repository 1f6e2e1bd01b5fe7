// Which device a request runs on, and by which plan.
#pragma once

#include "choose/choose_gpu.hpp"
#include "jobs/run.hpp"

namespace imbrex::jobs {

struct Choice {
  Device device;
  Plan plan;
};

/// Decides what `request.device` leaves open and chooses the plan for the device, unless the request brings one. Starts
/// nothing that keeps this process from being forked if the ranks are to be forked. Throws Error(invalid_input) naming
/// what is missing where the request insists on CUDA.
Choice choose_device(const RunRequest& request, const Problem& problem);

/// What keeps `ranks` processes or threads from a GPU each, as World and Executor would place them; empty if nothing
/// does. `own`: a launcher's rank may take the only GPU that it sees. Sets `gpus` where there are some. Starts nothing
/// that keeps this process from being forked, where ranks are to be forked. `others`: as cuda::refusal_of_gpus.
std::string refusal_of_ranks(int ranks, bool threads, bool own, choose::GpuKind& gpus, bool others = false);

}  // namespace imbrex::jobs
