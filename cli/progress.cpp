// Progress of long commands, on a line of its own that a terminal shows in place. It comes from a timer's signal
// handler: commands fork their ranks, so this process may have neither another thread nor a child of its own.
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "command.hpp"

namespace imbrex::cli {
namespace {

constexpr int first_line_seconds = 2, longest_pause_seconds = 30;
constexpr char cleared[] = "\r\033[K";

// What ranks, which may be processes, tell the one with the timer.
struct Shared {
  std::atomic<std::uint32_t> done{0};
  std::atomic<bool> shown{false};  // a line that is to be cleared
};
Shared* shared = nullptr;

// What the handler works with; set while no timer runs.
timer_t timer;
timespec begin;
int pause_seconds = 0;
std::uint32_t total = 0;
bool in_place = false;
char prefix[160];

void start_timer(int seconds) {
  itimerspec time{};
  time.it_value.tv_sec = seconds;
  timer_settime(timer, 0, &time, nullptr);
}

// Text that is put together without memory of the heap.
class Line {
 public:
  void add(const char* text) {
    while (*text != 0 && length_ < sizeof text_) text_[length_++] = *text++;
  }
  void add(long number) {
    char digits[24];
    std::size_t count = 0;
    for (long left = std::max(0L, number); count == 0 || left > 0; left /= 10)
      digits[count++] = static_cast<char>('0' + left % 10);
    while (count > 0 && length_ < sizeof text_) text_[length_++] = digits[--count];
  }
  void write() const { [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text_, length_); }

 private:
  char text_[sizeof prefix + 128];
  std::size_t length_ = 0;
};

// Only what a signal handler may do: clock_gettime, write, timer_settime, and arithmetic.
void report(int) {
  const int saved = errno;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long seconds = now.tv_sec - begin.tv_sec;
  const std::uint32_t done = shared == nullptr ? 0 : shared->done.load();
  Line line;
  if (in_place) line.add("\r");
  line.add(prefix);
  if (total > 0) {
    line.add(static_cast<long>(done)), line.add(" of "), line.add(static_cast<long>(total)), line.add(" done (");
    line.add(static_cast<long>(100 * std::uint64_t{done} / total)), line.add(" %), ");
  }
  line.add(seconds), line.add(" s so far");
  if (total > 0 && done > 0) {
    line.add(", about "),
        line.add(static_cast<long>(static_cast<std::uint64_t>(seconds) * (total - std::min(done, total)) / done));
    line.add(" s left");
  }
  line.add(in_place ? "\033[K" : "\n");
  line.write();
  if (in_place && shared != nullptr) shared->shown.store(true);
  pause_seconds = in_place ? 1 : std::min(2 * pause_seconds, longest_pause_seconds);
  start_timer(pause_seconds);
  errno = saved;
}

}  // namespace

Progress::Progress(const std::string& what, std::size_t parts) {
  const auto end = fmt::format_to_n(prefix, sizeof prefix - 1, "imbrex: {}: ", what).out;
  *end = '\0';
  total = static_cast<std::uint32_t>(parts);
  in_place = ::isatty(STDERR_FILENO) == 1;
  void* const page = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  shared = page == MAP_FAILED ? nullptr : new (page) Shared;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  struct sigaction action {};
  action.sa_handler = report;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  pause_seconds = first_line_seconds;
  running_ =
      timer_create(CLOCK_MONOTONIC, nullptr, &timer) == 0;  // its signal is SIGALRM; forked children have no timer
  if (running_) start_timer(pause_seconds);
}

Progress::~Progress() {
  if (running_) {
    timer_delete(timer);
    signal(SIGALRM, SIG_DFL);
  }
  clear();
  if (shared != nullptr) ::munmap(shared, sizeof(Shared));
  shared = nullptr;
}

void Progress::advance() {
  if (shared != nullptr) ++shared->done;
}

void Progress::clear() noexcept {
  if (shared == nullptr || !shared->shown.exchange(false)) return;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, cleared, sizeof cleared - 1);
}

}  // namespace imbrex::cli
