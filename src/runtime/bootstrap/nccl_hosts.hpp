// NCCL among ranks that are processes and share a GPU. It takes no two ranks of one host on one GPU, and believes what
// the environment says of hosts: each such rank is told that it is on a host of its own. Between hosts NCCL goes by
// sockets, which all ranks reach over loopback since they are on one machine.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// Names and values for one rank. `world` tells ranks of different worlds apart.
std::vector<std::pair<std::string, std::string>> own_nccl_host(std::string_view world, int rank);

/// Collective, before NCCL is first used. Where some ranks have the same `gpu`, a text of at most 63 bytes that no
/// other GPU has, sets the variables of own_nccl_host in this process, but for those that are set. Throws
/// Error(invalid_input), on every rank, if two ranks of one GPU were given the same NCCL_HOSTID.
void take_own_nccl_host(World& world, std::string_view gpu);

}  // namespace imbrex::runtime
