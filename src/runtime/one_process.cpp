#include "runtime/one_process.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/hash.hpp"
#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::runtime {

// Processes in different namespaces may share a number, and forked ones what was random before they were.
std::uint64_t own_process() {
  static const std::string random = random_id();
  const std::string text = fmt::format("{} {}", random, getpid());
  return base::hash_of(std::as_bytes(std::span(text)));
}

bool shares_process(World& world) {
  const Control& control = host_world(world).control();
  for (int rank = 0; rank < world.size(); ++rank)
    if (rank != world.rank() && control.process(rank) == own_process()) return true;
  return false;
}

void expect_one_host(const World& world, std::string_view what) {
  if (world.hosts() == 1) return;
  int far = 0;
  while (world.host_of(far) == world.host_of(0)) ++far;
  IMBREX_EXPECTS(false,
                 "{} reaches the memory of all ranks, and this world's are on {} hosts: rank 0 is on {}, rank {} on {}",
                 what, world.hosts(), world.host_name(world.host_of(0)), far, world.host_name(world.host_of(far)));
}

bool one_process(World& world) {
  const std::uint64_t own = own_process();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  return std::all_of(all.begin(), all.end(), [&](std::uint64_t other) { return other == own; });
}

}  // namespace imbrex::runtime
