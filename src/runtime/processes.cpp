// A world of forked processes.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/check.hpp"
#include "runtime/bootstrap/children.hpp"
#include "runtime/host_world.hpp"

namespace imbrex {
namespace {

using namespace runtime;
using Clock = std::chrono::steady_clock;

/// What a child does from fork to end.
int run_child(const std::shared_ptr<Segment>& segment, int rank, pid_t parent, const WorldOptions& options,
              const std::function<int(World&)>& body) noexcept {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return 3;  // it died before the line above
  Control control(segment->block(), rank);
  const auto report = [&](const char* message, int code) {
    control.record(message);
    control.set_state(failed);
    print_rank_line(rank, message);
    return code;
  };
  try {
    control.wait(
        options.wait_limit,
        [&] {
          for (int r = 0; r < control.size(); ++r)
            if (control.pid(r) == 0) return false;
          return true;
        },
        [&](double limit) { return fmt::format("rank {} waited {:.3g} s for the other ranks to start", rank, limit); });
    HostWorld world(segment, rank, options, Kind::processes);
    return run_rank(world, body);
  } catch (const Error& error) {
    return report(error.what(), static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    return report(error.what(), 3);
  }
}

/// False where standard output is closed, or opened for reading only: a parent that did that reads nothing.
bool output_is_wanted() noexcept {
  const int flags = ::fcntl(STDOUT_FILENO, F_GETFL);
  return flags != -1 && (flags & O_ACCMODE) != O_RDONLY;
}

/// Writes what this child has printed and its streams still hold. Returns the child's code, or 3 after a message if
/// something that it wrote is lost. `failed_before`: standard output had failed before the child began.
int flush_child(int rank, int code, bool failed_before) noexcept {
  constexpr int failure = static_cast<int>(ErrorCode::runtime_failure);
  const bool flushed = std::fflush(nullptr) == 0;
  const char* why = flushed ? nullptr : std::strerror(errno);
  // Streams forget why an earlier write failed.
  const bool lost = flushed ? std::ferror(stdout) != 0 && !failed_before && output_is_wanted() : errno != EBADF;
  if (!lost || code == failure) return code;
  print_rank_line(rank, why ? fmt::format("what it printed cannot be written: {}", why)
                            : std::string("what it printed could not be written to standard output"));
  return failure;
}

}  // namespace

int run_processes(int ranks, const WorldOptions& given, const std::function<int(World&)>& body) {
  const WorldOptions options = validated(ranks, given);
  const auto segment = Segment::create(ranks, options);
  Control control(segment->block(), Control::outsider);
  Children children;
  const pid_t parent = getpid();
  std::fflush(nullptr);  // what is buffered now would be printed by every child
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      const bool failed_before = std::ferror(stdout) != 0;
      const int code = run_child(segment, rank, parent, options, body);
      _exit(flush_child(rank, code, failed_before));  // the parent's exit handlers and destructors are the parent's
    }
    if (pid < 0)
      throw Error(ErrorCode::runtime_failure,
                  fmt::format("cannot start a process for rank {} of {}: {}", rank, ranks, std::strerror(errno)));
    children.add(pid);
    control.set_pid(rank, pid);
  }

  int result = 0;
  std::optional<Clock::time_point> last_resort;  // when those are killed that have not ended on their own
  while (!children.all_ended()) {
    children.wait(std::chrono::milliseconds(100), [&](int rank, const Ending& ending) {
      if (ending.signal || ending.unknown) print_rank_line(rank, describe(ending));
      const bool lost = control.state(rank) < finished;
      if (lost) control.record_lost(rank);
      result = worse(result, lost || ending.signal ? 3 : ending.code);
    });
    if (!last_resort && control.has_failed())
      last_resort = Clock::now() +
                    std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.wait_limit + 5));
    if (last_resort && Clock::now() > *last_resort) children.send(SIGKILL);
  }
  children.reap();
  return result;
}

}  // namespace imbrex
