// What tells the compiled kernels apart, without their code. Apart, as TileShape is.
#pragma once

#include <string_view>

#include "execute/cuda/tables/tile_shape.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

struct KernelVariant {
  std::string_view name;
  Type type;
  TileShape shape;
  bool pingpong;
  bool anywhere;  ///< takes other GPUs than Hopper; on Hopper it runs only where it is asked for by name
};

}  // namespace imbrex::cuda
