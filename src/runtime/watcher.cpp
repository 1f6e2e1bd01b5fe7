#include "runtime/watcher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "runtime/one_process.hpp"
#include "runtime/quiet_thread.hpp"

namespace imbrex::runtime {
namespace {

struct flock lock_of(int rank, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Watcher::Watcher(Control control, int own_rank, const FileDescriptor& control_file, std::vector<FileDescriptor> lines)
    : control_(control), own_rank_(own_rank), control_file_(control_file.get()), lines_(std::move(lines)) {
  lines_.resize(static_cast<std::size_t>(control_.size()));
  const std::string method = base::environment().loss_detection();
  // Every rank takes its lock, because a peer may have to rely on it even where this rank does not.
  struct flock own = lock_of(own_rank, F_WRLCK);
  IMBREX_SYSTEM(fcntl(control_file_, F_SETLK, &own));
  stop_ = FileDescriptor(IMBREX_SYSTEM(eventfd(0, EFD_CLOEXEC)));
  const bool locks = method == "lock" || control_.block().use_locks != 0;
  const bool descriptors = !locks && open_peers();
  if (method == "pidfd" && !descriptors)
    throw Error(ErrorCode::runtime_failure, "IMBREX_LOSS_DETECTION=pidfd, but pidfd_open is not permitted here");

  thread_ = quiet_thread([this, descriptors] { descriptors ? watch_descriptors() : watch_locks(); });
}

Watcher::~Watcher() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

bool Watcher::open_peers() {
  for (int rank = 0; rank < control_.size(); ++rank) {
    FileDescriptor peer;
    if (rank != own_rank_ && !control_.is_far(rank)) {
      peer = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, control_.pid(rank), 0)));
      if (!peer && errno == ESRCH) {
        if (control_.state(rank) < finished) control_.record_lost(rank);
      } else if (!peer) {
        peers_.clear();
        return false;
      }
    }
    peers_.push_back(std::move(peer));
  }
  return true;
}

void Watcher::watch_descriptors() {
  std::vector<pollfd> polls;  // entry r: rank r; poll ignores negative descriptors
  for (const FileDescriptor& peer : peers_) polls.push_back({peer.get(), POLLIN, 0});
  polls.push_back({stop_.get(), POLLIN, 0});
  while (true) {
    if (poll(polls.data(), polls.size(), -1) < 0) continue;
    if (polls.back().revents) return;
    for (int rank = 0; rank < control_.size(); ++rank) {
      pollfd& entry = polls[static_cast<std::size_t>(rank)];
      if (!entry.revents) continue;
      // The state is final: its owner is gone.
      if (control_.state(rank) < finished) control_.record_lost(rank);
      entry.fd = -1;
      entry.revents = 0;
    }
  }
}

void Watcher::watch_locks() {
  std::vector<pollfd> polls;  // entry r: rank r's line, of which only the end is of interest
  for (const FileDescriptor& line : lines_) polls.push_back({line.get(), 0, 0});
  polls.push_back({stop_.get(), POLLIN, 0});
  while (true) {
    poll(polls.data(), polls.size(), 100);
    if (polls.back().revents) return;
    for (int rank = 0; rank < control_.size(); ++rank) {
      pollfd& line = polls[static_cast<std::size_t>(rank)];
      const bool hung_up = line.fd >= 0 && line.revents != 0;
      // A rank holds its line until it has left, so one that still joins has ended.
      if ((hung_up && control_.state(rank) == joining) || (rank != own_rank_ && peer_ended(rank)))
        control_.record_lost(rank);
      if (hung_up) line.fd = -1;
      line.revents = 0;
    }
  }
}

bool Watcher::peer_ended(int rank) const {
  // Only a running rank surely holds its lock; one that leaves says so before it unlocks. A process does not see locks
  // of its own, and ends with all its ranks.
  if (control_.is_far(rank) || control_.state(rank) != running || control_.process(rank) == own_process()) return false;
  struct flock lock = lock_of(rank, F_WRLCK);
  return fcntl(control_file_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK && control_.state(rank) == running;
}

}  // namespace imbrex::runtime
