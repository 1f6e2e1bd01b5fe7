// Which device a request runs on, and by which plan.
#pragma once

#include "imbrex/gpu.hpp"
#include "imbrex/run.hpp"
#include "tune/choose.hpp"

namespace imbrex {

/// The GPUs that a plan is chosen for.
struct GpuKind {
  std::string name;  ///< of the first one
  int major = 0;     ///< the least compute capability
};

/// Of a survey that found some.
GpuKind kind_of(const GpuSurvey& survey);

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
std::string refusal_of_ranks(int ranks, bool threads, bool own, GpuKind& gpus, bool others = false);

/// What to run on these GPUs: the plan recorded by their name for the problem where there is one, else that of a
/// problem of nearly its sizes, else the one that a simulated machine of four H200s finishes first. Hopper GPUs of a
/// name without records take the H200's. A given strategy or knobs are kept. The same on every rank and in every run.
Candidate choose_gpu_candidate(const Problem& problem, std::optional<Strategy> strategy,
                               const std::optional<Knobs>& knobs, const GpuKind& gpus);

/// Its plan.
Plan choose_gpu_plan(const Problem& problem, std::optional<Strategy> strategy, const std::optional<Knobs>& knobs,
                     const GpuKind& gpus);

}  // namespace imbrex
