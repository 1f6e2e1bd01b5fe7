// The BLAS starts no threads, and where it gets no memory it says so.
#include "base/blas.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "imbrex/error.hpp"

namespace imbrex::base {
namespace {

std::size_t address_space() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  EXPECT_EQ(std::fscanf(file, "%lu", &pages), 1);
  std::fclose(file);
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// So many threads, or as many as the system gives.
bool multiply_at_once(int threads) {
  constexpr int n = 64;
  std::array<float, n * n> ones, wanted;
  ones.fill(1);
  wanted.fill(n);
  std::atomic<bool> right = true;
  std::vector<std::jthread> all;
  const auto work = [&] {
    std::array<float, n * n> product{};  // there may be no heap left
    for (int round = 0; round < 20; ++round) {
      multiply({n, n, n, ones.data(), n, ones.data(), n, false, 0.0f, product.data(), n});
    }
    if (product != wanted) right = false;
  };
  for (int i = 0; i < threads; ++i) try {
      all.emplace_back(work);
    } catch (const std::system_error&) {
      break;
    }
  all.clear();
  return right;
}

// What `work` returns in a process of its own with `room` bytes of address space more than it has.
int code_of_child(std::size_t room, const std::function<int()>& work) {
  const std::size_t limit_bytes = address_space() + room;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // OpenBLAS, left to itself, asks for ever
    const rlimit limit{limit_bytes, limit_bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(4);
    try {
      _exit(work());
    } catch (const Error& error) {
      const bool said = std::string(error.what()).find("(ulimit -v)") != std::string::npos;
      _exit(said ? static_cast<int>(error.code()) : 4);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  ADD_FAILURE() << room << " bytes: signal " << WTERMSIG(status);
  return 4;
}

// First: this process has no memory of the BLAS yet.
TEST(Blas, GetsItsMemoryOrSaysThatThereIsNone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes the whole address space";
#endif
  int made = 0, refused = 0;
  for (std::size_t room = 0; room <= std::size_t{640} << 20; room += std::size_t{16} << 20) {
    const int code = code_of_child(room, [] {
      reserve_blas(3);
      return multiply_at_once(3) ? 0 : 4;
    });
    ASSERT_TRUE(code == 0 || code == 3) << room << " bytes: code " << code;
    ++(code == 0 ? made : refused);
  }
  EXPECT_GT(made, 0);
  EXPECT_GT(refused, 0);
}

// Another thread takes the address space between a look whether there is enough of it and its use.
TEST(Blas, GetsItsMemoryBesideAThreadThatTakesIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes the whole address space";
#endif
  int made = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    // Two of eight rounds are no race, so that both ends are seen on a machine that is too busy for one.
    const bool taker_first = round % 8 == 0, taker_never = round % 8 == 1;
    const int code = code_of_child(std::size_t{1} << 30, [=] {
      std::atomic<bool> ready = false, go = false, taken = false, end = false;
      const std::jthread taker([&] {
        ready = true;
        while (!go && !end) {
        }
        while (!end &&
               mmap(nullptr, std::size_t{100} << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
        }
        taken = true;
      });
      while (!ready) std::this_thread::yield();
      const std::size_t bytes = address_space() + (std::size_t{192} << 20);  // for one of the two
      const rlimit limit{bytes, bytes};
      if (setrlimit(RLIMIT_AS, &limit) != 0) return 4;
      go = !taker_never;
      while (taker_first && !taken) std::this_thread::yield();
      try {
        reserve_blas(1);
      } catch (const Error& error) {
        end = true;
        return static_cast<int>(error.code());
      }
      end = true;
      return 0;
    });
    if (taker_first || taker_never) {
      EXPECT_EQ(code, taker_first ? 3 : 0) << "round " << round;
    }
    ASSERT_TRUE(code == 0 || code == 3) << "round " << round << ": code " << code;
    ++(code == 0 ? made : refused);
  }
  EXPECT_GT(made, 0);
  EXPECT_GT(refused, 0);
}

TEST(Blas, StartsNoThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer has a thread of its own";
#endif
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core: no BLAS starts threads here";
  reserve_blas(1);
  const std::filesystem::directory_iterator threads("/proc/self/task");
  EXPECT_EQ(std::distance(begin(threads), end(threads)), 1);
}

// OpenBLAS writes into memory that is not its own where a process has more buffers than it counts on.
TEST(Blas, NoNumberOfThreadsAndReservationsIsTooLarge) {
  constexpr int most_bytes = 1 << 20;
  for (int i = 0; i < 300; ++i) reserve_blas(1 + i);
  EXPECT_TRUE(multiply_at_once(300));
  const std::size_t before = address_space();
  for (int i = 0; i < 300; ++i) reserve_blas(1 + i);
  EXPECT_LT(address_space(), before + most_bytes);
}

}  // namespace
}  // namespace imbrex::base
