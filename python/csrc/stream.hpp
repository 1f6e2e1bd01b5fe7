// What the operators need of CUDA, found in what torch has loaded: one binary serves torch with CUDA and without.
#pragma once

#include "tensor.hpp"

namespace imbrex_torch {

/// torch's current stream of that GPU.
void* current_stream(int device_index);

/// Whether a graph is being captured on `stream`.
bool is_capturing(void* stream);

}  // namespace imbrex_torch
