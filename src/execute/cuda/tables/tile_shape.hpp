// What a table must know of the kernel that it is made for. Apart, so that kernels need no header about plans.
#pragma once

#include <cstdint>

namespace imbrex::cuda {

/// What a cluster's blocks share.
enum class Sharing : std::uint8_t {
  b,  ///< columns of B: pairs of tiles of one column
  k,  ///< a tile: each block multiplies half of its stretch of K
};

struct TileShape {
  std::int64_t m = 128, n = 128;
  int cluster = 1;                        ///< blocks, one or two
  bool registers = true;                  ///< slots hold accumulators in register order (the plain kernel keeps rows)
  std::uint32_t units = 16, planes = 16;  ///< of a tile and of a stage (slot_stages)
  Sharing sharing = Sharing::b;
  std::int64_t slice = 64;     ///< of K, that the kernel multiplies at once
  std::uint32_t stages = ~0u;  ///< of the main loop
  bool blocks = false;         ///< whether tables have work that is no product
};

/// The shape for tables without tiles, whose tasks run as steps (steps/step_list.hpp).
inline constexpr TileShape no_tiles{.m = 0, .n = 0, .registers = false, .blocks = true};

}  // namespace imbrex::cuda
