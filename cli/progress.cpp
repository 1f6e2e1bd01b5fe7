// Progress lines of long commands.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "command.hpp"

namespace imbrex::cli {
namespace {

constexpr int first_line_ms = 2000, longest_pause_ms = 30000;

/// Never returns: reports until it is killed, or its parent ends.
[[noreturn]] void report(const std::string& what, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGINT, SIG_IGN);  // the parent decides what an interrupt means, and takes this process along
  const auto begin = std::chrono::steady_clock::now();
  for (int pause = first_line_ms;; pause = std::min(2 * pause, longest_pause_ms)) {
    poll(nullptr, 0, pause);
    if (getppid() != parent) _exit(0);
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
    const std::string line = fmt::format("imbrex: {}: {} s so far\n", what, seconds.count());
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) _exit(0);
  }
}

}  // namespace

Progress::Progress(const std::string& what) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) report(what, parent);
}

Progress::~Progress() {
  if (process_ <= 0) return;
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace imbrex::cli
