// The keys of one connection between hosts, and what is sealed with them. docs/dev/hosts-protocol.md says why so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/bootstrap/secret.hpp"

namespace imbrex::runtime {

using PublicKey = std::array<std::uint8_t, 32>;

/// One end's half of an agreement on keys (X25519), drawn at random for one connection.
class KeyPair {
 public:
  KeyPair();

  const PublicKey& own() const { return public_; }
  /// What both ends have in common, and no other. Nothing where the other end's key is none.
  std::optional<Wiped<32>> shared_with(const PublicKey& other) const;

 private:
  PublicKey public_{};
  Wiped<32> private_;
};

/// Which end of a connection this is.
enum class End : std::uint8_t { guest, gate };

/// Seals what one end sends, and opens what the other sends: ChaCha20-Poly1305 under a key for each direction, with the
/// number of the message. So nothing opens that was changed, left out, sent twice, in another order or back. One thread
/// may seal while another opens.
class Session {
 public:
  static constexpr std::size_t tag_bytes = 16;

  /// `transcript`: all that the two have said before.
  Session(const Secret& secret, const Wiped<32>& shared, std::string_view transcript, End end);

  /// Appends the sealed text to `out`: `tag_bytes` more than the text. `head` goes along in the clear, and holds or
  /// not.
  void seal(std::string_view head, std::string_view text, std::string& out);
  /// Nothing where it is not what the other end has sealed next.
  std::optional<std::string> open(std::string_view head, std::string_view sealed);

 private:
  struct Direction {
    Wiped<32> key;
    std::uint64_t number = 0;  // of the next message
  };

  Direction outgoing_, incoming_;
};

}  // namespace imbrex::runtime
