#include "runtime/hosts/gate.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "runtime/bootstrap/bootstrap.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::size_t most_strangers = 2 * max_world_size;
constexpr double patience = 1;  // seconds for a greeting, which who belongs here sends at once

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

Proof random_proof() {
  const std::string digits = random_id();
  return {std::stoull(digits.substr(0, 16), nullptr, 16), std::stoull(digits.substr(16), nullptr, 16)};
}

Proof of_hello(const Secret& secret, const Banner& banner, const RankHello& hello) {
  return secret.prove(
      fmt::format("hello/{}/{}", hex(bytes_of(banner)), hex(bytes_of(hello).substr(sizeof hello.proof))));
}

Proof of_receipt(const Secret& secret, const Proof& world, const RankHello& hello) {
  return secret.prove(fmt::format("receipt/{}/{}", hex(bytes_of(world)), hex(bytes_of(hello.challenge))));
}

void Gate::add_to(std::vector<pollfd>& polls) const {
  polls.push_back({listener_.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) polls.push_back({stranger.connection.socket().get(), POLLIN, 0});
}

void Gate::accept_some() {
  for (std::size_t i = 0; i < most_strangers; ++i) {
    FileDescriptor socket = accept_tcp(listener_);
    if (!socket) return;
    Stranger stranger{Connection(std::move(socket)), {world_, random_proof()}, {}, deadline_in(patience)};
    stranger.address = far_end(stranger.connection.socket()).address();
    stranger.connection.send(FrameKind::banner, bytes_of(stranger.banner));
    strangers_.push_back(std::move(stranger));
  }
}

// The oldest goes, among those of the address that has most: who floods from one host keeps no other out.
void Gate::make_room() {
  while (strangers_.size() > most_strangers) {
    std::map<std::string, int> count;
    for (const Stranger& stranger : strangers_) ++count[stranger.address];
    const auto most =
        std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    strangers_.erase(std::find_if(strangers_.begin(), strangers_.end(),
                                  [&](const Stranger& stranger) { return stranger.address == most->first; }));
  }
}

std::vector<Guest> Gate::admit() {
  std::vector<Guest> guests;
  accept_some();
  std::vector<Stranger> still;
  for (Stranger& stranger : strangers_) {
    const bool open = stranger.connection.receive();
    const std::optional<Frame> frame = stranger.connection.next();
    const auto turn_away = [&](std::string_view why) {
      turned_away_ = fmt::format("a connection from {} was turned away: {}", stranger.address, why);
    };
    if (!frame) {
      if (const auto version = stranger.connection.other_version())
        turn_away(
            fmt::format("it speaks version {} of the protocol, and this rank version {}", *version, protocol_version));
      else if (open && !stranger.connection.fault().empty())
        turn_away(stranger.connection.fault());
      else if (open && milliseconds_until(stranger.deadline) == 0)
        turn_away(fmt::format("it did not greet within {} s", patience));
      else if (open)
        still.push_back(std::move(stranger));
      continue;
    }
    const auto hello = frame->kind == FrameKind::hello ? frame->as<RankHello>() : std::nullopt;
    if (!hello)
      turn_away("it sent what is no greeting");
    else if (hello->proof != of_hello(secret_, stranger.banner, *hello))
      turn_away("it does not know the launch's key");
    else
      guests.push_back({std::move(stranger.connection), *hello});
  }
  strangers_ = std::move(still);
  make_room();
  return guests;
}

void Gate::welcome(Guest& guest) const {
  const Receipt receipt{of_receipt(secret_, world_, guest.hello)};
  guest.connection.send(FrameKind::receipt, bytes_of(receipt));
}

std::optional<Frame> await_frame(Connection& connection, Deadline deadline) {
  while (true) {
    if (auto frame = connection.next()) return frame;
    if (!connection.fault().empty()) return std::nullopt;
    pollfd entry{connection.socket().get(), POLLIN, 0};
    const int left = milliseconds_until(deadline);
    if (left == 0) return std::nullopt;
    if (poll(&entry, 1, left) > 0) connection.receive();
  }
}

Found knock(const Endpoint& at, const std::optional<Endpoint>& source, const Secret& secret, const Proof& world,
            const RankHello& hello, Deadline deadline, Connection& taken, std::string& why) {
  const auto soon = [&] { return std::min(deadline, deadline_in(patience)); };
  FileDescriptor socket = connect_tcp(at, source, soon(), why);
  if (!socket) return Found::nobody;
  Connection connection(std::move(socket));
  const auto first = await_frame(connection, soon());
  const auto banner = first && first->kind == FrameKind::banner ? first->as<Banner>() : std::nullopt;
  if (!first && connection.fault().empty()) {  // who is busy has not looked at the door yet
    why = "no answer";
    return Found::nobody;
  }
  if (!banner) {
    why = connection.other_version() ? fmt::format("who listens there speaks version {} of the protocol, this rank {}",
                                                   *connection.other_version(), protocol_version)
                                     : "who listens there does not speak this protocol";
    return Found::another_world;
  }
  if (banner->world != world) {
    why = "who listens there belongs to another world: do all ranks have the same variables of the launch?";
    return Found::another_world;
  }
  RankHello own = hello;
  own.challenge = random_proof();
  own.proof = of_hello(secret, *banner, own);
  connection.send(FrameKind::hello, bytes_of(own));
  // A member is busy at times; what else knows the world's name had it from there.
  const auto answer = await_frame(connection, deadline);
  const auto receipt = answer && answer->kind == FrameKind::receipt ? answer->as<Receipt>() : std::nullopt;
  if (!receipt || receipt->proof != of_receipt(secret, world, own)) {
    why = "who listens there did not take the greeting";
    return Found::nobody;
  }
  taken = std::move(connection);
  return Found::member;
}

}  // namespace imbrex::runtime
