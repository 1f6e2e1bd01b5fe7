// Worlds of some of another world's ranks, in the same processes.
#pragma once

#include <memory>
#include <vector>

#include "imbrex/world.hpp"

namespace imbrex::test {

/// Collective over `all`: its ranks in order, `size` to a world; the first one of each makes the id.
inline std::unique_ptr<World> group_of(World& all, int size, const WorldOptions& options) {
  const UniqueId own = World::make_unique_id();
  std::vector<UniqueId> ids(static_cast<std::size_t>(all.size()));
  all.all_gather(&own, ids.data(), sizeof own);
  const int first = all.rank() / size * size;
  return World::connect(ids[static_cast<std::size_t>(first)], all.rank() - first, size, options);
}

}  // namespace imbrex::test
