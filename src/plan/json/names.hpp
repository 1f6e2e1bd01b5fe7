// Names of what plans are made of, in files and messages.
#pragma once

#include <string_view>

#include "imbrex/plan.hpp"

namespace imbrex::plan {

inline constexpr int plan_format_version = 1;

std::string_view name_of(BufferRole role);
std::string_view name_of(Layout layout);
std::string_view name_of(WaitPoint point);
BufferRole parse_buffer_role(std::string_view name);
Layout parse_layout(std::string_view name);
WaitPoint parse_wait_point(std::string_view name);

}  // namespace imbrex::plan
