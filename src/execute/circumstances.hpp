// What a message of a wait without end says of the call that it is in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace imbrex::execute {

/// ", in gemm_all_reduce M=4 N=8 K=16 fp32 over 2 ranks; rank 0 has not come to this call": which call, and who is not
/// in this rank's last one, which `last_call` names. It may be a call that one rank alone has made. From any thread.
std::string circumstances(World& world, const Problem& problem, std::string_view last_call);

/// "call 3, gemm_all_reduce M=4 N=8 K=16 fp32 over 2 ranks": of this rank's last call; without its number where this
/// rank has made none, as with an executor alone.
std::string call_text(World& world, const Problem& problem);

/// "epoch 7 of gemm_all_reduce M=4 N=8 K=16 fp32 over 2 ranks (its last call is 3, this rank's 4)": what a late rank
/// has not come to on its GPU, and how far the hosts are.
std::string epoch_text(World& world, const Problem& problem, std::uint64_t epoch, int late);

}  // namespace imbrex::execute
