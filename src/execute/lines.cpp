#include "execute/lines.hpp"

#include <algorithm>

namespace imbrex::execute {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

// Line j of `other` begins `apart` + (j - i) * pitch after line i of `one`. As no line is longer than the pitch, only
// the two such distances around 0 can be short enough.
bool same_pitch_touch(const Lines& one, const Lines& other, std::int64_t apart) {
  const std::int64_t before = floor_div(-apart, one.pitch);
  for (const std::int64_t steps : {before, before + 1}) {
    const std::int64_t distance = apart + steps * one.pitch;
    if (steps > -one.count && steps < other.count && distance < one.bytes && distance > -other.bytes) return true;
  }
  return false;
}

}  // namespace

bool interleaved_touch(const Lines& one, const Lines& other) {
  if (one.count > other.count) return interleaved_touch(other, one);
  if (one.pitch == other.pitch) return same_pitch_touch(one, other, static_cast<std::int64_t>(other.begin - one.begin));
  // A line of this one can meet two of the other: the last that begins no later, and the next.
  for (std::int64_t i = 0; i < one.count; ++i) {
    const auto at = static_cast<std::int64_t>(one.begin - other.begin) + i * one.pitch;
    const std::int64_t last = at < 0 ? -1 : std::min(at / other.pitch, other.count - 1);
    if (last >= 0 && at < last * other.pitch + other.bytes) return true;
    if (last + 1 < other.count && (last + 1) * other.pitch < at + one.bytes) return true;
  }
  return false;
}

}  // namespace imbrex::execute
