// How much of a plan a fused strategy that sends results is going to make, before it makes anything.
#pragma once

#include <vector>

#include "plan/strategies/tile_order.hpp"

namespace imbrex::plan {

/// What the plan's options come down to.
struct ScatterWays {
  bool one_shot = false;  ///< every rank sends its product to all others
  bool exchange = false;  ///< ranks exchange their products
  bool reduce = false;    ///< results are summed over the ranks
  bool in_tile = false;   ///< by the owners' tiles
  bool copies = false;    ///< copies carry them
  bool spanning = false;  ///< tiles span areas
};

/// Rows that a copy carries at most.
std::int64_t rows_of_a_copy(const Area& area, const Knobs& knobs);

/// On one rank, with tiles cut along K into so many parts.
Counts count_scattered(const Builder& b, const ScatterWays& ways, const std::vector<Area>& areas, std::int64_t parts);

/// Tiles of a rank, of which there are lists where they span areas, where copies follow them, or where K is cut.
std::int64_t count_tiles(const Builder& b, const ScatterWays& ways, const std::vector<Area>& areas);

}  // namespace imbrex::plan
