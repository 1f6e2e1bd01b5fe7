// Where ranks of several hosts meet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace imbrex::runtime {

/// Where rank 0 receives ranks of other hosts: at the first of `ports_tried` ports, from the first on, that is free.
struct MeetingPlace {
  std::string host;
  std::uint16_t first_port = 0;
};
inline constexpr int ports_tried = 8;

/// From a text such as "node1:29500"; without a port, one that the key gives. Throws Error(invalid_input) naming
/// `variable`.
MeetingPlace parse_meeting_place(std::string_view variable, const std::string& text, const std::string& key);

}  // namespace imbrex::runtime
