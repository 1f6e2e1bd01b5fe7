// What a rank has in common with its peers.
#pragma once

#include <cstdint>
#include <string_view>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// A random number of this process, which its children do not share.
std::uint64_t own_process();

/// Whether another rank of the world is a thread of this process. Every rank has been heard of since the world was
/// made.
bool shares_process(World& world);

/// Throws Error(invalid_input) unless all ranks share memory, which `what` needs: "an operator".
void expect_one_host(const World& world, std::string_view what);

/// Collective: whether all ranks are threads of this process.
bool one_process(World& world);

}  // namespace imbrex::runtime
