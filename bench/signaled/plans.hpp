// Plans of one rank for the benchmarks here: a product that leaves SMs free, with and without what a signaled plan
// adds.
#pragma once

#include <cstdint>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::bench {

struct SignaledProduct {
  Problem problem;  ///< of one rank, gemm_all_reduce; its output lies in rows
  Knobs knobs;      ///< tiles and their order; packed
  int kept_free = 0;

  std::int64_t tiles() const;
};

/// Sizes of `waves` groups of waves in tiles: whole waves of `workers`, the last one what is left.
std::vector<std::int64_t> tiles_of_waves(const std::vector<std::int64_t>& waves, std::int64_t workers,
                                         std::int64_t tiles);

/// The product alone, its output in rows.
Plan alone(const SignaledProduct& product);

/// The plan of plain(), but its tiles lie packed and post, each to its group's signal, which no task waits for.
Plan with_signals(const SignaledProduct& product, const std::vector<std::int64_t>& group_tiles);

/// The plan of with_signals(), and a library's all-reduce for each group, from a workspace to the packed output.
Plan with_collectives(const SignaledProduct& product, const std::vector<std::int64_t>& group_tiles);

}  // namespace imbrex::bench
