#include "program/run_ranks.hpp"

#include <exception>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "runtime/bootstrap/bootstrap.hpp"

namespace imbrex::program {
namespace {

void expect_size(const World& world, int ranks) {
  IMBREX_EXPECTS(world.size() == ranks, "{} ranks are asked for, by --ranks or a plan, but the launcher started {}",
                 ranks, world.size());
}

}  // namespace

std::optional<int> launched_ranks() {
  const auto found = runtime::find_bootstrap(base::environment());
  return found ? std::optional(found->size) : std::nullopt;
}

void agree_on_job(int ranks, double wait_limit, const std::function<runtime::Terms()>& ask) {
  if (!World::launched()) return static_cast<void>(ask());
  const auto world = World::from_environment({.heap_bytes = 0, .wait_limit = wait_limit});
  runtime::agree(*world, [&] {
    expect_size(*world, ranks);
    return ask();
  });
}

int run_ranks(int ranks, bool threads, const WorldOptions& options, const std::function<int(World&)>& body) {
  if (!World::launched()) return (threads ? run_threads : run_processes)(ranks, options, body);
  const auto world = World::from_environment(options);
  expect_size(*world, ranks);
  try {
    return body(*world);
  } catch (const std::exception& error) {
    world->fail(error.what());  // the world's destructor would tell the peers only that there was an exception
    throw;
  }
}

}  // namespace imbrex::program
