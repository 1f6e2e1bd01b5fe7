// Notices that the process of a peer has ended.
#pragma once

#include <poll.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/control.hpp"
#include "runtime/memory.hpp"

namespace imbrex::runtime {

/// One thread that waits for the end of every peer process of this host and records those that had not left the world.
///
/// By pidfd: the kernel reports the end at once, also of a process that its parent has not reaped yet.
/// Where pidfd_open is not permitted or process ids mean nothing (other pid namespace), by record lock: every rank
/// locks the byte of its own rank in the control file, which the kernel unlocks when the process ends, however it
/// does; peers ask every 100 ms who holds it. A lock tells nothing of a rank that does not run yet; its line does.
///
/// A program may close descriptors that it does not own, or replace them. Pidfds are opened again. A lock has gone with
/// the control file's descriptor: a rank that goes by locks fails its world and says why. Neither the thread nor its
/// end waits for a descriptor longer than 100 ms.
class Watcher {
 public:
  /// All pids are known, and `control_file` is the file of the control block, which outlives this. The process keeps no
  /// second descriptor of that file: closing one would drop the lock. Call before this rank's state says running.
  /// `lines`: by rank, a socket whose other end that rank's process holds for as long as its watcher lives, or none.
  Watcher(Control control, int own_rank, const FileDescriptor& control_file, std::vector<FileDescriptor> lines = {});
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher();

 private:
  bool open_peers();
  bool open_peer(int rank);
  void watch_descriptors();
  void watch_locks();
  bool seems_ended(int rank) const;
  /// Until something comes, the watcher shall end, or 100 ms are over. The last entry is for `stop_`.
  void wait(std::vector<pollfd>& polls) const;

  Control control_;
  int own_rank_;
  const FileDescriptor& control_file_;
  std::atomic<bool> stopping_ = false;
  FileDescriptor stop_;                // eventfd: readable once the watcher shall end, so that it does so at once
  std::vector<FileDescriptor> lines_;  // by rank; kept in any case, because the peer may need the other end
  std::vector<FileDescriptor> peers_;
  std::thread thread_;
};

}  // namespace imbrex::runtime
