// File descriptors between the ranks of a world, threads or processes of one host.
#pragma once

#include <vector>

#include "imbrex/world.hpp"
#include "runtime/memory.hpp"

namespace imbrex::runtime {

/// Collective. Every rank gives the descriptor `own`, which stays its caller's, and gets one of every rank's file, by
/// rank, its own included. Bounded by the world's wait limit. Throws Error(runtime_failure), and fails the world,
/// naming the ranks whose descriptors did not come.
std::vector<FileDescriptor> exchange_descriptors(World& world, int own);

}  // namespace imbrex::runtime
