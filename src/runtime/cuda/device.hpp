// Which GPU a rank uses.
#pragma once

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// GPUs that this process may use; 0 where there is no driver.
int device_count() noexcept;

/// Makes device `rank` the calling thread's and returns it. Collective. Throws Error(runtime_failure) if there are
/// fewer devices than ranks, or two of them cannot reach each other's memory.
int select_device(World& world);

}  // namespace imbrex::runtime
