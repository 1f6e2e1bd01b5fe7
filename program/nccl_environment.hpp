// What the program sets for NCCL in its own environment, which the library leaves as it is.
#pragma once

#include "imbrex/world.hpp"

namespace imbrex::program {

/// Before anything uses NCCL, and before there are threads: NCCL does without NVLink multicast and registers nothing
/// that is captured, except variables that are set already. environment_variables() goes on telling what was set
/// before.
void set_nccl_environment();

/// In a rank's process, where ranks share GPUs: it counts as a host of its own, except variables that are set already.
void take_own_nccl_host(const World& world);

}  // namespace imbrex::program
