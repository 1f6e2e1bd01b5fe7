// Operands of measurements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "imbrex/types.hpp"

namespace imbrex::program {

/// Uniform in [-1, 1): a random stretch over and over, which is as random to the hardware.
std::vector<std::byte> random_bytes(std::int64_t count, Type type, std::uint64_t seed);

}  // namespace imbrex::program
