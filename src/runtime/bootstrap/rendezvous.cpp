#include "runtime/bootstrap/rendezvous.hpp"

#include <poll.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "base/check.hpp"
#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/socket.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::uint64_t rendezvous_magic = 0x3176647a78726269;  // "ibrxzdv1"

// What a rank says to rank 0. Magic and version come first in every version of the protocol.
struct Hello {
  std::uint64_t magic = rendezvous_magic;
  std::uint32_t version = protocol_version;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint64_t heap_bytes = 0;
};

// What rank 0 answers once all are there, with the two memory files; or why there will be no world.
struct Verdict {
  std::uint64_t magic = rendezvous_magic;
  std::uint32_t version = protocol_version;
  std::uint32_t accepted = 0;
  char message[1024] = {};  // ends with a zero byte
};

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::runtime_failure, message); }

unsigned next_sequence(const std::string& key) {
  static std::mutex mutex;
  static std::map<std::string, unsigned> next;
  const std::lock_guard lock(mutex);
  return next[key]++;
}

constexpr int look_interval = 100;  // milliseconds between looks at what the launcher says

/// Throws what the launcher knows of a rank that has failed.
void throw_if_launcher_reports(const std::string& key) {
  const FileDescriptor socket = try_connect(obituary_name(key));
  if (!socket || peer_of(socket).uid != geteuid()) return;
  pollfd entry{socket.get(), POLLIN, 0};
  poll(&entry, 1, 1000);
  char text[max_obituary_bytes];
  if (const std::size_t bytes = receive_message(socket, text, sizeof text); bytes > 0)
    refuse(fmt::format("{} before the world was complete", std::string_view(text, bytes)));
}

/// Rank 0's side: receives the others, checks that they fit together, hands out the memory files.
class Host {
 public:
  Host(FileDescriptor listener, const std::string& key, int size, const WorldOptions& options)
      : listener_(std::move(listener)),
        key_(key),
        size_(size),
        options_(options),
        peers_(static_cast<std::size_t>(size)) {}

  std::shared_ptr<Segment> gather() {
    try {
      while (joined_ < size_ - 1) {
        if (milliseconds_until(deadline_) == 0) refuse(missing());
        receive();
      }
    } catch (const Error& error) {
      tell_all(error.what());
      throw;
    }
    listener_.close();  // before anyone can ask for the next world
    auto segment = Segment::create(size_, options_);
    Control control(segment->block(), 0);
    control.set_pid(0, getpid());
    for (int rank = 1; rank < size_; ++rank) {
      const Guest& guest = peers_[static_cast<std::size_t>(rank)];
      control.set_pid(rank, guest.hello.pid);
      // In another pid namespace the rank's own number means nothing to its peers.
      if (peer_of(guest.socket).pid != guest.hello.pid) segment->block().use_locks = 1;
    }
    Verdict verdict;
    verdict.accepted = 1;
    for (int rank = 1; rank < size_; ++rank)
      send_message(peers_[static_cast<std::size_t>(rank)].socket, &verdict, sizeof verdict,
                   {segment->control_file.get(), segment->heap_file.get()});
    return segment;
  }

 private:
  struct Guest {
    FileDescriptor socket;
    Hello hello;
  };

  /// Waits for the next thing to happen, not past the deadline.
  void receive() {
    std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
    for (const FileDescriptor& socket : strangers_) polls.push_back({socket.get(), POLLIN, 0});
    for (const Guest& guest : peers_) polls.push_back({guest.socket.get(), POLLIN, 0});
    const int ready = poll(polls.data(), polls.size(), std::min(look_interval, milliseconds_until(deadline_)));
    if (ready < 0 && errno != EINTR) refuse(fmt::format("rank 0 cannot wait for the others: {}", std::strerror(errno)));
    if (ready == 0) throw_if_launcher_reports(key_);
    if (ready <= 0) return;

    for (int rank = 1; rank < size_; ++rank)
      if (polls[1 + strangers_.size() + static_cast<std::size_t>(rank)].revents)
        refuse(fmt::format("rank {} (pid {}) ended before the world was complete", rank,
                           peers_[static_cast<std::size_t>(rank)].hello.pid));
    for (std::size_t i = strangers_.size(); i-- > 0;) {
      if (!polls[i + 1].revents) continue;
      FileDescriptor socket = std::move(strangers_[i]);
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      admit(std::move(socket));
    }
    while (FileDescriptor socket = try_accept(listener_))
      if (peer_of(socket).uid == geteuid()) strangers_.push_back(std::move(socket));  // other users are ignored
  }

  void admit(FileDescriptor socket) {
    Hello hello;
    const std::size_t bytes = receive_message(socket, &hello, sizeof hello);
    if (bytes < offsetof(Hello, rank) || hello.magic != rendezvous_magic) return;  // not one of ours
    const Guest* claimed =
        hello.rank > 0 && hello.rank < size_ ? &peers_[static_cast<std::size_t>(hello.rank)] : nullptr;
    std::string reason;
    if (hello.version != protocol_version || bytes != sizeof hello) {
      reason = fmt::format("a process (pid {}) speaks version {} of the rendezvous protocol, rank 0 version {}",
                           peer_of(socket).pid, hello.version, protocol_version);
    } else if (hello.size != size_) {
      reason = fmt::format("rank {} (pid {}) says that the world has {} ranks, rank 0 says {}", hello.rank, hello.pid,
                           hello.size, size_);
    } else if (hello.heap_bytes != options_.heap_bytes) {
      reason = fmt::format("rank {} (pid {}) asks for a symmetric heap of {} bytes, rank 0 for {}", hello.rank,
                           hello.pid, hello.heap_bytes, options_.heap_bytes);
    } else if (hello.rank == 0 || (claimed && claimed->socket)) {
      reason = fmt::format("two processes claim rank {} (pids {} and {})", hello.rank,
                           claimed ? claimed->hello.pid : getpid(), hello.pid);
    } else if (!claimed) {
      reason = fmt::format("a process (pid {}) claims rank {} of {}", hello.pid, hello.rank, size_);
    }
    if (!reason.empty()) {
      strangers_.push_back(std::move(socket));  // to be told, too
      refuse(reason);
    }
    peers_[static_cast<std::size_t>(hello.rank)] = {std::move(socket), hello};
    ++joined_;
  }

  std::string missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank)
      if (!peers_[static_cast<std::size_t>(rank)].socket) ranks.push_back(rank);
    return fmt::format("{} of {} did not arrive within {:.3g} s of rank 0", list_ranks(ranks), size_,
                       options_.wait_limit);
  }

  /// Tells why there is no world: those who came, and for a moment those who still come in time.
  void tell_all(const char* reason) noexcept {
    try {
      Verdict verdict;
      std::strncpy(verdict.message, reason, sizeof verdict.message - 1);
      const auto tell = [&](const FileDescriptor& socket) {
        Hello hello;  // a message left unread would reset the connection before the peer has read the answer
        receive_message(socket, &hello, sizeof hello);
        send_message(socket, &verdict, sizeof verdict);
      };
      for (const Guest& guest : peers_)
        if (guest.socket) tell(guest.socket);
      for (const FileDescriptor& socket : strangers_) tell(socket);
      const Deadline end = std::min(deadline_, deadline_in(0.5));
      while (milliseconds_until(end) > 0) {
        pollfd entry{listener_.get(), POLLIN, 0};
        poll(&entry, 1, milliseconds_until(end));
        FileDescriptor late = try_accept(listener_);
        if (!late || peer_of(late).uid != geteuid()) continue;
        pollfd message{late.get(), POLLIN, 0};
        poll(&message, 1, 100);
        tell(late);
      }
    } catch (...) {
    }
  }

  FileDescriptor listener_;
  const std::string& key_;
  int size_;
  const WorldOptions& options_;
  Deadline deadline_ = deadline_in(options_.wait_limit);
  std::vector<Guest> peers_;               // by rank; entry 0 stays empty
  std::vector<FileDescriptor> strangers_;  // connected, have not said who they are
  int joined_ = 0;
};

/// The other ranks' side.
std::shared_ptr<Segment> join(const std::string& name, const std::string& key, int rank, int size,
                              const WorldOptions& options) {
  FileDescriptor socket;
  const Deadline deadline = deadline_in(options.wait_limit);
  Deadline next_look = deadline_in(1e-3 * look_interval);
  for (Backoff backoff; !(socket = try_connect(name)); backoff.pause()) {
    if (milliseconds_until(next_look) == 0) {
      throw_if_launcher_reports(key);
      next_look = deadline_in(1e-3 * look_interval);
    }
    if (milliseconds_until(deadline) == 0)
      refuse(
          fmt::format("rank 0 did not arrive within {:.3g} s of rank {} of {}, or is not on this host (or in another "
                      "network namespace)",
                      options.wait_limit, rank, size));
  }
  if (const Peer host = peer_of(socket); host.uid != geteuid())
    refuse(
        fmt::format("the socket of rank 0 belongs to user {} (pid {}), not to user {}", host.uid, host.pid, geteuid()));

  Hello hello;
  hello.rank = rank;
  hello.size = size;
  hello.pid = getpid();
  hello.heap_bytes = options.heap_bytes;
  const bool sent = send_message(socket, &hello, sizeof hello);

  // Rank 0 decides within its own limit, which may have begun later.
  const Deadline patience = deadline_in(options.wait_limit + 2);
  pollfd entry{socket.get(), POLLIN, 0};
  int ready = 0;
  while (sent && (ready = poll(&entry, 1, milliseconds_until(patience))) < 0 && errno == EINTR) {
  }
  if (sent && ready == 0)
    refuse(fmt::format("rank 0 did not answer rank {} within {:.3g} s", rank, options.wait_limit + 2));
  Verdict verdict;
  std::vector<FileDescriptor> files;
  const std::size_t bytes = sent ? receive_message(socket, &verdict, sizeof verdict, &files) : 0;
  if (bytes == 0) refuse("rank 0 ended before the world was complete");
  if (bytes != sizeof verdict || verdict.magic != rendezvous_magic || verdict.version != protocol_version)
    refuse(fmt::format("rank 0 speaks version {} of the rendezvous protocol, rank {} version {}", verdict.version, rank,
                       protocol_version));
  if (!verdict.accepted) refuse(std::string(verdict.message, strnlen(verdict.message, sizeof verdict.message)));
  if (files.size() != 2) refuse("rank 0's memory files did not arrive: is this process out of file descriptors?");
  return Segment::attach(std::move(files[0]), std::move(files[1]));
}

}  // namespace

namespace {

std::string name_with(const std::string& key, const std::string& suffix) {
  // FNV-1a from two starting points: the key may be longer than a socket's name.
  const auto hash = [&](std::uint64_t value) {
    for (const char c : key) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return value;
  };
  return fmt::format("imbrex/{}/{:016x}{:016x}/{}", geteuid(), hash(0xcbf29ce484222325), hash(0x9e3779b97f4a7c15),
                     suffix);
}

}  // namespace

std::string launch_key(const std::string& id) { return "imbrex launch\n" + id; }
std::string socket_name(const std::string& key, unsigned sequence) { return name_with(key, std::to_string(sequence)); }
std::string obituary_name(const std::string& key) { return name_with(key, "obituary"); }

std::unique_ptr<World> meet(const std::string& key, int rank, int size, const WorldOptions& options) {
  validate(size, options);
  IMBREX_EXPECTS(rank >= 0 && rank < size, "rank {} of {}: ranks are 0 to {}", rank, size, size - 1);
  if (size == 1) return std::make_unique<HostWorld>(Segment::create(1, options), 0, options, Kind::processes);

  const std::string name = socket_name(key, next_sequence(key));
  std::shared_ptr<Segment> segment;
  FileDescriptor listener;
  if (rank == 0) listener = listen_at(name);
  // A rank 0 that finds the name taken joins as a guest, so that the other one can tell everybody of the clash.
  segment = listener ? Host(std::move(listener), key, size, options).gather() : join(name, key, rank, size, options);
  auto world = std::make_unique<HostWorld>(std::move(segment), rank, options, Kind::processes);
  // Once: every rank watches its peers. Twice: every rank was alive after that, so nobody watches a process that got
  // the number of a rank that died on the way.
  world->barrier();
  world->barrier();
  return world;
}

}  // namespace imbrex::runtime

namespace imbrex {

namespace {
constexpr std::string_view unique_id_prefix = "imbrex-1:";
}

std::unique_ptr<World> World::from_environment(const WorldOptions& options) {
  const auto found = runtime::find_bootstrap(base::environment()).value_or(runtime::Bootstrap{});
  return runtime::meet(found.key, found.rank, found.size, options);
}

bool World::launched() { return runtime::find_bootstrap(base::environment()).has_value(); }

UniqueId World::make_unique_id() {
  UniqueId id;
  const std::string text = std::string(unique_id_prefix) + runtime::random_id();
  text.copy(id.bytes.data(), id.bytes.size() - 1);
  return id;
}

std::unique_ptr<World> World::connect(const UniqueId& id, int rank, int size, const WorldOptions& options) {
  const std::string text(id.bytes.data(), strnlen(id.bytes.data(), id.bytes.size()));
  IMBREX_EXPECTS(text.starts_with(unique_id_prefix) && text.size() == unique_id_prefix.size() + 32,
                 "the unique id was not made by World::make_unique_id");
  return runtime::meet(text, rank, size, options);
}

}  // namespace imbrex
