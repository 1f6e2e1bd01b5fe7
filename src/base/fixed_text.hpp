// Texts of a fixed size, as ranks exchange them.
#pragma once

#include <cstddef>
#include <string_view>

namespace imbrex::base {

/// As much of the text as fits before a zero byte; `to` is all zeros.
template <std::size_t Size>
void put_text(std::string_view text, char (&to)[Size]) {
  text.substr(0, Size - 1).copy(to, Size - 1);
}

}  // namespace imbrex::base
