#pragma once

#include <cstddef>
#include <cstdint>

#include "imbrex/device/protocol.hpp"
#include "imbrex/world.hpp"
#include "runtime/late.hpp"

namespace imbrex::runtime {

/// Random pauses of tests; none of seed 0.
struct Pauses {
  std::uint64_t seed = 0;
  double longest = 0;  ///< seconds
};

/// The world's ranks, whose State lies at `offset` of the symmetric memory `heap`. One thread of this rank reads the
/// epoch, and advances it, unless the caller says otherwise.
inline device::Group group_of(const World& world, const HeapHandle& heap, std::size_t offset, device::Fault* fault,
                              Pauses pauses) {
  const auto ticks = [](double seconds) { return device::ticks_of(static_cast<std::uint64_t>(seconds * 1e9)); };
  const WorldOptions& limits = world.options();
  return {.own = reinterpret_cast<device::State*>(heap.at(world.rank(), offset)),
          .states = heap.at(0, offset),
          .stride = heap.stride,
          .limit = ticks(limits.wait_limit),
          .look_after = ticks(look_after(limits.wait_limit, limits.entry_limit)),
          .fault = fault,
          .rank = static_cast<std::uint32_t>(world.rank()),
          .ranks = static_cast<std::uint32_t>(world.size()),
          .readers = 1,
          .pause_seed = static_cast<std::uint32_t>(pauses.seed),
          .max_pause_ns = pauses.seed == 0 ? 0 : static_cast<std::uint32_t>(pauses.longest * 1e9),
          .entry_limit = limits.entry_limit == limits.wait_limit ? 0 : ticks(limits.entry_limit)};
}

}  // namespace imbrex::runtime
