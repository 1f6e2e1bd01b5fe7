#pragma once

#include <cstdint>

namespace imbrex::base {

constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

}  // namespace imbrex::base
