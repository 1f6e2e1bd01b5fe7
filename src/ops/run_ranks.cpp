#include "ops/run_ranks.hpp"

#include "base/check.hpp"

namespace imbrex {

int run_ranks(int ranks, bool threads, const WorldOptions& options, const std::function<int(World&)>& body) {
  if (!World::launched()) return (threads ? run_threads : run_processes)(ranks, options, body);
  const auto world = World::from_environment(options);
  IMBREX_EXPECTS(world->size() == ranks, "{} ranks are asked for, but the launcher started {}", ranks, world->size());
  return body(*world);
}

}  // namespace imbrex
