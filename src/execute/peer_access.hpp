// Machines whose ranks do not reach each other's memory: what plans may do there.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::execute {

/// Whether ranks reach each other's memory: unless IMBREX_PEER_ACCESS=0 says that they do not.
bool has_peer_access();

/// How a task of `rank` reaches another rank's memory, in words; empty if it does not, or if `may` allows it. Library
/// collectives do not: they are the library's to carry.
std::string reach_of(const Task& task, int rank, const std::function<bool(int peer)>& may = {});

/// The first task of the plan that reaches a peer, and how, as a refusal; empty if none does.
std::string refusal_without_peer_access(const Plan& plan);

/// A refusal of the first task that reaches what the machine's ranks do not (Machine::peer_access).
std::string refusal_without_peer_access(const Plan& plan, const Machine& machine);

}  // namespace imbrex::execute
