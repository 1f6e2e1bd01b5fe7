// What tests of small fused plans share.
#pragma once

#include <cstddef>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::test {

/// Tiles of 8 x 8 without pairs: each pair would be at fault where tasks come, go or change.
inline Knobs small_tiles(Transport transport, Reducer reducer = Reducer::tile) {
  Knobs knobs;
  knobs.tile_m = knobs.tile_n = 8;
  knobs.cluster = 1;
  knobs.transport = transport;
  knobs.reducer = reducer;
  knobs.partial = Type::fp32;
  return knobs;
}

/// The tasks of a rank's first queue, which computes.
inline std::vector<Task>& compute(Plan& plan, std::size_t rank = 0) { return plan.ranks[rank].queues[0].tasks; }

}  // namespace imbrex::test
