// What a rank's host says of a wait on its GPU that passed its limit.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "imbrex/device/protocol.hpp"

namespace imbrex::runtime {

/// "rank 1 waited longer than 3 s for signal 7 in epoch 5: expected 4 posts, saw 2". `who` begins with the rank;
/// `what`: from "for" or "in" on; `counted`: what is expected, in the plural, or nothing where it is one thing. `seen`
/// counts from the begin of what was waited for, and may lie before it.
inline std::string fault_text(const device::Fault& fault, std::string_view who, double limit, std::string_view what,
                              std::string_view counted = "") {
  std::string text = fmt::format("{} waited longer than {} s {}: ", who, limit, what);
  if (counted.empty()) return text + "it has not come";
  return text + fmt::format("expected {} {}, saw {}", std::uint32_t{fault.expected}, counted,
                            static_cast<std::int32_t>(fault.seen));
}

}  // namespace imbrex::runtime
