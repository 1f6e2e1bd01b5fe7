// The memory that an operand touches, and whether two operands have some of it in common.
#pragma once

#include <cstdint>

namespace imbrex::execute {

/// Lines of the same number of bytes, evenly apart: rows of a matrix in memory (of one by columns: columns).
struct Lines {
  std::uintptr_t begin = 0;
  std::int64_t count = 0, bytes = 0;
  std::int64_t pitch = 0;  ///< bytes from one line to the next, at least `bytes`

  /// Lines without anything between them are one.
  static Lines of(std::int64_t count, std::int64_t bytes, std::int64_t pitch) {
    if (count <= 0 || bytes <= 0) return {};
    if (count == 1 || pitch == bytes) return {0, 1, count * bytes, count * bytes};
    return {0, count, bytes, pitch};
  }

  /// After the last byte.
  std::uintptr_t end() const { return begin + static_cast<std::uintptr_t>((count - 1) * pitch + bytes); }

  bool operator==(const Lines&) const = default;
};

/// As touch, where neither ends before the other begins.
bool interleaved_touch(const Lines& one, const Lines& other);

/// Whether a byte is in both. Exact: lines of one may lie in the gaps of the other.
inline bool touch(const Lines& one, const Lines& other) {
  return one.count != 0 && other.count != 0 && one.begin < other.end() && other.begin < one.end() &&
         interleaved_touch(one, other);
}

}  // namespace imbrex::execute
