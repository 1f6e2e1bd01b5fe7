// How a rank ends what cannot go on.
#pragma once

#include <string>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// Records `message` and throws Error(runtime_failure) with the world's first failure, which may be an earlier one: the
/// loss of the rank that this one waited for.
[[noreturn]] void fail(World& world, const std::string& message);

/// Another rank ended this one's waits: throws why, which its host needs a moment to say.
[[noreturn]] void fail_as_told(World& world);

}  // namespace imbrex::runtime
