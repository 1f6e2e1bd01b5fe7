#include "base/files/temporary_name.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/check.hpp"

namespace imbrex::base {

/// Where the handler finds a name. A forked child has copies of its parent's names, which are not its own.
struct TemporaryName::Place {
  std::atomic<pid_t> owner{0};    // 0: there is no name
  std::atomic<bool> busy{false};  // the rest, or the file, is being changed: see Busy
  int folder = -1;
  std::array<char, 64> name{};
  bool taken = false;  // under `lock`
};

namespace {

constexpr std::array<int, 3> ending_signals{SIGTERM, SIGINT, SIGHUP};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler reads them");

std::mutex lock;
std::size_t names = 0;                                       // under `lock`
std::array<struct sigaction, ending_signals.size()> before;  // under `lock`; of `names` > 0
std::atomic<bool> ending{false};

sigset_t ending_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : ending_signals) sigaddset(&set, signal);
  return set;
}

bool by_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

}  // namespace

/// While it lives, this thread alone has to do with a place and its file: none of the signals interrupts it, and the
/// handler waits on another thread. Where the handler has begun, nothing goes on: what it cleans up must neither come
/// back nor look like a failure.
class TemporaryName::Busy {
 public:
  explicit Busy(Place& place) : place_(place) {
    const sigset_t signals = ending_set();
    pthread_sigmask(SIG_BLOCK, &signals, &mask_);
    place_.busy = true;
    while (ending) {
      place_.busy = false;
      pause();
    }
  }
  ~Busy() {
    const int cause = errno;
    place_.busy = false;
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    errno = cause;
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Place& place_;
  sigset_t mask_;
};

/// As many files as may be in the making at once.
struct Places {
  static inline std::array<TemporaryName::Place, 256> all;

  /// Unlinks this process's names and lets the signal do what it would have done.
  static void clean_up(int signal) {
    ending = true;
    const pid_t self = getpid();
    for (TemporaryName::Place& place : all) {
      if (place.owner != self) continue;
      for (const timespec pause{0, 100000}; place.busy; nanosleep(&pause, nullptr)) {
      }
      unlinkat(place.folder, place.name.data(), 0);
    }
    ::signal(signal, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    raise(signal);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    _exit(128 + signal);  // a container's first process does not end by a signal's default
  }

  static void catch_signals() {
    struct sigaction action {};
    action.sa_handler = clean_up;
    action.sa_mask = ending_set();
    for (std::size_t i = 0; i < ending_signals.size(); ++i) {
      sigaction(ending_signals[i], nullptr, &before[i]);
      if (by_default(before[i])) sigaction(ending_signals[i], &action, nullptr);
    }
  }

  static bool caught(int signal) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    return (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == clean_up;
  }

  static void release_signals() {
    for (std::size_t i = 0; i < ending_signals.size(); ++i)
      if (caught(ending_signals[i])) sigaction(ending_signals[i], &before[i], nullptr);
  }
};

TemporaryName::TemporaryName(int folder) {
  std::array<unsigned char, 16> random{};
  IMBREX_SYSTEM(static_cast<int>(getrandom(random.data(), random.size(), 0)));
  const std::lock_guard guard(lock);
  const auto place = std::find_if(Places::all.begin(), Places::all.end(), [](const Place& p) { return !p.taken; });
  if (place == Places::all.end())
    throw Error(ErrorCode::runtime_failure, fmt::format("{} files are being written already", Places::all.size()));
  place_ = &*place;
  {
    const Busy busy(*place_);
    *fmt::format_to(place_->name.data(), ".imbrex-{:02x}.partial", fmt::join(random, "")) = '\0';
    place_->folder = folder;
    place_->taken = true;
    place_->owner = getpid();
    if (names++ == 0) Places::catch_signals();
  }

  int at_parents_end = 0;
  sigset_t blocked;
  if (prctl(PR_GET_PDEATHSIG, &at_parents_end) == 0 && at_parents_end == SIGKILL && Places::caught(SIGTERM) &&
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0 && sigismember(&blocked, SIGTERM) == 0)
    gentler_end_ = prctl(PR_SET_PDEATHSIG, SIGTERM) == 0;
}

TemporaryName::~TemporaryName() {
  const std::lock_guard guard(lock);
  {
    const Busy busy(*place_);
    unlinkat(place_->folder, place_->name.data(), 0);
    place_->owner = 0;
    place_->taken = false;
    if (--names == 0) Places::release_signals();
  }
  if (gentler_end_) prctl(PR_SET_PDEATHSIG, SIGKILL);
}

const char* TemporaryName::get() const noexcept { return place_->name.data(); }

int TemporaryName::alone(const std::function<int()>& action) {
  const Busy busy(*place_);
  return action();
}

}  // namespace imbrex::base
