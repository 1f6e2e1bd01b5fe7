#include "jobs/run_ranks.hpp"

#include <exception>

#include "base/check.hpp"

namespace imbrex::jobs {

int run_ranks(int ranks, bool threads, const WorldOptions& options, const std::function<int(World&)>& body) {
  if (!World::launched()) return (threads ? run_threads : run_processes)(ranks, options, body);
  const auto world = World::from_environment(options);
  IMBREX_EXPECTS(world->size() == ranks, "{} ranks are asked for, but the launcher started {}", ranks, world->size());
  try {
    return body(*world);
  } catch (const std::exception& error) {
    world->fail(error.what());  // the world's destructor would tell the peers only that there was an exception
    throw;
  }
}

}  // namespace imbrex::jobs
