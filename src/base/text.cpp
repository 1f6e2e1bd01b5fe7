#include "base/text.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace imbrex {
namespace {

// Bytes of the printable character that the text begins with, which may be several; 0: there is none.
std::size_t leading_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const std::size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < size) return 0;
  std::uint32_t code = byte(0) & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool character = code >= least[size] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  // Controls of the second kind, line separators, and marks that turn the direction of what follows.
  const bool control = code < 0xa0 || (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                       (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
  return character && !control ? size : 0;
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = leading_character(text.substr(at));
    if (at + (size == 0 ? 1 : size) > most) return result + "...";
    if (size == 0)
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
    else
      result += text.substr(at, size), at += size;
  }
  return result;
}

namespace base {

bool is_printable(std::string_view text) {
  for (std::size_t size = 0; !text.empty(); text.remove_prefix(size)) {
    size = leading_character(text);
    if (size == 0) return false;
  }
  return true;
}

}  // namespace base
}  // namespace imbrex
