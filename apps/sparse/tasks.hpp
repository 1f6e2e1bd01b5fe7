// What a PE does in a solve, as its kernel reads it. docs/sparse-triangular-solve.md explains.
#pragma once

#include <cstdint>

namespace imbrex::apps::sparse {

/// A row of this PE, or this PE's part of a row of another.
struct Task {
  std::uint32_t begin;   ///< of its terms; they end where the next task's begin
  std::uint32_t target;  ///< own: number of the row in right-hand sides and results; else: slot at the other PE
  std::uint32_t pe;      ///< which the sum goes to
};

/// Tasks that one warp does at once: none of them waits for another.
struct Chunk {
  std::uint32_t task;      ///< the first
  std::uint32_t solved;    ///< own: place of the first one's result
  std::uint8_t tasks;      ///< tasks << log_lanes is at most 32
  std::uint8_t log_lanes;  ///< so many lanes sum up a task
  std::uint8_t own;        ///< rows of this PE
  std::uint8_t unused = 0;
};

/// Where a term's unknown comes from: a place among this PE's results, or with this bit a slot.
inline constexpr std::uint32_t from_slot = std::uint32_t{1} << 31;

}  // namespace imbrex::apps::sparse
