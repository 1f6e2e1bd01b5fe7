// What goes over a TCP connection between ranks. docs/dev/hosts-protocol.md describes every frame.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "runtime/bootstrap/secret.hpp"
#include "runtime/control.hpp"
#include "runtime/hosts/session.hpp"
#include "runtime/memory.hpp"

namespace imbrex::runtime {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie in memory");

inline constexpr std::uint32_t frame_magic = 0x78726269;  // "ibrx"

enum class FrameKind : std::uint16_t {
  // in the clear
  banner = 1,  // Banner: who listens
  hello = 2,   // RankHello: that who connects knows the secret
  // sealed, as all that follows
  claim = 3,     // RankClaim: who connects
  receipt = 4,   // nothing: who listens knows the secret, too
  refusal = 5,   // text: why there is no world
  roster = 6,    // RosterHead, then a RosterEntry for every rank
  alive = 7,     // Alive: the rank is there; of a guest, nothing
  enter = 8,     // Entry, then what it gathers: the rank enters a barrier
  state = 9,     // std::uint32_t: the RankState with which the rank leaves
  failure = 10,  // text: what the rank's host has recorded
  refused = 11,  // RefusedCall, then text: the rank refuses a collective call, and why
  word = 12      // PutWord: stored into the receiver's part of the heap
};

struct FrameHead {
  std::uint32_t magic = frame_magic;
  std::uint16_t version = protocol_version;
  std::uint16_t kind = 0;
  std::uint32_t bytes = 0;  // that follow
};

struct Banner {
  Proof world{};    // its name, which tells nothing of the key
  PublicKey key{};  // drawn for this connection
};

inline constexpr std::size_t address_bytes = 64, host_name_bytes = 64;

struct RankHello {
  Proof proof{};           // of_hello
  PublicKey key{};         // drawn for this connection
  std::uint32_t port = 0;  // that it means to have connected to
  std::uint32_t unused = 0;
};

struct RankClaim {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint32_t port = 0;  // at which it receives the ranks after it
  std::uint64_t heap_bytes = 0;
  double wait_limit = 0;                 // seconds
  Proof host{};                          // equal for ranks that can share memory
  char host_name[host_name_bytes] = {};  // ends with a zero byte
};

struct RosterHead {
  Proof nonce{};
};

struct RosterEntry {
  std::int32_t host = 0;
  std::int32_t pid = 0;
  std::uint32_t port = 0;
  float wait_limit = 0;
  char address[address_bytes] = {};  // in digits; empty: on rank 0's host
  char host_name[host_name_bytes] = {};
};

struct Entry {
  std::uint64_t number = 0;
  std::uint32_t gathered = 0;  // bytes that follow, or no_gather
  std::uint32_t unused = 0;
};

struct Alive {
  std::uint32_t entered[2] = {};  // RankRecord::entered
};

struct RefusedCall {
  std::uint64_t number = 0;
  std::uint64_t calls = 0;  // the rank's record
};

struct PutWord {
  std::uint64_t offset = 0;  // a multiple of 8
  std::uint64_t value = 0;
};

static_assert(sizeof(PutWord) == 16 && sizeof(Alive) == 8);
static_assert(sizeof(FrameHead) == 12 && sizeof(Banner) == 48 && sizeof(RankHello) == 56 && sizeof(RankClaim) == 112 &&
              sizeof(RosterHead) == 16 && sizeof(RosterEntry) == 144 && sizeof(Entry) == 16 &&
              sizeof(RefusedCall) == 16);

inline constexpr std::size_t most_frame_bytes = sizeof(RosterHead) + max_world_size * sizeof(RosterEntry);
static_assert(most_frame_bytes >= sizeof(Entry) + max_gather_bytes);
/// Who has not shown that it knows the secret may send no more.
inline constexpr std::size_t most_greeting_bytes = sizeof(RankHello);
static_assert(most_greeting_bytes >= sizeof(Banner));

struct Frame {
  FrameKind kind{};
  std::string payload;

  /// The payload as a T, where it has its size.
  template <typename T>
  std::optional<T> as() const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    if (payload.size() != sizeof value) return std::nullopt;
    std::memcpy(&value, payload.data(), sizeof value);
    return value;
  }
};

template <typename T>
std::string_view bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// One connection. Nothing of it waits.
class Connection {
 public:
  Connection() = default;
  explicit Connection(FileDescriptor socket) : socket_(std::move(socket)) {}

  const FileDescriptor& socket() const { return socket_; }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  /// As the socket's. What is not is neither read nor written: it is the program's.
  bool is_own() const noexcept { return socket_.is_own(); }
  /// What is sent from here on is sealed, and what comes must be.
  void protect(Session session) { session_ = std::make_unique<Session>(std::move(session)); }

  /// Reads what has come, a part of it at a time. False once nothing more will come: the other end has closed, the
  /// network gave up, or what came is no frame, and then `fault` says which.
  bool receive();
  const std::string& fault() const { return fault_; }
  /// Whether the other end closed it, or its system did.
  bool was_closed() const { return closed_; }
  /// The next frame that is whole. Nothing where there is none, or where what came is no frame, or none that the other
  /// end has sealed.
  std::optional<Frame> next();
  /// Version of the other end's protocol, once a frame's head has come and it is another one.
  std::optional<int> other_version() const { return other_version_; }

  /// Sends as much as the system takes, and keeps the rest for `flush`.
  void send(FrameKind kind, std::string_view payload, std::string_view more = {});
  void flush() noexcept;
  bool has_unsent() const { return !unsent_.empty(); }
  /// Nothing more is sent: tells the other end, once it has the rest, and forgets what comes from there. True once the
  /// other end's system has everything, or its process has left as well.
  bool finish() noexcept;

 private:
  std::nullopt_t refuse(const char* fault);

  FileDescriptor socket_;
  std::unique_ptr<Session> session_;  // once both ends have agreed on keys
  std::string received_, unsent_, fault_;
  std::optional<int> other_version_;
  bool closed_ = false;
  bool ended_ = false;  // nothing can be sent any more
  bool shut_ = false;
};

}  // namespace imbrex::runtime
