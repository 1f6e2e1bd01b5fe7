// Progress lines of long commands. They come from a timer's signal handler: commands fork their ranks, so this process
// may have neither another thread nor a child of its own.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "command.hpp"

namespace imbrex::cli {
namespace {

constexpr int first_line_seconds = 2, longest_pause_seconds = 30;

// What the handler works with; set while no timer runs.
timer_t timer;
timespec begin;
int pause_seconds = 0;
char prefix[160];

void start_timer(int seconds) {
  itimerspec time{};
  time.it_value.tv_sec = seconds;
  timer_settime(timer, 0, &time, nullptr);
}

// Only what a signal handler may do: clock_gettime, write, timer_settime, and arithmetic.
void report(int) {
  const int saved = errno;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  char line[sizeof prefix + 32];
  std::size_t length = strlen(prefix);
  std::memcpy(line, prefix, length);
  char digits[20];
  std::size_t count = 0;
  for (long seconds = std::max(0L, now.tv_sec - begin.tv_sec); count == 0 || seconds > 0; seconds /= 10)
    digits[count++] = static_cast<char>('0' + seconds % 10);
  while (count > 0) line[length++] = digits[--count];
  constexpr char end[] = " s so far\n";
  std::memcpy(line + length, end, sizeof end - 1);
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line, length + sizeof end - 1);
  pause_seconds = std::min(2 * pause_seconds, longest_pause_seconds);
  start_timer(pause_seconds);
  errno = saved;
}

}  // namespace

Progress::Progress(const std::string& what) {
  const auto end = fmt::format_to_n(prefix, sizeof prefix - 1, "imbrex: {}: ", what).out;
  *end = '\0';
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
  if (!running_) return;
  timer_delete(timer);
  signal(SIGALRM, SIG_DFL);
}

}  // namespace imbrex::cli
