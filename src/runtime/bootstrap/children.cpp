#include "runtime/bootstrap/children.hpp"

#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.hpp"

namespace imbrex::runtime {

Children::Children() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  IMBREX_SYSTEM(sigaction(SIGCHLD, &action, &before_));
}

Children::~Children() {
  send(SIGKILL);
  reap();
  sigaction(SIGCHLD, &before_, nullptr);
}

void Children::add(pid_t pid) {
  Child child;
  child.pid = pid;
  child.descriptor = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  children_.push_back(std::move(child));
}

bool Children::all_ended() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.ending.has_value(); });
}

void Children::wait(std::chrono::milliseconds timeout, const std::function<void(int, const Ending&)>& ended) {
  std::vector<pollfd> polls;
  bool event_driven = true;
  for (const Child& child : children_) {
    if (child.ending) continue;
    polls.push_back({child.descriptor.get(), POLLIN, 0});
    event_driven = event_driven && child.descriptor;
  }
  const int milliseconds = static_cast<int>(event_driven ? timeout.count() : std::min<long>(timeout.count(), 2));
  poll(polls.data(), polls.size(), milliseconds);  // a signal ends it early, which is meant

  for (std::size_t rank = 0; rank < children_.size(); ++rank) {
    Child& child = children_[rank];
    siginfo_t info{};
    if (child.ending) continue;
    if (waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
      if (info.si_pid == 0) continue;
      child.ending = info.si_code == CLD_EXITED ? Ending{info.si_status} : Ending{0, info.si_status};
    } else if (errno == ECHILD) {
      child.ending = Ending{3, 0, true};
      child.reaped = true;  // the number may be another process's by now
    } else {
      continue;
    }
    ended(static_cast<int>(rank), *child.ending);
  }
}

void Children::send(int signal) noexcept {
  for (const Child& child : children_)
    if (!child.ending && !child.reaped) kill(child.pid, signal);
}

void Children::reap() noexcept {
  for (Child& child : children_) {
    while (!child.reaped && waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    child.reaped = true;
  }
}

std::string describe(const Ending& ending) {
  if (ending.unknown) return "reaped by another part of the program that started it: its exit code is unknown";
  const char* name = sigdescr_np(ending.signal);
  return fmt::format("killed by signal {} ({})", ending.signal, name ? name : "?");
}

}  // namespace imbrex::runtime
