// Where a job's ranks run.
#pragma once

#include <functional>
#include <optional>

#include "imbrex/world.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::program {

/// The ranks that a launcher started, of which this process is one; none without one. Throws as World::launched.
std::optional<int> launched_ranks();

/// Calls `ask`, which prepares a job of that many ranks. Where a launcher started them, all or none: collective, as
/// runtime::agree, in a world of its own, since what the ranks must agree on gives the size of the job's heap.
void agree_on_job(int ranks, double wait_limit, const std::function<runtime::Terms()>& ask);

/// Runs `body` on every rank of a new world of processes or threads, or, started by a launcher, on this rank of the
/// launcher's world. Returns the exit code. Throws Error(invalid_input) if the launcher started another number of
/// ranks.
int run_ranks(int ranks, bool threads, const WorldOptions& options, const std::function<int(World&)>& body);

}  // namespace imbrex::program
