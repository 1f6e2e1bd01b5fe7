#pragma once

#include <cstdint>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// A random number of this process, which its children do not share.
std::uint64_t own_process();

/// Whether another rank of the world is a thread of this process. Every rank has been heard of since the world was
/// made.
bool shares_process(World& world);

/// Collective: whether all ranks are threads of this process.
bool one_process(World& world);

}  // namespace imbrex::runtime
