#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

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
namespace {

// Letters that are added, left out, changed or swapped with the next one (Damerau 1964, without repeated edits of one
// place).
std::size_t edits_between(std::string_view x, std::string_view y) {
  std::vector<std::vector<std::size_t>> least(x.size() + 1, std::vector<std::size_t>(y.size() + 1));
  for (std::size_t i = 0; i <= x.size(); ++i) least[i][0] = i;
  for (std::size_t j = 0; j <= y.size(); ++j) least[0][j] = j;
  for (std::size_t i = 1; i <= x.size(); ++i)
    for (std::size_t j = 1; j <= y.size(); ++j) {
      least[i][j] = std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + (x[i - 1] != y[j - 1])});
      if (i > 1 && j > 1 && x[i - 1] == y[j - 2] && x[i - 2] == y[j - 1])
        least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  return least[x.size()][y.size()];
}

}  // namespace

std::string did_you_mean(std::string_view text, std::span<const std::string_view> names) {
  constexpr std::size_t longest = 64, begins = 3;
  if (text.size() > longest) return {};
  std::string_view nearest;
  std::size_t least = std::max<std::size_t>(1, std::min<std::size_t>(3, text.size() / 3)) + 1;
  for (const std::string_view name : names) {
    const bool goes_on = text.size() >= begins && name.starts_with(text);
    const std::size_t edits = goes_on ? 1 : edits_between(text, name);
    if (edits < least && edits < name.size()) nearest = name, least = edits;
  }
  return nearest.empty() ? std::string() : fmt::format("; did you mean {}?", nearest);
}

bool is_printable(std::string_view text) {
  for (std::size_t size = 0; !text.empty(); text.remove_prefix(size)) {
    size = leading_character(text);
    if (size == 0) return false;
  }
  return true;
}

}  // namespace base
}  // namespace imbrex
