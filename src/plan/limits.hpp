// What a plan may hold at most, as docs/dev/plan-format.md states it. The format check proves it of every plan, so that
// executors may count rows, columns and pitches in 32-bit integers, as BLAS and the GPUs' tensor maps do.
#pragma once

#include <cstdint>
#include <limits>

#include "problem/limits.hpp"

namespace imbrex::plan {

using problem::most_bytes, problem::most_extent;

/// Bytes of a rank's workspaces, their copies included: they lie in a symmetric heap, which has 2^40 at most.
inline constexpr std::int64_t most_workspace_bytes = std::int64_t{1} << 39;

/// Signals of all ranks together.
inline constexpr std::int64_t most_signals = std::int64_t{1} << 22;

/// Waits and posts of all tasks together: counters of 32 bits are compared by signed difference.
inline constexpr std::int64_t most_waits_and_posts = std::numeric_limits<std::int32_t>::max();

/// Tasks from one to its mate. Further ahead, mates would break the plan's order.
inline constexpr int most_mate = 95;

inline constexpr int most_queues = 64;        ///< of a rank
inline constexpr int most_workers = 1 << 16;  ///< that a queue reserves

inline constexpr int most_batch = 1 << 16;  ///< products of one task

/// Blocks of one task's products, and tasks of a queue that has products: those who share them count both in one word.
inline constexpr std::int64_t most_product_blocks = std::int64_t{1} << 36;
inline constexpr std::int64_t most_product_tasks = std::int64_t{1} << 22;

/// Bytes of a buffer's name.
inline constexpr std::size_t most_name = 100;

/// Tasks that a strategy makes and keeps, and the parts of which they are: waits, posts and regions. Some GB of memory
/// each. Tasks that are handed over one by one may be more.
inline constexpr std::int64_t most_kept_tasks = std::int64_t{1} << 23;
inline constexpr std::int64_t most_kept_parts = std::int64_t{1} << 26;

/// Tasks that are handed over: a rank's table of them takes some GB.
inline constexpr std::int64_t most_handed_tasks = std::int64_t{1} << 26;

}  // namespace imbrex::plan
