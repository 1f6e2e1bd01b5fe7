#pragma once

#include <cstdint>

namespace imbrex::base {

/// The quotient, rounded up, of n that is not negative by a positive number of any size.
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t by) { return n / by + (n % by != 0 ? 1 : 0); }

}  // namespace imbrex::base
