// Ranks of several hosts find each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "imbrex/world.hpp"
#include "runtime/hosts/knock.hpp"
#include "runtime/hosts/meeting_place.hpp"

namespace imbrex::runtime {

/// IMBREX_HOST, or the host's own name.
std::string own_host_name();

/// Who is where.
struct Roster {
  Proof nonce{};  // random: names of this world's sockets hold it
  std::vector<RosterEntry> ranks;

  int hosts() const;
  std::vector<int> ranks_of(int host) const;
  std::string host_name(int rank) const { return text_in(ranks[static_cast<std::size_t>(rank)].host_name); }
};

/// What a rank has once all have met.
struct Acquaintance {
  Roster roster;
  std::vector<Connection> connections;  // by rank; none to itself, nor to ranks of its own host
};

/// One rank's way to the others, which lives until all ranks have made their world. Every function throws
/// Error(runtime_failure) where a rank does not come within the wait limit or the ranks do not fit together.
class HostsMeeting {
 public:
  /// The `sequence`-th world of that key.
  HostsMeeting(const std::string& key, unsigned sequence, const MeetingPlace& reach, int rank, int size,
               const WorldOptions& options);

  /// Every rank meets rank 0, and learns who is where.
  const Roster& register_ranks();
  /// A connection to each rank of another host.
  Acquaintance join_hosts();
  /// Tells the ranks that this one has met why it gives up.
  void give_up(const std::string& reason) noexcept;

 private:
  class Registrar;

  RankClaim own_claim() const;
  FileDescriptor listen_at_port(std::uint16_t port) const;
  std::string name_of(int rank) const;

  bool become_first();
  void find_first();
  void await_roster();
  void connect_to(int rank);
  void await_later_ranks();
  void expect_first_there();

  Secret secret_;
  unsigned sequence_;
  MeetingPlace reach_;
  int rank_, size_;
  const WorldOptions& options_;
  Deadline deadline_;                    // until all have found rank 0
  std::vector<Endpoint> own_addresses_;  // of the interface that is named; empty where none is
  Proof world_;
  FileDescriptor listener_;  // rank 0: for all; another: for later ranks
  Endpoint first_;           // where this rank has met rank 0
  Roster roster_;
  std::vector<Connection> connections_;  // by rank
};

}  // namespace imbrex::runtime
