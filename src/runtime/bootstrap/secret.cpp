#include "runtime/bootstrap/secret.hpp"

#include <fmt/format.h>

#include <bit>

namespace imbrex::runtime {
namespace {

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t word = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) word = word << 8 | static_cast<unsigned char>(bytes[i]);
  return word;
}

struct State {
  std::uint64_t a, b, c, d;

  void round() {
    a += b, c += d;
    b = std::rotl(b, 13) ^ a, d = std::rotl(d, 16) ^ c;
    a = std::rotl(a, 32);
    c += b, a += d;
    b = std::rotl(b, 17) ^ c, d = std::rotl(d, 21) ^ a;
    c = std::rotl(c, 32);
  }
  void take(std::uint64_t word) {
    d ^= word;
    round(), round();
    a ^= word;
  }
};

}  // namespace

std::uint64_t siphash(const std::array<std::uint64_t, 2>& key, std::string_view text) {
  State state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
              key[1] ^ 0x7465646279746573};
  const std::uint64_t length = text.size();
  for (; text.size() >= 8; text.remove_prefix(8)) state.take(little_endian(text.substr(0, 8)));
  state.take(length << 56 | little_endian(text));
  state.c ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

// A key may be longer than SipHash's.
Secret::Secret(std::string_view key) : key_{siphash({0, 1}, key), siphash({0, 2}, key)} {}

Proof Secret::prove(std::string_view what) const {
  const std::string text(what);
  return {siphash(key_, text + "/1"), siphash(key_, text + "/2")};
}

std::string Secret::name(std::string_view what) const {
  const Proof digits = prove(what);
  return fmt::format("{:016x}{:016x}", digits[0], digits[1]);
}

}  // namespace imbrex::runtime
