#include "runtime/bootstrap/secret.hpp"

#include <sodium.h>

#include <cstring>

#include <fmt/format.h>

#include "imbrex/error.hpp"

namespace imbrex::runtime {
namespace {

// Keyed BLAKE2b: who does not know the key learns nothing of one value from others. Its length is part of each value.
void hash(std::string_view text, std::span<const std::uint8_t> key, std::span<std::uint8_t> out) {
  static const bool usable = sodium_init() >= 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  if (!usable || crypto_generichash(out.data(), out.size(), bytes, text.size(), key.data(), key.size()) != 0)
    throw Error(ErrorCode::runtime_failure, "libsodium does not work in this process");
}

}  // namespace

void wipe(void* bytes, std::size_t count) noexcept { sodium_memzero(bytes, count); }

bool same(const Proof& one, const Proof& other) { return sodium_memcmp(one.data(), other.data(), sizeof one) == 0; }

Secret::Secret(std::string_view key) { hash(key, {}, key_.bytes); }

void Secret::derive(std::string_view what, std::span<std::uint8_t> keys) const { hash(what, key_.bytes, keys); }

Proof Secret::prove(std::string_view what) const {
  std::array<std::uint8_t, sizeof(Proof)> bytes{};
  derive(what, bytes);
  Proof proof;
  std::memcpy(proof.data(), bytes.data(), sizeof proof);
  return proof;
}

std::string Secret::name(std::string_view what) const {
  const Proof digits = prove(what);
  return fmt::format("{:016x}{:016x}", digits[0], digits[1]);
}

}  // namespace imbrex::runtime
