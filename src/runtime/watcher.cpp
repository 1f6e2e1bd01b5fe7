#include "runtime/watcher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "runtime/one_process.hpp"
#include "runtime/quiet_thread.hpp"

namespace imbrex::runtime {
namespace {

constexpr int look_interval = 100;  // milliseconds between looks at locks, and at whether descriptors are still ours
// Looks that find no lock of a rank that runs, until it is lost: it may be alive, and then says itself what is wrong.
constexpr int looks_for_lock = 3;

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
    : control_(control), own_rank_(own_rank), control_file_(control_file), lines_(std::move(lines)) {
  lines_.resize(static_cast<std::size_t>(control_.size()));
  const std::string method = base::environment().loss_detection();
  // Every rank takes its lock, because a peer may have to rely on it even where this rank does not.
  struct flock own = lock_of(own_rank, F_WRLCK);
  IMBREX_SYSTEM(fcntl(control_file_.get(), F_SETLK, &own));
  stop_ = FileDescriptor(IMBREX_SYSTEM(eventfd(0, EFD_CLOEXEC)));
  const bool locks = method == "lock" || control_.block().use_locks != 0;
  const bool descriptors = !locks && open_peers();
  if (method == "pidfd" && !descriptors)
    throw Error(ErrorCode::runtime_failure, "IMBREX_LOSS_DETECTION=pidfd, but pidfd_open is not permitted here");

  thread_ = quiet_thread([this, descriptors] { descriptors ? watch_descriptors() : watch_locks(); });
}

Watcher::~Watcher() {
  stopping_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = stop_.is_own() ? write(stop_.get(), &one, sizeof one) : 0;
  thread_.join();
}

// False where there can be none, and errno says why. There is none of a peer that has ended, which is recorded.
bool Watcher::open_peer(int rank) {
  FileDescriptor peer(static_cast<int>(syscall(SYS_pidfd_open, control_.pid(rank), 0)));
  const bool ended = !peer && errno == ESRCH;
  if (!peer && !ended) return false;
  if (ended && control_.state(rank) < finished) control_.record_lost(rank);
  peers_[static_cast<std::size_t>(rank)] = std::move(peer);
  return true;
}

bool Watcher::open_peers() {
  peers_.resize(static_cast<std::size_t>(control_.size()));
  for (int rank = 0; rank < control_.size(); ++rank)
    if (rank != own_rank_ && !control_.is_far(rank) && !open_peer(rank)) {
      peers_.clear();
      return false;
    }
  return true;
}

void Watcher::wait(std::vector<pollfd>& polls) const {
  // Negative descriptors are ignored, and one that has been closed would answer at once, for ever.
  polls.back() = {stop_.is_own() ? stop_.get() : -1, POLLIN, 0};
  if (poll(polls.data(), polls.size(), look_interval) >= 0) return;
  for (pollfd& entry : polls) entry.revents = 0;
}

void Watcher::watch_descriptors() {
  std::vector<pollfd> polls;  // entry r: rank r
  for (const FileDescriptor& peer : peers_) polls.push_back({peer.get(), POLLIN, 0});
  polls.emplace_back();
  for (;;) {
    wait(polls);
    if (stopping_) return;
    for (int rank = 0; rank < control_.size(); ++rank) {
      pollfd& entry = polls[static_cast<std::size_t>(rank)];
      FileDescriptor& peer = peers_[static_cast<std::size_t>(rank)];
      if (entry.fd < 0) continue;
      if (!peer.is_own()) {
        if (!open_peer(rank)) {
          control_.record(fmt::format(
              "{} failed: the program closed file descriptors of its world, and there is no other to watch rank {} by: "
              "{}",
              control_.name(own_rank_), rank, std::strerror(errno)));
          peer = FileDescriptor();
        }
        entry.fd = peer.get();
      } else if (entry.revents != 0) {
        // The state is final: its owner is gone.
        if (control_.state(rank) < finished) control_.record_lost(rank);
        entry.fd = -1;
      }
      entry.revents = 0;
    }
  }
}

void Watcher::watch_locks() {
  std::vector<pollfd> polls;  // entry r: rank r's line, of which only the end is of interest
  for (const FileDescriptor& line : lines_) polls.push_back({line.get(), 0, 0});
  polls.emplace_back();
  std::vector<int> unlocked(lines_.size());  // looks in a row
  for (;;) {
    wait(polls);
    if (stopping_) return;
    if (!control_file_.is_own()) {
      control_.record(fmt::format(
          "{} failed: the program closed file descriptor {} of its world, or replaced it; by it ranks see that "
          "others are alive",
          control_.name(own_rank_), control_file_.get()));
      for (pollfd& line : polls) line.fd = -1;
      continue;  // it stays so
    }
    for (int rank = 0; rank < control_.size(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      pollfd& line = polls[r];
      if (line.fd >= 0 && !lines_[r].is_own()) line = {-1, 0, 0};
      const bool hung_up = line.fd >= 0 && line.revents != 0;
      unlocked[r] = rank != own_rank_ && seems_ended(rank) ? unlocked[r] + 1 : 0;
      // A rank holds its line until it has left, so one that still joins has ended.
      if ((hung_up && control_.state(rank) == joining) || unlocked[r] >= looks_for_lock) control_.record_lost(rank);
      if (hung_up) line.fd = -1;
      line.revents = 0;
    }
  }
}

bool Watcher::seems_ended(int rank) const {
  // Only a running rank surely holds its lock; one that leaves says so before it unlocks. A process does not see locks
  // of its own, and ends with all its ranks.
  if (control_.is_far(rank) || control_.state(rank) != running || control_.process(rank) == own_process()) return false;
  struct flock lock = lock_of(rank, F_WRLCK);
  return fcntl(control_file_.get(), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK && control_.state(rank) == running;
}

}  // namespace imbrex::runtime
