// What the ranks of one launch know, as names and proofs that do not tell it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace imbrex::runtime {

/// Overwrites bytes that must not lie in memory any longer.
void wipe(void* bytes, std::size_t count) noexcept;

/// Bytes that are overwritten where they end.
template <std::size_t Bytes>
struct Wiped {
  std::array<std::uint8_t, Bytes> bytes{};

  Wiped() = default;
  Wiped(const Wiped&) = default;
  Wiped& operator=(const Wiped&) = default;
  ~Wiped() { wipe(bytes.data(), Bytes); }
};

using Proof = std::array<std::uint64_t, 2>;
/// In a time that does not tell where they differ.
bool same(const Proof& one, const Proof& other);

/// Made of a launch's key, a text that is the same on all its ranks. If the key cannot be guessed, neither can what a
/// secret gives; everybody may see a name of a socket once somebody has it, and learns nothing of other names.
class Secret {
 public:
  explicit Secret(std::string_view key);

  Proof prove(std::string_view what) const;
  /// 32 hexadecimal digits.
  std::string name(std::string_view what) const;
  /// Keys, from 16 to 64 bytes.
  void derive(std::string_view what, std::span<std::uint8_t> keys) const;

 private:
  Wiped<32> key_;
};

}  // namespace imbrex::runtime
