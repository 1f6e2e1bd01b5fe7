// What a table must know of the kernel that it is made for. Apart, so that kernels need no header about plans.
#pragma once

#include <cstdint>

namespace imbrex::cuda {

struct TileShape {
  std::int64_t m = 128, n = 128;
  int cluster = 1;                        ///< blocks that share B: pairs of tiles of one column
  bool registers = true;                  ///< slots hold accumulators in register order (the plain kernel keeps rows)
  std::uint32_t units = 16, planes = 16;  ///< of a tile and of a stage (slot_stages)
};

}  // namespace imbrex::cuda
