#include "runtime/hosts/meeting.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "base/hash.hpp"
#include "runtime/bootstrap/greeting.hpp"

namespace imbrex::runtime {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::runtime_failure, message); }

// Ranks share memory where one kernel runs them and they see each other's sockets. IMBREX_HOST tells more apart, and
// joins nothing.
std::string own_host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", none).string();
  return fmt::format("{}\n{}\n{}", boot.empty() ? own_host_name() : boot, network,
                     base::environment().text(base::Key::host).value_or(""));
}

std::string who(int pid, const std::string& host) { return fmt::format("pid {} on host {}", pid, host); }

}  // namespace

std::string own_host_name() {
  if (const auto name = base::environment().text(base::Key::host)) return *name;
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

MeetingPlace parse_meeting_place(std::string_view variable, const std::string& text, const std::string& key) {
  const HostPort parsed = parse_host_port(variable, text);
  if (parsed.port != 0) {
    IMBREX_EXPECTS(parsed.port <= 65536 - ports_tried,
                   "{}='{}': the port must be at most {}, since ports up to {} more "
                   "are tried",
                   variable, text, 65536 - ports_tried, ports_tried - 1);
    return {parsed.host, parsed.port};
  }
  // Below what Linux gives to connections.
  const std::uint64_t hash = base::hash_of(std::as_bytes(std::span(key)));
  return {parsed.host, static_cast<std::uint16_t>(20000 + hash % 10000)};
}

int Roster::hosts() const {
  int most = 0;
  for (const RosterEntry& entry : ranks) most = std::max(most, entry.host + 1);
  return most;
}

std::vector<int> Roster::ranks_of(int host) const {
  std::vector<int> result;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].host == host) result.push_back(static_cast<int>(rank));
  return result;
}

/// Rank 0's side: receives the others, checks that they fit together, tells everybody who is where.
class HostsMeeting::Registrar {
 public:
  explicit Registrar(HostsMeeting& meeting)
      : meeting_(meeting),
        gate_(std::move(meeting.listener_), meeting.secret_, meeting.world_),
        guests_(static_cast<std::size_t>(meeting.size_)) {
    guests_[0].claim = meeting.own_claim();
    guests_[0].claim.rank = 0;
  }

  void gather() {
    try {
      while (joined_ < meeting_.size_) {
        if (milliseconds_until(meeting_.deadline_) == 0) refuse(missing());
        late_.look([this] { return missing_ranks(); });
        wait(100);
        expect_all_there();
        admitted_ = gate_.admit();
        for (Guest& guest : admitted_) take(std::move(guest));
      }
    } catch (const Error& error) {
      tell_all(error.what());
      throw;
    }
    gate_.close();
    send_roster();
  }

 private:
  void wait(int milliseconds) {
    std::vector<pollfd> polls;
    gate_.add_to(polls);
    for (const Guest& guest : guests_) polls.push_back({guest.connection.socket().get(), POLLIN, 0});
    if (poll(polls.data(), polls.size(), std::min(milliseconds, milliseconds_until(meeting_.deadline_))) < 0 &&
        errno != EINTR)
      refuse(fmt::format("rank 0 cannot wait for the others: {}", std::strerror(errno)));
  }

  static std::string who(const RankClaim& claim) { return runtime::who(claim.pid, text_in(claim.host_name)); }
  static Claim claim_of(const RankClaim& claim) { return {claim.rank, claim.size, claim.heap_bytes, who(claim)}; }

  // A rank that waits for the roster says nothing.
  void expect_all_there() {
    for (int rank = 1; rank < meeting_.size_; ++rank)
      if (Guest& guest = guests_[static_cast<std::size_t>(rank)]; guest.connection && !guest.connection.receive())
        refuse(fmt::format("rank {} ({}) ended before the world was complete", rank, who(guest.claim)));
  }

  void take(Guest guest) {
    const int rank = guest.claim.rank;
    const Guest* claimed = rank >= 0 && rank < meeting_.size_ ? &guests_[static_cast<std::size_t>(rank)] : nullptr;
    const bool earlier = claimed && (rank == 0 || claimed->connection);
    const std::string reason =
        misfit(claim_of(guest.claim), claim_of(guests_[0].claim), earlier ? who(claimed->claim) : std::string());
    if (!reason.empty()) {
      refused_.push_back(std::move(guest));  // to be told, too
      refuse(reason);
    }
    guests_[static_cast<std::size_t>(rank)] = std::move(guest);
    ++joined_;
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < meeting_.size_; ++rank)
      if (!guests_[static_cast<std::size_t>(rank)].connection) ranks.push_back(rank);
    return ranks;
  }

  std::string missing() const {
    const std::string& away = gate_.turned_away();
    return fmt::format("{} of {} did not arrive within {:.3g} s of rank 0 on host {}{}", list_ranks(missing_ranks()),
                       meeting_.size_, meeting_.options_.entry_limit, own_host_name(), away.empty() ? "" : "; " + away);
  }

  static void tell(Guest& guest, const std::string& reason) {
    guest.connection.send(FrameKind::refusal, std::string_view(reason).substr(0, max_refusal));
    shutdown(guest.connection.socket().get(), SHUT_WR);
  }

  /// Tells why there is no world: those who came, and for a moment those who still come in time.
  void tell_all(const std::string& reason) noexcept {
    try {
      for (Guest& guest : guests_)
        if (guest.connection) tell(guest, reason);
      for (std::vector<Guest>* others : {&refused_, &admitted_})
        for (Guest& guest : *others)
          if (guest.connection) tell(guest, reason);
      const Deadline end = std::min(meeting_.deadline_, deadline_in(0.5));
      while (milliseconds_until(end) > 0) {
        wait(20);
        for (Guest& guest : gate_.admit()) {
          tell(guest, reason);
          refused_.push_back(std::move(guest));
        }
      }
    } catch (...) {
    }
  }

  void send_roster() {
    Roster& roster = meeting_.roster_;
    roster.nonce = random_proof();
    std::vector<Proof> hosts;
    std::string entries;
    for (const Guest& guest : guests_) {
      auto host = std::find(hosts.begin(), hosts.end(), guest.claim.host);
      if (host == hosts.end()) host = hosts.insert(hosts.end(), guest.claim.host);
      RosterEntry entry;
      entry.host = static_cast<std::int32_t>(host - hosts.begin());
      entry.pid = guest.claim.pid;
      entry.port = guest.claim.port;
      entry.wait_limit = static_cast<float>(guest.claim.wait_limit);
      // A loopback address means another host to ranks that read it there.
      if (guest.connection)
        if (const Endpoint end = far_end(guest.connection.socket()); !end.is_loopback())
          put_text(entry.address, end.address());
      put_text(entry.host_name, text_in(guest.claim.host_name));
      roster.ranks.push_back(entry);
      entries += bytes_of(entry);
    }
    const RosterHead head{roster.nonce};
    for (std::size_t rank = 1; rank < guests_.size(); ++rank) {
      guests_[rank].connection.send(FrameKind::roster, bytes_of(head), entries);
      meeting_.connections_[rank] = std::move(guests_[rank].connection);
    }
  }

  static constexpr std::size_t max_refusal = 1024;

  HostsMeeting& meeting_;
  Admission gate_;
  std::vector<Guest> guests_;  // by rank; rank 0's has no connection
  std::vector<Guest> refused_;
  std::vector<Guest> admitted_;  // at once; those that have been taken are empty
  int joined_ = 1;
  LateToJoin late_{0, meeting_.options_};
};

HostsMeeting::HostsMeeting(const std::string& key, unsigned sequence, const MeetingPlace& reach, int rank, int size,
                           const WorldOptions& options)
    : secret_(key),
      sequence_(sequence),
      reach_(reach),
      rank_(rank),
      size_(size),
      options_(options),
      deadline_(deadline_in(options.entry_limit)),
      world_(secret_.prove(fmt::format("hosts/{}", sequence))),
      connections_(static_cast<std::size_t>(size)) {
  if (const auto name = base::environment().text(base::Key::interface)) own_addresses_ = addresses_of_interface(*name);
}

RankClaim HostsMeeting::own_claim() const {
  RankClaim claim;
  claim.rank = rank_;
  claim.size = size_;
  claim.pid = getpid();
  claim.port = rank_ > 0 && listener_ ? own_end(listener_).port() : 0;
  claim.heap_bytes = options_.heap_bytes;
  claim.wait_limit = options_.wait_limit;
  claim.host = secret_.prove("host/" + own_host_identity());
  put_text(claim.host_name, own_host_name());
  return claim;
}

FileDescriptor HostsMeeting::listen_at_port(std::uint16_t port) const {
  if (!own_addresses_.empty()) return listen_tcp(own_addresses_.front().with_port(port));
  try {
    return listen_tcp(Endpoint::any(AF_INET6, port));
  } catch (const Error&) {  // a host without IPv6
    return listen_tcp(Endpoint::any(AF_INET, port));
  }
}

std::string HostsMeeting::name_of(int rank) const {
  return fmt::format("rank {} ({})", rank,
                     who(roster_.ranks[static_cast<std::size_t>(rank)].pid, roster_.host_name(rank)));
}

/// False where another process is at one of the ports before as this world's rank 0: this one joins as a guest, so that
/// the other can tell everybody of the clash.
bool HostsMeeting::become_first() {
  const Endpoint here = own_addresses_.empty() ? *Endpoint::parse("127.0.0.1", 0) : own_addresses_.front();
  std::vector<Endpoint> taken;
  for (int i = 0; i < ports_tried && !listener_; ++i) {
    const auto port = static_cast<std::uint16_t>(reach_.first_port + i);
    if (!(listener_ = listen_at_port(port))) taken.push_back(here.with_port(port));
  }
  if (taken.empty()) return true;
  Answers answers(std::move(taken));
  // Guests that come meanwhile wait at this one's port, for as long as a greeting may take.
  const Deadline end = std::min(deadline_, deadline_in(patience));
  if (auto found = knock(answers, {}, {secret_, world_, own_claim()}, end, false)) {
    connections_[0] = std::move(found->connection);
    listener_.close();
    return false;
  }
  if (listener_) return true;
  refuse(fmt::format("rank 0 on host {} finds no free port: all from {} to {} are in use ({})", own_host_name(),
                     reach_.first_port, reach_.first_port + ports_tried - 1, answers.text()));
}

/// Asks at every port of every address again and again.
void HostsMeeting::find_first() {
  std::vector<Endpoint> places;
  for (const Endpoint& address : resolve(reach_.host, reach_.first_port, deadline_))
    for (int i = 0; i < ports_tried; ++i)
      places.push_back(address.with_port(static_cast<std::uint16_t>(reach_.first_port + i)));
  Answers answers(std::move(places));
  LateToJoin late(rank_, options_);
  const auto meanwhile = [&] { late.look([] { return std::vector{0}; }); };
  if (auto found = knock(answers, own_addresses_, {secret_, world_, own_claim()}, deadline_, true, meanwhile)) {
    connections_[0] = std::move(found->connection);
    first_ = found->at;
    return;
  }
  refuse(
      fmt::format("rank 0 did not arrive within {:.3g} s of rank {} of {} on host {}, which looked for it at {} ports "
                  "{} to {} ({})",
                  options_.entry_limit, rank_, size_, own_host_name(), reach_.host, reach_.first_port,
                  reach_.first_port + ports_tried - 1, answers.text()));
}

void HostsMeeting::await_roster() {
  Connection& first = connections_[0];
  // Rank 0 decides within its own limit, which may have begun later.
  const double limit = options_.entry_limit + 2;
  const std::optional<Frame> frame = await_frame(first, deadline_in(limit));
  if (!frame && !first.fault().empty())
    refuse(fmt::format("rank 0 ended before the world was complete ({})", first.fault()));
  if (!frame)
    refuse(fmt::format("rank 0 did not answer rank {} on host {} within {:.3g} s", rank_, own_host_name(), limit));
  if (frame->kind == FrameKind::refusal) refuse(frame->payload);
  const std::size_t bytes = static_cast<std::size_t>(size_) * sizeof(RosterEntry);
  if (frame->kind != FrameKind::roster || frame->payload.size() != sizeof(RosterHead) + bytes)
    refuse("rank 0 sent no roster");
  RosterHead head;
  std::memcpy(&head, frame->payload.data(), sizeof head);
  roster_.nonce = head.nonce;
  roster_.ranks.resize(static_cast<std::size_t>(size_));
  std::memcpy(roster_.ranks.data(), frame->payload.data() + sizeof head, bytes);
}

const Roster& HostsMeeting::register_ranks() {
  if (rank_ == 0) {
    if (become_first()) {
      Registrar(*this).gather();
      return roster_;
    }
  } else {
    listener_ = listen_at_port(0);
    if (!listener_) refuse(fmt::format("rank {} on host {} finds no free port", rank_, own_host_name()));
    find_first();
  }
  await_roster();
  return roster_;
}

// The name of the gate of rank `rank`.
static Proof gate_name(const Secret& secret, unsigned sequence, const Proof& nonce, int rank) {
  return secret.prove(fmt::format("link/{}/{}/{}/{}", sequence, nonce[0], nonce[1], rank));
}

void HostsMeeting::connect_to(int rank) {
  const RosterEntry& entry = roster_.ranks[static_cast<std::size_t>(rank)];
  const std::string address = text_in(entry.address);
  const auto port = static_cast<std::uint16_t>(entry.port);
  const auto at = address.empty() ? first_.with_port(port) : Endpoint::parse(address, port).value_or(Endpoint());
  const Caller caller{secret_, gate_name(secret_, sequence_, roster_.nonce, rank), own_claim()};
  Answers answers({at});
  // Until its gate opens: it listens already.
  auto found =
      knock(answers, own_addresses_, caller, deadline_in(options_.wait_limit), true, [this] { expect_first_there(); });
  if (!found)
    refuse(fmt::format("rank {} on host {} does not reach {} within {:.3g} s: {}", rank_, own_host_name(),
                       name_of(rank), options_.wait_limit, answers.text()));
  connections_[static_cast<std::size_t>(rank)] = std::move(found->connection);
}

void HostsMeeting::await_later_ranks() {
  std::vector<int> missing;
  for (int rank = rank_ + 1; rank < size_; ++rank)
    if (roster_.ranks[static_cast<std::size_t>(rank)].host != roster_.ranks[static_cast<std::size_t>(rank_)].host)
      missing.push_back(rank);
  Admission gate(std::move(listener_), secret_, gate_name(secret_, sequence_, roster_.nonce, rank_));
  const Deadline deadline = deadline_in(options_.wait_limit);
  while (!missing.empty()) {
    if (milliseconds_until(deadline) == 0)
      refuse(fmt::format("{} did not reach rank {} on host {} within {:.3g} s{}", list_ranks(missing), rank_,
                         own_host_name(), options_.wait_limit,
                         gate.turned_away().empty() ? "" : "; " + gate.turned_away()));
    std::vector<pollfd> polls;
    gate.add_to(polls);
    polls.push_back({connections_[0].socket().get(), POLLIN, 0});
    poll(polls.data(), polls.size(), std::min(100, milliseconds_until(deadline)));
    for (Guest& guest : gate.admit()) {
      const auto place = std::find(missing.begin(), missing.end(), guest.claim.rank);
      if (place == missing.end()) continue;
      connections_[static_cast<std::size_t>(guest.claim.rank)] = std::move(guest.connection);
      missing.erase(place);
    }
    expect_first_there();
  }
}

// What rank 0 says stays for later: it may be in the world already.
void HostsMeeting::expect_first_there() {
  Connection& first = connections_[0];
  if (first.receive()) return;
  while (const auto frame = first.next())
    if (frame->kind == FrameKind::failure) refuse(frame->payload);
  refuse("rank 0 ended before the world was complete");
}

// Rank 0 and the ranks of its host stay connected as long as the meeting lives: those that wait for others learn that
// way that rank 0 has ended.
Acquaintance HostsMeeting::join_hosts() {
  const int own = roster_.ranks[static_cast<std::size_t>(rank_)].host;
  for (int rank = 1; rank < rank_; ++rank)
    if (roster_.ranks[static_cast<std::size_t>(rank)].host != own) connect_to(rank);
  if (rank_ > 0) await_later_ranks();
  std::vector<Connection> others(connections_.size());
  for (std::size_t rank = 0; rank < connections_.size(); ++rank)
    if (roster_.ranks[rank].host != own) others[rank] = std::move(connections_[rank]);
  return {std::move(roster_), std::move(others)};
}

void HostsMeeting::give_up(const std::string& reason) noexcept {
  try {
    for (Connection& connection : connections_)
      if (connection) connection.send(FrameKind::failure, std::string_view(reason).substr(0, 1024));
  } catch (...) {
  }
}

}  // namespace imbrex::runtime
