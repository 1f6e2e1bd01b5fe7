// Where a job's ranks run.
#pragma once

#include <functional>

#include "imbrex/world.hpp"

namespace imbrex::jobs {

/// Runs `body` on every rank of a new world of processes or threads, or, started by a launcher, on this rank of the
/// launcher's world. Returns the exit code. Throws Error(invalid_input) if the launcher started another number of
/// ranks.
int run_ranks(int ranks, bool threads, const WorldOptions& options, const std::function<int(World&)>& body);

}  // namespace imbrex::jobs
