#pragma once

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// Collective: whether all ranks are threads of this process.
bool one_process(World& world);

}  // namespace imbrex::runtime
