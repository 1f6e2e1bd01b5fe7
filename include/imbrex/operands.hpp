// What an operator works on: a list of names and views of memory.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "imbrex/types.hpp"

namespace imbrex {

/// How the elements of a matrix lie in memory.
enum class Layout : std::uint8_t {
  row_major,     ///< element (r, c) at r * cols + c
  column_major,  ///< element (r, c) at c * rows + r: B where the problem says so, and nothing else
  fragment,      ///< row r is a slot that holds one tile's elements in the executor's own register order; a slot
                 ///< is written and read whole, by tiles of the same shape. Workspaces only
};

/// Elements in memory that somebody else owns: element (i, j, ...) lies i * strides[0] + j * strides[1] + ... elements
/// after `data`. Inputs are only read.
struct View {
  static constexpr std::size_t most_dims = 4;

  void* data = nullptr;
  Type type = Type::bf16;
  int dims = 0;  ///< 0 (one element) to most_dims
  std::array<std::int64_t, most_dims> extents{}, strides{};

  /// rows x cols elements without gaps; `layout` is row_major or column_major.
  static constexpr View matrix(void* data, Type type, std::int64_t rows, std::int64_t cols,
                               Layout layout = Layout::row_major) {
    const bool by_rows = layout != Layout::column_major;
    return {data, type, 2, {rows, cols}, {by_rows ? cols : 1, by_rows ? 1 : rows}};
  }
  static View matrix(const void* data, Type type, std::int64_t rows, std::int64_t cols,
                     Layout layout = Layout::row_major) {
    return matrix(const_cast<void*>(data), type, rows, cols, layout);
  }

  /// `count` elements without gaps.
  static constexpr View vector(void* data, Type type, std::int64_t count) { return {data, type, 1, {count}, {1}}; }
  static View vector(const void* data, Type type, std::int64_t count) {
    return vector(const_cast<void*>(data), type, count);
  }

  bool operator==(const View&) const = default;
};

struct Operand {
  std::string_view name;  ///< as the operator's operands() tells it: "a", "bias", "out"
  View view;

  bool operator==(const Operand&) const = default;
};

/// The operands of one call, each once, in any order; in the operator's own order they are found soonest. Refers to the
/// list, as a std::span does: it is meant for parameters.
class Operands {
 public:
  Operands(std::initializer_list<Operand> list) : list_(std::data(list), std::size(list)) {}
  /// A vector, an array or a span.
  template <std::convertible_to<std::span<const Operand>> List>
  Operands(const List& list) : list_(list) {}

  const Operand* begin() const { return list_.data(); }
  const Operand* end() const { return list_.data() + list_.size(); }
  std::size_t size() const { return list_.size(); }
  const Operand& operator[](std::size_t i) const { return list_[i]; }

 private:
  std::span<const Operand> list_;
};

enum class OperandRole : std::uint8_t { input, output };

/// One operand of one rank, as the operator expects it.
struct OperandInfo {
  std::string_view name;
  OperandRole role = OperandRole::input;
  Type type = Type::bf16;
  std::int64_t rows = 0, cols = 0;
  Layout layout = Layout::row_major;
  std::int64_t pitch = 0;  ///< elements from one row in memory (of column_major: column) to the next; 0: no gaps

  /// The view of such an operand at `data`.
  View at(void* data) const {
    View view = View::matrix(data, type, rows, cols, layout);
    if (pitch != 0) view.strides[layout == Layout::column_major ? 1 : 0] = pitch;
    return view;
  }
  View at(const void* data) const { return at(const_cast<void*>(data)); }
  /// Rows in memory, and elements of each.
  std::int64_t lines() const { return layout == Layout::column_major ? cols : rows; }
  std::int64_t length() const { return layout == Layout::column_major ? rows : cols; }
  /// From the first element to after the last one, gaps between rows included.
  std::size_t bytes() const {
    const std::int64_t count = pitch == 0 ? rows * cols : (lines() - 1) * pitch + length();
    return static_cast<std::size_t>(count) * size_of(type);
  }

  bool operator==(const OperandInfo&) const = default;
};

}  // namespace imbrex
