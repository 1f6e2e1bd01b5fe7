// What a rank's host says of a wait on its GPU that passed its limit.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "imbrex/device/protocol.hpp"
#include "runtime/late.hpp"

namespace imbrex::runtime {

/// "rank 1 waited longer than 3 s for signal 7 in epoch 5: expected 4 posts, saw 2". `who` begins with the rank;
/// `what`: from "for" or "in" on; `counted`: what is expected, in the plural, or nothing where it is one thing. `seen`
/// counts from the begin of what was waited for, and may lie before it. Where a rank never came, it says which.
inline std::string fault_text(const device::Fault& fault, std::string_view who, const WaitLimits& limits,
                              std::string_view what, std::string_view counted = "") {
  const bool never = fault.state == device::Fault::never_entered;
  const std::uint32_t late_and_one = fault.late_and_one;
  const std::string late =
      never && late_and_one > 0 ? fmt::format("; rank {} has not begun it", late_and_one - 1) : std::string();
  std::string text = fmt::format("{} waited longer than {} s {}: ", who, never ? limits.entry : limits.wait, what);
  if (counted.empty()) return text + "it has not come" + late;
  return text + fmt::format("expected {} {}, saw {}{}", std::uint32_t{fault.expected}, counted,
                            static_cast<std::int32_t>(fault.seen), late);
}

}  // namespace imbrex::runtime
