// Times of all-reduces over a world's GPUs.
#pragma once

#include <functional>

#include "imbrex/world.hpp"
#include "program/measure/measure.hpp"

namespace imbrex::program {

/// Collective: measures what the request asks for, and calls `report` on every rank, size by size. Throws
/// Error(invalid_input) in a build without CUDA.
void sweep_all_reduces(World& world, const AllReduceMeasureRequest& request,
                       const std::function<void(const AllReduceMeasurement&)>& report);

}  // namespace imbrex::program
