// Which device a request runs on, and by which plan.
#pragma once

#include "imbrex/run.hpp"

namespace imbrex {

struct Choice {
  Device device;
  Plan plan;
};

/// Decides what `request.device` leaves open and chooses the plan for the device, unless the request brings one. Starts
/// nothing that keeps this process from being forked if the ranks are to be forked. Throws Error(invalid_input) naming
/// what is missing where the request insists on CUDA.
Choice choose_device(const RunRequest& request, const Problem& problem);

}  // namespace imbrex
