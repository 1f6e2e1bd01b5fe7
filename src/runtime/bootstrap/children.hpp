// The processes that a parent has started as ranks, and their end.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/memory.hpp"

namespace imbrex::runtime {

/// How a child ended.
struct Ending {
  int code = 0;          // exit code, where it exited
  int signal = 0;        // else the signal that killed it
  bool unknown = false;  // else true: another part of this program reaped it; code is 3
};

/// Child processes, in rank order. None is reaped before reap(), so until then no pid can mean another process.
/// While it lives, SIGCHLD has its default action: where it is ignored, the system reaps children on its own.
class Children {
 public:
  Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  /// Kills and reaps what is left, and gives SIGCHLD its former action back.
  ~Children();

  void add(pid_t pid);
  std::size_t size() const { return children_.size(); }
  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }
  const std::optional<Ending>& ending(int rank) const { return children_[static_cast<std::size_t>(rank)].ending; }
  bool all_ended() const;

  /// Waits up to `timeout` for any to end, and calls `ended` for each that newly did.
  void wait(std::chrono::milliseconds timeout, const std::function<void(int rank, const Ending&)>& ended);

  /// To those that have not ended.
  void send(int signal) noexcept;

  /// All have ended: lets the system forget them.
  void reap() noexcept;

 private:
  struct Child {
    pid_t pid = -1;
    FileDescriptor descriptor;  // empty where pidfd_open is not permitted: then wait() polls
    std::optional<Ending> ending;
    bool reaped = false;
  };
  std::vector<Child> children_;
  struct sigaction before_ {};
};

/// What became of a child that did not exit, or whose code is unknown: "killed by signal 9 (Killed)".
std::string describe(const Ending& ending);

}  // namespace imbrex::runtime
