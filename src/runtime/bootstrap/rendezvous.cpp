#include "runtime/bootstrap/rendezvous.hpp"

#include <poll.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/greeting.hpp"
#include "runtime/bootstrap/socket.hpp"
#include "runtime/cuda/seats.hpp"
#include "runtime/host_world.hpp"
#include "runtime/hosts/meeting.hpp"

namespace imbrex::runtime {
namespace {

/// What the ranks of one host agree on before they know each other. The first of them receives the others.
struct Meeting {
  const std::string& key;
  bool secret;
  std::string name;        // of the first one's socket
  std::vector<int> ranks;  // in ascending order; the world may have more on other hosts
  int size;                // of the world
  const WorldOptions& options;
  Secret proofs{key};

  int first() const { return ranks.front(); }
};

/// What comes of a meeting.
struct Met {
  std::shared_ptr<Segment> segment;
  std::vector<FileDescriptor> lines;  // by rank: the sockets, whose ends the peers hold
};

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::runtime_failure, message); }

// By rank: several ranks of a world may be threads of one process.
unsigned next_sequence(const std::string& key, int rank) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, unsigned> next;
  const std::lock_guard lock(mutex);
  return next[{key, rank}]++;
}

/// Why a process whose user reads as that peer's may be anybody's.
std::string unknown_users(const Peer& peer) {
  return fmt::format(
      "all users that this user namespace does not map read as user {}; start the ranks in one user namespace, or by "
      "`imbrex launch`",
      peer.uid);
}

std::uint64_t random_number() { return std::stoull(random_id().substr(0, 16), nullptr, 16); }

constexpr int most_strangers = 2 * max_world_size;
constexpr int launcher_interval = 100;  // milliseconds between looks at what the launcher says

/// True where the process may be one of the launch's. One of an unknown user must know the launch's secret.
bool may_belong(const Meeting& meeting, Owner owner) {
  return owner == Owner::self || (owner == Owner::unknown && meeting.secret);
}

/// Throws what the launcher knows of a rank that has failed.
void throw_if_launcher_reports(const Meeting& meeting) {
  const FileDescriptor socket = try_connect(obituary_name(meeting.key));
  if (!socket || !may_belong(meeting, owner_of(peer_of(socket)))) return;
  pollfd entry{socket.get(), POLLIN, 0};
  poll(&entry, 1, 1000);
  char text[max_obituary_bytes];
  if (const std::size_t bytes = receive_message(socket, text, sizeof text); bytes > 0)
    refuse(fmt::format("{} before the world was complete", std::string_view(text, bytes)));
}

/// The first rank's side: receives the others, checks that they fit together, hands out the memory files.
class Host {
 public:
  Host(FileDescriptor listener, const Meeting& meeting)
      : listener_(std::move(listener)),
        meeting_(meeting),
        size_(meeting.size),
        options_(meeting.options),
        peers_(static_cast<std::size_t>(size_)) {}

  Met gather() {
    try {
      while (joined_ < std::ssize(meeting_.ranks) - 1) {
        if (milliseconds_until(deadline_) == 0) refuse(missing());
        late_.look([this] { return missing_ranks(); });
        receive();
      }
    } catch (const Error& error) {
      tell_all(error.what());
      throw;
    }
    listener_.close();  // before anyone can ask for the next world
    Met met{Segment::create(size_, options_), {}};
    ControlBlock& block = met.segment->block();
    Control control(block, meeting_.first());
    control.set_pid(meeting_.first(), getpid());
    for (const int rank : later_ranks()) {
      const Guest& guest = peers_[static_cast<std::size_t>(rank)];
      control.set_pid(rank, guest.hello.pid);
      // In another pid namespace the rank's own number means nothing to its peers.
      if (peer_of(guest.socket).pid != guest.hello.pid) block.use_locks = 1;
    }
    for (Guest& guest : peers_) {
      if (guest.socket) {
        Verdict verdict;
        verdict.accepted = 1;
        verdict.proof = of_host(meeting_.proofs, meeting_.name, guest.hello);
        send_message(guest.socket, &verdict, sizeof verdict,
                     {met.segment->control_file.get(), met.segment->heap_file.get()});
      }
      met.lines.push_back(std::move(guest.socket));
    }
    return met;
  }

 private:
  struct Guest {
    FileDescriptor socket;
    Hello hello;
  };

  std::span<const int> later_ranks() const { return std::span(meeting_.ranks).subspan(1); }

  /// Waits for the next thing to happen, not past the deadline.
  void receive() {
    std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
    for (const FileDescriptor& socket : strangers_) polls.push_back({socket.get(), POLLIN, 0});
    for (const Guest& guest : peers_) polls.push_back({guest.socket.get(), POLLIN, 0});
    const int ready = poll(polls.data(), polls.size(), std::min(launcher_interval, milliseconds_until(deadline_)));
    if (ready < 0 && errno != EINTR)
      refuse(fmt::format("rank {} cannot wait for the others: {}", meeting_.first(), std::strerror(errno)));
    if (ready == 0) throw_if_launcher_reports(meeting_);
    if (ready <= 0) return;

    for (const int rank : later_ranks())
      if (polls[1 + strangers_.size() + static_cast<std::size_t>(rank)].revents)
        refuse(fmt::format("rank {} (pid {}) ended before the world was complete", rank,
                           peers_[static_cast<std::size_t>(rank)].hello.pid));
    for (std::size_t i = strangers_.size(); i-- > 0;) {
      if (!polls[i + 1].revents) continue;
      FileDescriptor socket = std::move(strangers_[i]);
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      admit(std::move(socket));
    }
    for (int i = 0; i < most_strangers; ++i) {
      FileDescriptor socket = try_accept(listener_);
      if (!socket) break;
      const Peer peer = peer_of(socket);
      const Owner owner = owner_of(peer);
      if (may_belong(meeting_, owner))
        strangers_.push_back(std::move(socket));
      else
        turn_away(socket, peer, owner);
    }
    // A rank says at once who it is. Who connects again and again and says nothing must not use up the descriptors.
    if (std::ssize(strangers_) > most_strangers)
      strangers_.erase(strangers_.begin(), strangers_.end() - most_strangers);
  }

  /// Another user's process can neither join nor end the meeting. One of this user in another user namespace is told.
  void turn_away(const FileDescriptor& socket, const Peer& peer, Owner owner) {
    turned_away_ = describe(peer);
    if (owner == Owner::unknown)
      tell(socket, fmt::format("rank {} (pid {}) cannot tell whose process pid {} is: {}", meeting_.first(), getpid(),
                               peer.pid, unknown_users(peer)));
  }

  void admit(FileDescriptor socket) {
    Hello hello;
    const std::size_t bytes = receive_message(socket, &hello, sizeof hello);
    if (bytes < offsetof(Hello, rank) || hello.magic != rendezvous_magic) return;  // not one of ours
    const Peer peer = peer_of(socket);
    const bool whole = bytes == sizeof hello && hello.version == protocol_version;
    const bool proven = whole && hello.proof == of_guest(meeting_.proofs, meeting_.name, hello);
    // Who may be anybody has no say before it has shown that it belongs to the launch.
    if (!proven && owner_of(peer) != Owner::self) return turn_away(socket, peer, Owner::unknown);
    std::string reason;
    if (hello.version != protocol_version) {
      reason = fmt::format("a process (pid {}) speaks version {} of the rendezvous protocol, rank {} version {}",
                           peer.pid, hello.version, meeting_.first(), protocol_version);
    } else if (!whole) {
      reason =
          fmt::format("a process (pid {}) says {} bytes as its greeting; version {} of the rendezvous protocol has {}",
                      peer.pid, bytes, protocol_version, sizeof hello);
    } else if (!proven) {
      reason = fmt::format("a process (pid {}) says that it is rank {}, but does not know the launch's key", peer.pid,
                           hello.rank);
    } else {
      const Claim first{meeting_.first(), size_, options_.heap_bytes, {}};
      reason = misfit({hello.rank, hello.size, hello.heap_bytes, fmt::format("pid {}", hello.pid)}, first,
                      claimant(hello.rank));
    }
    if (!reason.empty()) {
      strangers_.push_back(std::move(socket));  // to be told, too
      refuse(reason);
    }
    peers_[static_cast<std::size_t>(hello.rank)] = {std::move(socket), hello};
    ++joined_;
  }

  /// Who has claimed the rank; empty where it is free.
  std::string claimant(int rank) const {
    if (rank == meeting_.first()) return fmt::format("pid {}", getpid());
    const bool known = rank >= 0 && rank < size_ && peers_[static_cast<std::size_t>(rank)].socket;
    return known ? fmt::format("pid {}", peers_[static_cast<std::size_t>(rank)].hello.pid) : std::string();
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> ranks;
    for (const int rank : later_ranks())
      if (!peers_[static_cast<std::size_t>(rank)].socket) ranks.push_back(rank);
    return ranks;
  }

  std::string missing() const {
    return fmt::format("{} of {} did not arrive within {:.3g} s of rank {}{}", list_ranks(missing_ranks()), size_,
                       options_.entry_limit, meeting_.first(),
                       turned_away_.empty() ? "" : fmt::format("; a process of {} was turned away", turned_away_));
  }

  static void tell(const FileDescriptor& socket, const std::string& reason) noexcept {
    Verdict verdict;
    std::strncpy(verdict.message, reason.c_str(), sizeof verdict.message - 1);
    try {
      Hello hello;  // a message left unread would reset the connection before the peer has read the answer
      receive_message(socket, &hello, sizeof hello);
    } catch (const Error&) {  // it came with descriptors, and there is no room for them
    }
    send_message(socket, &verdict, sizeof verdict);
  }

  /// Tells why there is no world: those who came, and for a moment those who still come in time.
  void tell_all(const std::string& reason) noexcept {
    try {
      for (const Guest& guest : peers_)
        if (guest.socket) tell(guest.socket, reason);
      for (const FileDescriptor& socket : strangers_) tell(socket, reason);
      const Deadline end = std::min(deadline_, deadline_in(0.5));
      while (milliseconds_until(end) > 0) {
        pollfd entry{listener_.get(), POLLIN, 0};
        poll(&entry, 1, milliseconds_until(end));
        FileDescriptor late = try_accept(listener_);
        if (!late || !may_belong(meeting_, owner_of(peer_of(late)))) continue;
        pollfd message{late.get(), POLLIN, 0};
        poll(&message, 1, 100);
        tell(late, reason);
      }
    } catch (...) {
    }
  }

  FileDescriptor listener_;
  const Meeting& meeting_;
  int size_;
  const WorldOptions& options_;
  Deadline deadline_ = deadline_in(options_.entry_limit);
  LateToJoin late_{meeting_.first(), options_};
  std::vector<Guest> peers_;               // by rank; the first one's stays empty
  std::vector<FileDescriptor> strangers_;  // connected, have not said who they are
  std::string turned_away_;                // the last one, for the diagnosis
  int joined_ = 0;
};

/// Whether another process has the name of the first rank's socket, and does not answer as that rank would.
class TakenName {
 public:
  explicit TakenName(const Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  /// No process answers at the name. Throws once somebody has had it for a second: the first rank listens at once.
  void throw_if_held() {
    const std::string holder = holder_of(meeting_.name);
    if (holder.empty()) since_.reset();
    if (holder.empty() || (!since_ && (since_ = deadline_in(1))) || milliseconds_until(*since_) > 0) return;
    refuse(
        fmt::format("somebody else, {}, holds the address '@{}', at which rank {} receives the others, and does not "
                    "answer there (rank {} of {})",
                    holder, meeting_.name, meeting_.first(), rank_, meeting_.size));
  }

 private:
  const Meeting& meeting_;
  int rank_;
  std::optional<Deadline> since_;
};

/// Waits for the first rank, whose socket it returns. That one itself gets no socket, but `listener`; where another has
/// been quicker, it gets that one's socket.
FileDescriptor find_host(const Meeting& meeting, int rank, FileDescriptor& listener) {
  const Deadline deadline = deadline_in(meeting.options.entry_limit);
  LateToJoin late(rank, meeting.options);
  Deadline next_look = deadline_in(1e-3 * launcher_interval);
  TakenName taken(meeting, rank);
  for (Backoff backoff;; backoff.pause()) {
    if (rank == meeting.first() && (listener = listen_at(meeting.name))) return {};
    if (FileDescriptor socket = try_connect(meeting.name)) return socket;
    if (milliseconds_until(next_look) == 0) {
      throw_if_launcher_reports(meeting);
      taken.throw_if_held();
      late.look([&] { return std::vector{meeting.first()}; });
      next_look = deadline_in(1e-3 * launcher_interval);
    }
    if (milliseconds_until(deadline) > 0) continue;
    const std::string holder = holder_of(meeting.name);
    refuse(fmt::format("rank {} did not arrive within {:.3g} s of rank {} of {}, {}", meeting.first(),
                       meeting.options.entry_limit, rank, meeting.size,
                       holder.empty() ? "or is not on this host (or in another network namespace)"
                                      : fmt::format("and {} holds its address '@{}'", holder, meeting.name)));
  }
}

/// Throws where the first rank's address is somebody else's.
void expect_own_host(const Meeting& meeting, int rank, const Peer& host) {
  const Owner owner = owner_of(host);
  if (owner == Owner::other)
    refuse(
        fmt::format("somebody else, {}, holds the address '@{}', at which rank {} of user {} receives the others (rank "
                    "{} of {})",
                    describe(host), meeting.name, meeting.first(), geteuid(), rank, meeting.size));
  if (!may_belong(meeting, owner))
    refuse(fmt::format("rank {} (pid {}) cannot tell whose process listens at the address of rank {}, pid {}: {}", rank,
                       getpid(), meeting.first(), host.pid, unknown_users(host)));
}

/// The other ranks' side.
Met join(const Meeting& meeting, int rank, FileDescriptor socket) {
  const WorldOptions& options = meeting.options;
  const Peer host = peer_of(socket);
  expect_own_host(meeting, rank, host);

  Hello hello;
  hello.rank = rank;
  hello.size = meeting.size;
  hello.pid = getpid();
  hello.heap_bytes = options.heap_bytes;
  hello.challenge = random_number();
  hello.proof = of_guest(meeting.proofs, meeting.name, hello);
  send_message(socket, &hello, sizeof hello);  // where it fails, what rank 0 has said before may be there

  // The first rank decides within its own limit, which may have begun later.
  const Deadline patience = deadline_in(options.entry_limit + 2);
  pollfd entry{socket.get(), POLLIN, 0};
  int ready = 0;
  while ((ready = poll(&entry, 1, milliseconds_until(patience))) < 0 && errno == EINTR) {
  }
  if (ready == 0)
    refuse(fmt::format("rank {} did not answer rank {} within {:.3g} s; {} listens at its address", meeting.first(),
                       rank, options.entry_limit + 2, describe(host)));
  Verdict verdict;
  std::vector<FileDescriptor> files;
  const std::size_t bytes = receive_message(socket, &verdict, sizeof verdict, &files);
  if (bytes == 0) refuse(fmt::format("rank {} ended before the world was complete", meeting.first()));
  if (bytes < offsetof(Verdict, accepted) || verdict.magic != rendezvous_magic)
    refuse(fmt::format("{} listens at the address of rank {} and does not speak the rendezvous protocol",
                       describe(host), meeting.first()));
  if (verdict.version != protocol_version)
    refuse(fmt::format("rank {} speaks version {} of the rendezvous protocol, rank {} version {}", meeting.first(),
                       verdict.version, rank, protocol_version));
  if (bytes != sizeof verdict)
    refuse(fmt::format("rank {} (pid {}) answers with {} bytes; version {} of the rendezvous protocol has {}",
                       meeting.first(), host.pid, bytes, protocol_version, sizeof verdict));
  if (!verdict.accepted) refuse(std::string(verdict.message, strnlen(verdict.message, sizeof verdict.message)));
  if (verdict.proof != of_host(meeting.proofs, meeting.name, hello))
    refuse(fmt::format("{} listens at the address of rank {}, but does not know the launch's key", describe(host),
                       meeting.first()));
  if (files.size() != 2)
    refuse(fmt::format("rank {}'s memory files did not arrive: is this process out of file descriptors?",
                       meeting.first()));
  Met met{Segment::attach(std::move(files[0]), std::move(files[1]), meeting.size, options), {}};
  met.lines.push_back(std::move(socket));
  return met;
}

std::string name_with(const std::string& key, const std::string& what) {
  return fmt::format("imbrex/{}/{}", geteuid(), Secret(key).name(what));
}

}  // namespace

std::string launch_key(const std::string& id) { return "imbrex launch\n" + id; }
std::string socket_name(const std::string& key, unsigned sequence) {
  return name_with(key, fmt::format("world/{}", sequence));
}
std::string obituary_name(const std::string& key) { return name_with(key, "obituary"); }

namespace {

/// The ranks of this host meet.
Met meet_here(const Meeting& meeting, int rank) {
  if (meeting.ranks.size() == 1) {
    Met met{Segment::create(meeting.size, meeting.options), {}};
    return met;
  }
  FileDescriptor listener;
  FileDescriptor socket = find_host(meeting, rank, listener);
  // A first rank that finds the name taken joins as a guest, so that the other one can tell everybody of the clash.
  return listener ? Host(std::move(listener), meeting).gather() : join(meeting, rank, std::move(socket));
}

std::unique_ptr<World> complete(Met met, int rank, const WorldOptions& options, std::unique_ptr<HostLinks> links) {
  auto world = std::make_unique<HostWorld>(std::move(met.segment), rank, options, Kind::processes, std::move(met.lines),
                                           std::move(links));
  // Once: every rank watches its peers. Twice: every rank was alive after that, so no rank watches a process that got
  // the number of a rank that died on the way.
  world->barrier();
  std::vector<int> all(static_cast<std::size_t>(world->size()));
  world->all_gather(&options.sms_for_others, all.data(), sizeof options.sms_for_others);
  expect_same_sms(all);
  return world;
}

/// Over a network first, then each host's ranks among themselves.
std::unique_ptr<World> meet_by_network(const LaunchIdentity& launch, unsigned sequence, int rank, int size,
                                       const WorldOptions& options) {
  HostsMeeting hosts(launch.key, sequence, *launch.reach, rank, size, options);
  const Roster& roster = hosts.register_ranks();
  const int own = roster.ranks[static_cast<std::size_t>(rank)].host;
  const Meeting meeting{
      launch.key,
      launch.secret,
      name_with(launch.key, fmt::format("world/{}/{}/{}/{}", sequence, roster.nonce[0], roster.nonce[1], own)),
      roster.ranks_of(own),
      size,
      options};
  const bool several = roster.hosts() > 1;
  try {
    Met met = meet_here(meeting, rank);
    auto links = several ? std::make_unique<HostLinks>(hosts.join_hosts(), rank, options.wait_limit) : nullptr;
    return complete(std::move(met), rank, options, std::move(links));
  } catch (const Error& error) {
    hosts.give_up(error.what());
    throw;
  }
}

}  // namespace

std::unique_ptr<World> meet(const LaunchIdentity& launch, int rank, int size, const WorldOptions& given) {
  const WorldOptions options = validated(size, given);
  IMBREX_EXPECTS(rank >= 0 && rank < size, "rank {} of {}: ranks are 0 to {}", rank, size, size - 1);
  if (size == 1) return std::make_unique<HostWorld>(Segment::create(1, options), 0, options, Kind::processes);
  const unsigned sequence = next_sequence(launch.key, rank);
  if (launch.reach) return meet_by_network(launch, sequence, rank, size, options);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Meeting meeting{launch.key, launch.secret, socket_name(launch.key, sequence), std::move(ranks), size, options};
  return complete(meet_here(meeting, rank), rank, options, nullptr);
}

}  // namespace imbrex::runtime
