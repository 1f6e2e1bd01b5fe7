// What a message of a wait without end says of the call that it is in.
#pragma once

#include <string>
#include <string_view>

#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace imbrex::execute {

/// ", in gemm_all_reduce M=4 N=8 K=16 fp32 over 2 ranks; rank 0 has not come to this call": which call, and who is not
/// in this rank's last one, which `last_call` names. It may be a call that one rank alone has made. From any thread.
std::string circumstances(World& world, const Problem& problem, std::string_view last_call);

}  // namespace imbrex::execute
