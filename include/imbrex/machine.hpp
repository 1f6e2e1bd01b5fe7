// What the hardware is: the constants that plans are chosen and simulated by.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/types.hpp"

namespace imbrex {

/// A machine of equal devices, one per rank. Units: seconds, bytes, operations. Filled in by machine files
/// (machines/*.json, docs/machine-format.md).
struct Machine {
  std::string name;
  // Extended by src/machine's owner.
};

}  // namespace imbrex
