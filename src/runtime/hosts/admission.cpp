#include "runtime/hosts/admission.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include <fmt/format.h>

#include "runtime/bootstrap/bootstrap.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::size_t most_strangers = 2 * max_world_size;
// A turn takes in few, so that who has just been let in is heard before many others are.
constexpr int taken_in_a_turn = most_strangers / 4;
// Descriptors that are left to the ranks and to the rest of the program.
constexpr std::uint64_t most_spare = 32;
constexpr double pause_without_room = 0.1;  // seconds

std::uint64_t most_descriptors() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

Proof random_proof() {
  const std::string digits = random_id();
  return {std::stoull(digits.substr(0, 16), nullptr, 16), std::stoull(digits.substr(16), nullptr, 16)};
}

std::string transcript_of(const Banner& banner, const RankHello& hello) {
  std::string text(bytes_of(protocol_version));
  return text.append(bytes_of(banner)).append(bytes_of(hello).substr(sizeof hello.proof));
}

Proof of_hello(const Secret& secret, const Banner& banner, const RankHello& hello) {
  return secret.prove("hello/" + transcript_of(banner, hello));
}

Admission::Admission(FileDescriptor listener, const Secret& secret, const Proof& world)
    : listener_(std::move(listener)),
      secret_(secret),
      world_(world),
      port_(own_end(listener_).port()),
      descriptors_(most_descriptors()) {}

void Admission::add_to(std::vector<pollfd>& polls) const {
  const bool open = milliseconds_until(closed_until_) == 0;
  polls.push_back({open ? listener_.get() : -1, POLLIN, 0});
  for (const Visitor& visitor : visitors_) polls.push_back({visitor.connection.socket().get(), POLLIN, 0});
}

// The oldest goes, among those of the address that has most: who floods from one host keeps no other out.
bool Admission::drop_stranger() {
  std::map<std::string, int> count;
  for (const Visitor& visitor : visitors_)
    if (!visitor.proven) ++count[visitor.address];
  if (count.empty()) return false;
  const auto most =
      std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  visitors_.erase(std::find_if(visitors_.begin(), visitors_.end(), [&](const Visitor& visitor) {
    return !visitor.proven && visitor.address == most->first;
  }));
  return true;
}

// What shows a proof and goes no further is a rank's try that is over, or was handed on by somebody.
bool Admission::drop_any() {
  if (drop_stranger()) return true;
  if (visitors_.empty()) return false;
  visitors_.erase(visitors_.begin());
  return true;
}

void Admission::accept_some() {
  for (int i = 0; i < taken_in_a_turn && milliseconds_until(closed_until_) == 0; ++i) {
    int error = 0;
    FileDescriptor socket = accept_tcp(listener_, error);
    if (!socket && is_out_of_room(error)) {
      if (drop_any()) continue;
      turned_away_ = fmt::format("a connection could not be taken: {}", std::strerror(error));
      closed_until_ = deadline_in(pause_without_room);
    }
    if (!socket) return;
    // The system gives the lowest number that is free: so many are in use.
    const auto in_use = static_cast<std::uint64_t>(socket.get());
    const bool short_of = in_use + std::min(most_spare, descriptors_ / 4) >= descriptors_;
    if (short_of || visitors_.size() >= most_strangers) drop_stranger();
    Visitor visitor{Connection(std::move(socket)), {}, {world_, {}}, {}, deadline_in(patience)};
    visitor.banner.key = visitor.keys.own();
    visitor.address = far_end(visitor.connection.socket()).address();
    visitor.connection.send(FrameKind::banner, bytes_of(visitor.banner));
    visitors_.push_back(std::move(visitor));
  }
}

void Admission::turn_away(Visitor& visitor, std::string_view why) {
  turned_away_ = fmt::format("a connection from {} was turned away: {}", visitor.address, why);
  visitor.done = true;
}

// The cheap proof comes before the costly agreement on keys.
void Admission::greet(Visitor& visitor, const Frame& frame) {
  const auto hello = frame.kind == FrameKind::hello ? frame.as<RankHello>() : std::nullopt;
  if (!hello) return turn_away(visitor, "it sent what is no greeting");
  if (!same(hello->proof, of_hello(secret_, visitor.banner, *hello)))
    return turn_away(visitor, "it does not know the launch's key");
  if (hello->port != port_)
    return turn_away(visitor, fmt::format("it meant to reach port {}, and this rank listens at port {}: somebody there "
                                          "hands its connections on",
                                          hello->port, port_));
  const auto shared = visitor.keys.shared_with(hello->key);
  if (!shared) return turn_away(visitor, "its key for the connection is none");
  visitor.connection.protect(Session(secret_, *shared, transcript_of(visitor.banner, *hello), End::gate));
  visitor.proven = true;
}

void Admission::take(Visitor& visitor, const Frame& frame, std::vector<Guest>& guests) {
  if (!visitor.proven) return greet(visitor, frame);
  if (!visitor.claim) {
    visitor.claim = frame.kind == FrameKind::claim ? frame.as<RankClaim>() : std::nullopt;
    if (!visitor.claim) return turn_away(visitor, "it does not say who it is");
    return visitor.connection.send(FrameKind::receipt, {});
  }
  if (frame.kind != FrameKind::alive) return turn_away(visitor, "it did not wait for the answer");
  guests.push_back({std::move(visitor.connection), *visitor.claim});
  visitor.done = true;
}

void Admission::hear(Visitor& visitor, std::vector<Guest>& guests) {
  const bool open = visitor.connection.receive();
  while (!visitor.done) {
    const auto frame = visitor.connection.next();
    if (!frame) break;
    take(visitor, *frame, guests);
  }
  if (visitor.done) return;
  if (const auto version = visitor.connection.other_version())
    turn_away(visitor, fmt::format("it speaks version {} of the protocol, and this rank version {}", *version,
                                   protocol_version));
  else if (!open)  // it has left
    visitor.done = true;
  else if (!visitor.connection.fault().empty())
    turn_away(visitor, visitor.connection.fault());
  // A rank that has shown that it belongs here may be slow.
  else if (!visitor.proven && milliseconds_until(visitor.deadline) == 0)
    turn_away(visitor, fmt::format("it did not greet within {} s", patience));
}

std::vector<Guest> Admission::admit() {
  std::vector<Guest> guests;
  for (Visitor& visitor : visitors_) hear(visitor, guests);
  std::erase_if(visitors_, [](const Visitor& visitor) { return visitor.done; });
  accept_some();
  return guests;
}

}  // namespace imbrex::runtime
