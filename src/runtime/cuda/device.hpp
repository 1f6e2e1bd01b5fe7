// Which GPU a rank uses.
#pragma once

#include <string>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// GPUs that this process may use; 0 where there is no driver. Initialises CUDA: a process that forks its ranks asks
/// survey_gpus instead.
int device_count() noexcept;

/// Makes a GPU the calling thread's and returns its number: the rank's where this process sees one for every rank, the
/// only one where it sees one, as launchers arrange it. Collective. Throws Error(runtime_failure) if neither holds, two
/// ranks have the same GPU, or one cannot reach another's memory. The GPU of another process may be out of this one's
/// sight; then mapping its memory tells.
int select_device(World& world);

/// "GPU-" and 16 bytes in the driver's notation.
std::string uuid_text(const char* bytes);

}  // namespace imbrex::runtime
