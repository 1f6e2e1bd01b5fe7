// What NCCL reads in the environment of a process, which the library leaves as it is. The program, `imbrex launch` and
// tests set these variables before NCCL is first used; other programs do so themselves, and where they have not, NCCL
// is not used.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "imbrex/world.hpp"

namespace imbrex::runtime {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Names and values for every process that is to use NCCL for Imbrex.
Variables nccl_variables();

/// Why Imbrex does not use NCCL in a process of that environment; empty if it does.
std::string refusal_of_nccl(const base::Environment& environment);

/// Why it captures no sends of NCCL's, as in an all-to-all; empty if it does.
std::string refusal_of_captured_sends(const base::Environment& environment);

/// Collective, before NCCL is used. Throws Error(invalid_input), on every rank, if one must not use it. Returns why
/// sends are not captured, the same on every rank; empty if they are.
std::string expect_nccl_environment(World& world);

/// Names and values for one rank, where ranks that are processes share GPUs. NCCL takes no two ranks of one host on one
/// GPU, and believes what the environment says of hosts: each such rank is told that it is on a host of its own.
/// Between hosts NCCL goes by sockets, which all ranks reach over loopback since they are on one machine. `world` tells
/// ranks of different worlds apart.
Variables own_nccl_host(std::string_view world, int rank);

/// Collective, before NCCL is first used. Throws Error(invalid_input), on every rank, if two ranks have the same `gpu`,
/// a text of at most 63 bytes that no other GPU has, and not a host each.
void expect_own_nccl_hosts(World& world, std::string_view gpu);

}  // namespace imbrex::runtime
