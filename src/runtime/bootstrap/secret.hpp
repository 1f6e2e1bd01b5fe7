// What the ranks of one launch know, as names and proofs that do not tell it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace imbrex::runtime {

/// SipHash-2-4 of `text` under a key: who does not know the key learns nothing of one value from others.
std::uint64_t siphash(const std::array<std::uint64_t, 2>& key, std::string_view text);

using Proof = std::array<std::uint64_t, 2>;

/// Made of a launch's key, a text that is the same on all its ranks. If the key cannot be guessed, neither can what a
/// secret gives; everybody may see a name of a socket once somebody has it, and learns nothing of other names.
class Secret {
 public:
  explicit Secret(std::string_view key);

  Proof prove(std::string_view what) const;
  /// 32 hexadecimal digits.
  std::string name(std::string_view what) const;

 private:
  std::array<std::uint64_t, 2> key_;
};

}  // namespace imbrex::runtime
