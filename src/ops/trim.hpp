// Memory of GPUs that a world gives back for a while.
#pragma once

#include "imbrex/options.hpp"
#include "runtime/calls.hpp"

namespace imbrex::ops {

/// Throws Error(invalid_input) where the stream, one of that GPU, is being captured, and the world's memory has still
/// to come back: no graph captures that.
void expect_restored(const runtime::Calls& calls, CudaStream stream, int gpu);

}  // namespace imbrex::ops
