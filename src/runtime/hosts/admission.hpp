// Where connections from other hosts come in. Both ends show each other that they know the secret of a launch, without
// telling it, and agree on keys: docs/dev/hosts-protocol.md.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "runtime/hosts/frames.hpp"
#include "runtime/hosts/tcp.hpp"

namespace imbrex::runtime {

/// Seconds for each step of a greeting, which who belongs here takes at once.
inline constexpr double patience = 1;

/// 128 random bits.
Proof random_proof();

/// What the two have said before their keys hold: what the proof is of, and the keys are made of.
std::string transcript_of(const Banner& banner, const RankHello& hello);
/// That who connects knows the key. Each end has drawn a key for this connection, so none serves twice.
Proof of_hello(const Secret& secret, const Banner& banner, const RankHello& hello);

/// Texts of a fixed size, which end with a zero byte.
template <std::size_t Bytes>
void put_text(char (&field)[Bytes], const std::string& text) {
  std::memset(field, 0, Bytes);
  text.copy(field, Bytes - 1);
}
template <std::size_t Bytes>
std::string text_in(const char (&field)[Bytes]) {
  return {field, strnlen(field, Bytes)};
}

/// A rank that has come, and has shown that it knows the secret.
struct Guest {
  Connection connection;
  RankClaim claim;
};

/// Receives the ranks of one world. Strangers cost little and disturb no rank: each has a second to send a greeting
/// that holds, and gives way to others where there are many, or where descriptors run short.
class Admission {
 public:
  Admission(FileDescriptor listener, const Secret& secret, const Proof& world);

  /// What to wait for.
  void add_to(std::vector<pollfd>& polls) const;
  /// Takes what has come: those that know the secret, and know that this end does. Does not wait.
  std::vector<Guest> admit();

  /// Why the last one was sent away that spoke this protocol or none; empty where none was.
  const std::string& turned_away() const { return turned_away_; }
  void close() { listener_.close(), visitors_.clear(); }

 private:
  struct Visitor {
    Connection connection;
    KeyPair keys;
    Banner banner;
    std::string address;
    Deadline deadline;
    std::optional<RankClaim> claim = {};
    bool proven = false;
    bool done = false;
  };

  void hear(Visitor& visitor, std::vector<Guest>& guests);
  void take(Visitor& visitor, const Frame& frame, std::vector<Guest>& guests);
  void greet(Visitor& visitor, const Frame& frame);
  void turn_away(Visitor& visitor, std::string_view why);
  void accept_some();
  bool drop_stranger();
  bool drop_any();

  FileDescriptor listener_;
  const Secret& secret_;
  Proof world_;
  std::uint32_t port_;
  std::uint64_t descriptors_;      // that this process may have
  Deadline closed_until_{};        // there were no descriptors
  std::vector<Visitor> visitors_;  // the oldest first
  std::string turned_away_;
};

}  // namespace imbrex::runtime
