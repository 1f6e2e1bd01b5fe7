#include "runtime/bootstrap/descriptor_exchange.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>

#include "base/check.hpp"
#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/socket.hpp"
#include "runtime/control.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::size_t id_bytes = 32;  // of random_id
constexpr int look_interval = 20;     // milliseconds between looks at the world's failure

// Where a rank receives. Random, so that worlds of one user, and exchanges of one world, do not meet. Everybody on the
// host can see the name of the socket; the token only members of the world know.
struct ReceiverAddress {
  char name[id_bytes] = {};
  char token[id_bytes] = {};
};

// What comes with a descriptor.
struct Parcel {
  char token[id_bytes] = {};  // the receiver's
  std::int32_t from = 0;
};

std::string address_of(const ReceiverAddress& address) {
  return fmt::format("imbrex/{}/descriptors/{}", geteuid(), std::string_view(address.name, id_bytes));
}

class Exchange {
 public:
  Exchange(World& world, int own)
      : world_(world),
        own_(own),
        doors_(static_cast<std::size_t>(world.size())),
        received_(static_cast<std::size_t>(world.size())),
        sent_(static_cast<std::size_t>(world.size())) {}

  std::vector<FileDescriptor> run() {
    ReceiverAddress own;
    random_id().copy(own.name, id_bytes);
    random_id().copy(own.token, id_bytes);
    listener_ = listen_at(address_of(own));
    if (!listener_) fail("has no free socket name for the exchange of descriptors");
    // Everybody listens before anybody knows where.
    world_.all_gather(&own, doors_.data(), sizeof own);
    const auto rank = static_cast<std::size_t>(world_.rank());
    received_[rank] = FileDescriptor(IMBREX_SYSTEM(fcntl(own_, F_DUPFD_CLOEXEC, 0)));
    const Deadline deadline = deadline_in(world_.options().wait_limit);
    while (true) {
      send();
      if (missing(received_).empty() && missing(sent_, true).empty()) return std::move(received_);
      receive();
      world_.throw_if_failed();
      if (milliseconds_until(deadline) == 0) fail(diagnosis());
    }
  }

 private:
  const ReceiverAddress& address_of_rank(int rank) const { return doors_[static_cast<std::size_t>(rank)]; }

  // A message waits in the receiver's queue also before it is accepted, and after this rank has closed its end.
  void send() {
    for (int peer = 0; peer < world_.size(); ++peer) {
      FileDescriptor& socket = sent_[static_cast<std::size_t>(peer)];
      if (peer == world_.rank() || socket) continue;
      FileDescriptor next = try_connect(address_of(address_of_rank(peer)));
      // Only where the peer has closed its address can another process have the name.
      if (!next || owner_of(peer_of(next)) == Owner::other) continue;
      if (owner_of(peer_of(next)) == Owner::unknown)
        fail(fmt::format("cannot tell whose process rank {} is, {}: its user namespace is another one", peer,
                         describe(peer_of(next))));
      Parcel parcel;
      std::memcpy(parcel.token, address_of_rank(peer).token, id_bytes);
      parcel.from = world_.rank();
      if (send_message(next, &parcel, sizeof parcel, {own_})) socket = std::move(next);
    }
  }

  void receive() {
    std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
    for (const FileDescriptor& socket : strangers_) polls.push_back({socket.get(), POLLIN, 0});
    if (poll(polls.data(), polls.size(), look_interval) <= 0) return;
    for (std::size_t i = strangers_.size(); i-- > 0;)
      if (polls[i + 1].revents) {
        admit(strangers_[i]);
        strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    try {
      while (FileDescriptor socket = try_accept(listener_))
        if (owner_of(peer_of(socket)) != Owner::other) strangers_.push_back(std::move(socket));
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  void admit(const FileDescriptor& socket) {
    Parcel parcel;
    std::vector<FileDescriptor> files;
    if (receive_message(socket, &parcel, sizeof parcel, &files) != sizeof parcel) return;
    if (std::memcmp(parcel.token, address_of_rank(world_.rank()).token, id_bytes) != 0 || parcel.from < 0 ||
        parcel.from >= world_.size())
      return;
    if (files.size() != 1)
      fail(fmt::format("got no descriptor from rank {}: is this process out of file descriptors?", parcel.from));
    received_[static_cast<std::size_t>(parcel.from)] = std::move(files.front());
  }

  std::vector<int> missing(const std::vector<FileDescriptor>& have, bool but_own = false) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_.size(); ++rank)
      if (!have[static_cast<std::size_t>(rank)] && !(but_own && rank == world_.rank())) ranks.push_back(rank);
    return ranks;
  }

  std::string diagnosis() const {
    const double limit = world_.options().wait_limit;
    if (const auto ranks = missing(received_); !ranks.empty())
      return fmt::format("waited {:.3g} s for the descriptor of {}, the wait limit", limit, list_ranks(ranks));
    return fmt::format("could not send its descriptor to {} within {:.3g} s; do all ranks share a network namespace?",
                       list_ranks(missing(sent_, true)), limit);
  }

  [[noreturn]] void fail(const std::string& what) {
    const std::string message = fmt::format("rank {} {}", world_.rank(), what);
    world_.fail(message);
    throw Error(ErrorCode::runtime_failure, message);
  }

  World& world_;
  int own_;
  std::vector<ReceiverAddress> doors_;    // by rank
  std::vector<FileDescriptor> received_;  // by rank
  std::vector<FileDescriptor> sent_;      // by rank: the socket that this rank's descriptor went through
  std::vector<FileDescriptor> strangers_;
  FileDescriptor listener_;
};

}  // namespace

std::vector<FileDescriptor> exchange_descriptors(World& world, int own) {
  expect_one_host(world, "an exchange of descriptors");
  return Exchange(world, own).run();
}

}  // namespace imbrex::runtime
