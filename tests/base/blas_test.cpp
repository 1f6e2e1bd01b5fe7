// The BLAS starts no threads, and where it gets no memory it says so.
#include "base/blas.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <thread>

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

TEST(Blas, StartsNoThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer has a thread of its own";
#endif
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core: no BLAS starts threads here";
  const BlasMemory memory(1);
  const std::filesystem::directory_iterator threads("/proc/self/task");
  EXPECT_EQ(std::distance(begin(threads), end(threads)), 1);
}

TEST(Blas, GetsItsMemoryOrSaysThatThereIsNone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes the whole address space";
#endif
  const std::size_t before = address_space();
  int made = 0, refused = 0;
  for (std::size_t room = 0; room <= std::size_t{640} << 20; room += std::size_t{16} << 20) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);  // OpenBLAS, left to itself, asks for ever
      const rlimit limit{before + room, before + room};
      if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(4);
      try {
        const BlasMemory first(2), second(1);
        _exit(0);
      } catch (const Error& error) {
        const bool said = std::string(error.what()).find("(ulimit -v)") != std::string::npos;
        _exit(said ? static_cast<int>(error.code()) : 4);
      }
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << room << " bytes: signal " << WTERMSIG(status);
    const int code = WEXITSTATUS(status);
    ASSERT_TRUE(code == 0 || code == 3) << room << " bytes: code " << code;
    ++(code == 0 ? made : refused);
  }
  EXPECT_GT(made, 0);
  EXPECT_GT(refused, 0);
}

TEST(Blas, MemoryOfObjectsThatAreGoneIsUsedAgain) {
  { const BlasMemory memory(2); }
  const std::size_t before = address_space();
  for (int i = 0; i < 10; ++i) {
    const BlasMemory memory(2);
  }
  EXPECT_EQ(address_space(), before);
}

}  // namespace
}  // namespace imbrex::base
