// Brings the ranks' timelines together.
#pragma once

#include "imbrex/timeline.hpp"
#include "imbrex/world.hpp"

namespace imbrex {

/// Bytes of symmetric heap that gather_timeline takes for a plan of `tasks` tasks.
std::size_t timeline_bytes(std::size_t tasks);

/// Collective. On rank 0, the spans of all ranks, shifted so that the first begins at 0; on others, nothing.
std::vector<Span> gather_timeline(World& world, const std::vector<Span>& own);

}  // namespace imbrex
