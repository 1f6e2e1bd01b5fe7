// A program that closes descriptors that it did not open, as daemons do, and then goes on. closed_test.py says what is
// to come of it.
//
// usage: shmem_closed HOW WHEN
//   HOW    close: all above 2; over: replaces each by a file of its own
//   WHEN   leave: finalizes at once; work: goes on for a while before; kill: PE 1 is killed, the others wait in a
//          barrier; stuck: PE 1 does not come to it

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "imbrex/shmem.h"

namespace {

constexpr int most = 256;

/// The program's own file, of each number that it has taken.
struct Own {
  int file = -1;
  std::vector<int> numbers;

  void take_all() {
    const int made = memfd_create("own", MFD_CLOEXEC);
    file = dup2(made, most);
    for (int number = 3; number < most; ++number)
      if (dup2(file, number) == number) numbers.push_back(number);
  }
  /// It was neither closed nor written into.
  bool untouched() const {
    struct stat own {
    }, seen{};
    if (file < 0) return true;
    if (fstat(file, &own) != 0 || own.st_size != 0) return false;
    for (const int number : numbers)
      if (fstat(number, &seen) != 0 || seen.st_ino != own.st_ino) return false;
    return true;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string how = argv[1], when = argv[2];
  shmem_init();
  const int me = shmem_my_pe(), pes = shmem_n_pes();
  auto* word = static_cast<long*>(shmem_calloc(1, sizeof(long)));
  shmem_barrier_all();
  Own own;
  if (how == "close")
    for (int number = 3; number < most; ++number) close(number);
  else
    own.take_all();
  if (when == "work") {
    for (int round = 1; round <= 10; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      shmem_long_p(word, round, (me + 1) % pes);
      shmem_barrier_all();
      if (*word != round) return 1;
      shmem_barrier_all();
    }
  } else if (when == "kill") {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (me == 1) std::raise(SIGKILL);
    shmem_barrier_all();
  } else if (when == "stuck") {
    if (me == 1) std::this_thread::sleep_for(std::chrono::hours(1));
    shmem_barrier_all();
  }
  shmem_finalize();
  std::printf("PE left, and its files are %s\n", own.untouched() ? "untouched" : "touched");
  return own.untouched() ? 0 : 1;
}
