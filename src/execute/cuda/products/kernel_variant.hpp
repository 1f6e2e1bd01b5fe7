// What tells the compiled kernels apart, without their code. Apart, as TileShape is.
#pragma once

#include <string_view>

#include "execute/cuda/tables/tile_shape.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

struct KernelVariant {
  std::string_view name;
  Type type;
  TileShape shape;
  bool pingpong;
  bool anywhere;  ///< takes other GPUs than Hopper; on Hopper it runs only where it is asked for by name
  Layout b_layout = Layout::row_major;  ///< how B lies that it takes; a plain kernel takes both
};

}  // namespace imbrex::cuda
