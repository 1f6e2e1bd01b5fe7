// imbrex launch: one process per rank.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>

#include "base/check.hpp"
#include "imbrex/world.hpp"
#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/children.hpp"
#include "runtime/bootstrap/nccl_hosts.hpp"
#include "runtime/bootstrap/rendezvous.hpp"
#include "runtime/bootstrap/socket.hpp"
#include "runtime/host_world.hpp"

namespace imbrex {
namespace {

using namespace runtime;

constexpr double grace = 5;       // seconds for ranks to report and end on their own after another failed
constexpr double last_grace = 2;  // seconds from SIGTERM to SIGKILL

std::atomic<int> pending_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "set by a signal handler");

/// While it lives, signals that end a program are noted instead, to be passed on.
class SignalCatcher {
 public:
  SignalCatcher() {
    pending_signal = 0;
    struct sigaction action {};
    action.sa_handler = [](int signal) { pending_signal = signal; };
    for (std::size_t i = 0; i < caught.size(); ++i) {
      sigaction(caught[i], &action, &before_[i]);
      if (before_[i].sa_handler == SIG_IGN) sigaction(caught[i], &before_[i], nullptr);  // nohup means it
    }
  }
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;
  ~SignalCatcher() {
    for (std::size_t i = 0; i < caught.size(); ++i) sigaction(caught[i], &before_[i], nullptr);
  }

 private:
  static constexpr std::array<int, 4> caught{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  std::array<struct sigaction, caught.size()> before_{};
};

/// The process group of the ranks and of whatever they start. Its number stays taken until its first process is reaped.
class Group {
 public:
  void lead(pid_t pid) { id_ = pid; }
  pid_t id() const { return id_; }
  void send(int signal) const noexcept {
    if (id_ > 0) kill(-id_, signal);
  }

 private:
  pid_t id_ = 0;
};

/// Tells ranks that still wait for each other why one will not come; see obituary_name.
class Obituary {
 public:
  explicit Obituary(const std::string& id) : name_(obituary_name(launch_key(id))) {}

  void publish(const std::string& text) {
    if (!text_.empty()) return;
    text_ = text.substr(0, max_obituary_bytes);
    listener_ = listen_at(name_);
  }
  void answer() const {
    if (!listener_) return;
    try {
      while (const FileDescriptor reader = try_accept(listener_)) send_message(reader, text_.data(), text_.size());
    } catch (const Error&) {  // out of descriptors: the reader waits in the queue, and the ranks are still to be ended
    }
  }

 private:
  std::string name_, text_;
  FileDescriptor listener_;
};

bool same_name(std::string_view x, std::string_view y) { return x.substr(0, x.find('=')) == y.substr(0, y.find('=')); }

/// What all ranks of a launch have in common.
struct Launch {
  int ranks;
  std::string id;    // random
  std::string host;  // random, of ranks that share GPUs; else empty
};

/// This process's environment with the variables of one rank.
std::vector<std::string> environment_of(int rank, const Launch& launch) {
  const std::vector<std::string> own = {
      fmt::format("{}={}", base::name_of(base::Key::rank), rank),
      fmt::format("{}={}", base::name_of(base::Key::world_size), launch.ranks),
      fmt::format("{}={}", base::name_of(base::Key::rendezvous), launch.id),
  };
  std::vector<std::string> result = own;
  const auto is_in = [](const std::vector<std::string>& list, std::string_view text) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& other) { return same_name(other, text); });
  };
  for (char** entry = environ; *entry; ++entry)
    if (!is_in(own, *entry)) result.emplace_back(*entry);
  Variables wanted = nccl_variables();
  if (!launch.host.empty()) {
    const Variables host = own_nccl_host(launch.host, rank);
    wanted.insert(wanted.end(), host.begin(), host.end());
  }
  for (const auto& [name, value] : wanted)
    if (std::string entry = name + "=" + value; !is_in(result, entry)) result.push_back(std::move(entry));
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// In the child: becomes the command, or writes errno to `report` and exits.
[[noreturn]] void become(char* const* arguments, char* const* variables, pid_t parent, pid_t group, int report) {
  setpgid(0, group);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives the launcher
  if (getppid() == parent) execvpe(arguments[0], arguments, variables);
  const int reason = errno;
  [[maybe_unused]] const auto written = write(report, &reason, sizeof reason);
  _exit(127);
}

void start(Children& children, Group& group, const Launch& launch, const std::vector<std::string>& command) {
  const pid_t parent = getpid();
  std::vector<std::string> words = command;
  const std::vector<char*> arguments = pointers_to(words);
  for (int rank = 0; rank < launch.ranks; ++rank) {
    std::vector<std::string> settings = environment_of(rank, launch);
    const std::vector<char*> variables = pointers_to(settings);
    int ends[2];
    IMBREX_SYSTEM(pipe2(ends, O_CLOEXEC));  // closed by a successful exec
    const FileDescriptor reader(ends[0]);
    FileDescriptor writer(ends[1]);
    const pid_t pid = IMBREX_SYSTEM(fork());
    if (pid == 0) become(arguments.data(), variables.data(), parent, group.id(), writer.get());
    children.add(pid);
    if (rank == 0) group.lead(pid);
    setpgid(pid, group.id());  // in parent and child: either may come first
    writer.close();
    int reason = 0;
    ssize_t bytes = 0;
    while ((bytes = read(reader.get(), &reason, sizeof reason)) < 0 && errno == EINTR) {
    }
    IMBREX_EXPECTS(bytes == 0, "cannot start '{}': {}", command.front(), std::strerror(reason));
  }
}

}  // namespace

int launch(int ranks, const std::vector<std::string>& command, int ranks_per_gpu) {
  IMBREX_EXPECTS(ranks >= 1 && ranks <= max_world_size, "a world of {} ranks: there must be 1 to {}", ranks,
                 max_world_size);
  IMBREX_EXPECTS(ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be 1, or more where ranks share GPUs", ranks_per_gpu);
  IMBREX_EXPECTS(!command.empty() && !command.front().empty(), "there is no command to launch");

  const Launch common{ranks, random_id(), ranks_per_gpu > 1 ? random_id() : std::string()};
  Obituary obituary(common.id);
  Group group;
  Children children;
  std::fflush(nullptr);
  const SignalCatcher catcher;
  try {
    start(children, group, common, command);
  } catch (...) {
    group.send(SIGKILL);
    throw;
  }

  int result = 0;
  std::optional<Deadline> next_step;  // once a rank has failed or a signal was passed on
  bool terminated = false;
  const auto begin_end = [&](double seconds) {
    if (!next_step) next_step = deadline_in(seconds);
  };
  while (!children.all_ended()) {
    children.wait(std::chrono::milliseconds(100), [&](int rank, const Ending& ending) {
      const bool told = ending.signal || ending.unknown;
      if (told) print_rank_line(rank, describe(ending));
      result = worse(result, ending.signal ? 3 : ending.code);
      if (ending.signal || ending.code)
        obituary.publish(
            fmt::format("rank {} (pid {}) was lost: it {}", rank, children.pid(rank),
                        told ? "was " + describe(ending) : fmt::format("ended with exit code {}", ending.code)));
    });
    obituary.answer();
    if (const int signal = pending_signal.exchange(0)) {
      group.send(signal);
      begin_end(grace);
    }
    if (result != 0) begin_end(grace);
    if (next_step && milliseconds_until(*next_step) == 0) {
      group.send(terminated ? SIGKILL : SIGTERM);
      terminated = true;
      next_step = deadline_in(last_grace);
    }
  }
  group.send(SIGKILL);  // what the ranks have started and left behind
  children.reap();
  return result;
}

}  // namespace imbrex
