// How two ends of a TCP connection show each other that they know the secret of a launch, without telling it.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/hosts/frames.hpp"
#include "runtime/hosts/tcp.hpp"

namespace imbrex::runtime {

/// 128 random bits.
Proof random_proof();

/// That who connects knows the key; that who listens does. `world`: the name at the gate. Each holds what the other end
/// has drawn at random, so neither serves twice, and not in the other direction.
Proof of_hello(const Secret& secret, const Banner& banner, const RankHello& hello);
Proof of_receipt(const Secret& secret, const Proof& world, const RankHello& hello);

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
  RankHello hello;
};

/// Where connections come in. Strangers cost little and disturb no rank: each is told a random number and the world's
/// name, has a second to send a greeting that holds, and gives way to others where there are many.
class Gate {
 public:
  Gate(FileDescriptor listener, const Secret& secret, const Proof& world)
      : listener_(std::move(listener)), secret_(secret), world_(world) {}

  /// What to wait for.
  void add_to(std::vector<pollfd>& polls) const;
  /// Takes what has come. Does not wait.
  std::vector<Guest> admit();
  /// Has shown that it knows the secret: tells it that this end does, too.
  void welcome(Guest& guest) const;

  /// Why the last one was sent away that spoke this protocol or none; empty where none was.
  const std::string& turned_away() const { return turned_away_; }
  void close() { listener_.close(), strangers_.clear(); }

 private:
  struct Stranger {
    Connection connection;
    Banner banner;
    std::string address;
    Deadline deadline;
  };

  void accept_some();
  void make_room();

  FileDescriptor listener_;
  const Secret& secret_;
  Proof world_;
  std::vector<Stranger> strangers_;  // the oldest first
  std::string turned_away_;
};

/// Whom a connector finds behind a gate.
enum class Found { nobody, another_world, member };

/// Connects to the gate of `world`, greets, and waits until it is taken. `hello`: all but proof and challenge.
/// `member`: the connection has been taken. Else `why` tells more. Never longer than until the deadline; who does not
/// say which world it belongs to has a second.
Found knock(const Endpoint& at, const std::optional<Endpoint>& source, const Secret& secret, const Proof& world,
            const RankHello& hello, Deadline deadline, Connection& taken, std::string& why);

/// Waits for a whole frame. Nothing past the deadline, or once none will come: then the connection has a fault.
std::optional<Frame> await_frame(Connection& connection, Deadline deadline);

}  // namespace imbrex::runtime
