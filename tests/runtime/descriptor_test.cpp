// Descriptors between ranks: everybody can read what everybody gave, and a rank that does not take part is named.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "imbrex/error.hpp"
#include "runtime/bootstrap/descriptor_exchange.hpp"

namespace imbrex::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using runtime::exchange_descriptors;
using runtime::FileDescriptor;
using runtime::SharedMemory;

struct RanksBy {
  const char* name;
  int (*run)(int ranks, const WorldOptions& options, const std::function<int(World&)>& body);
};

const WorldOptions small{.heap_bytes = 4096, .wait_limit = 20};

FileDescriptor file_with(int value) {
  FileDescriptor file = SharedMemory::create_file("imbrex-test", sizeof value);
  EXPECT_EQ(pwrite(file.get(), &value, sizeof value, 0), static_cast<ssize_t>(sizeof value));
  return file;
}

long open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
}

class DescriptorExchange : public testing::TestWithParam<RanksBy> {};

TEST_P(DescriptorExchange, GivesEveryRankEveryRanksFile) {
  for (const int ranks : {1, 2, 7}) {
    const auto body = [](World& world) {
      for (int round = 0; round < 3; ++round) {
        const auto value = [&](int rank) { return 100 * round + rank; };
        const FileDescriptor own = file_with(value(world.rank()));
        const std::vector<FileDescriptor> all = exchange_descriptors(world, own.get());
        if (std::ssize(all) != world.size()) return 1;
        for (int rank = 0; rank < world.size(); ++rank) {
          int seen = -1;
          const int fd = all[static_cast<std::size_t>(rank)].get();
          if (pread(fd, &seen, sizeof seen, 0) != sizeof seen || seen != value(rank)) return 1;
        }
        if (fcntl(own.get(), F_GETFD) < 0) return 1;
      }
      return 0;
    };
    const long before = open_descriptors();
    EXPECT_EQ(GetParam().run(ranks, small, body), 0) << ranks << " ranks";
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST_P(DescriptorExchange, NamesARankThatDoesNotComeWithinTheLimit) {
  const auto begin = Clock::now();
  testing::internal::CaptureStderr();
  const int code = GetParam().run(3, {.heap_bytes = 4096, .wait_limit = 0.5}, [](World& world) {
    const FileDescriptor own = file_with(world.rank());
    if (world.rank() == 2) std::this_thread::sleep_for(1500ms);
    exchange_descriptors(world, own.get());
    return 0;
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 3);
  EXPECT_NE(text.find("for rank 2, the wait limit"), std::string::npos) << text;
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST_P(DescriptorExchange, NamesARankThatListensButSendsNothing) {
  const auto begin = Clock::now();
  testing::internal::CaptureStderr();
  const int code = GetParam().run(3, {.heap_bytes = 4096, .wait_limit = 0.5}, [](World& world) {
    const FileDescriptor own = file_with(world.rank());
    if (world.rank() == 1) {
      std::vector<char> door(64, '0'), all(3 * 64);
      world.all_gather(door.data(), all.data(), door.size());
      std::this_thread::sleep_for(1500ms);
      return 0;
    }
    exchange_descriptors(world, own.get());
    return 0;
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 3);
  EXPECT_NE(text.find("waited 0.5 s for the descriptor of rank 1"), std::string::npos) << text;
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST_P(DescriptorExchange, EndsAtOnceWhenARankFails) {
  const auto begin = Clock::now();
  testing::internal::CaptureStderr();
  const int code = GetParam().run(3, small, [](World& world) {
    if (world.rank() == 1) throw Error(ErrorCode::runtime_failure, "out of luck");
    const FileDescriptor own = file_with(world.rank());
    exchange_descriptors(world, own.get());
    return 0;
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 3);
  EXPECT_NE(text.find("imbrex: rank 0: rank 1 failed: out of luck"), std::string::npos) << text;
  EXPECT_LT(Clock::now() - begin, 5s);
}

// Numbers whose files are the program's are left to it.
TEST(FileDescriptor, OwnsItsFileAndNotItsNumber) {
  const auto kinds = std::vector<int (*)()>{
      [] { return eventfd(0, EFD_CLOEXEC); },
      [] { return static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)); },
      [] { return memfd_create("imbrex-test", MFD_CLOEXEC); },
      [] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); },
      [] { return open("/dev/null", O_WRONLY | O_CLOEXEC); },
  };
  for (std::size_t ours = 0; ours < kinds.size(); ++ours)
    for (std::size_t theirs = 0; theirs < kinds.size(); ++theirs) {
      FileDescriptor own(kinds[ours]());
      const int number = own.get();
      ASSERT_TRUE(own.is_own());
      const FileDescriptor other(fcntl(number, F_DUPFD_CLOEXEC, 0));
      EXPECT_TRUE(other.is_own());
      close(number);
      EXPECT_FALSE(own.is_own());
      const int file = kinds[theirs]();
      ASSERT_GE(dup2(file, number), 0);
      EXPECT_FALSE(own.is_own()) << ours << " and then " << theirs;
      own.close();
      EXPECT_EQ(close(number), 0) << ours << " and then " << theirs << ": it was closed";
      if (file != number) close(file);
    }
  FileDescriptor first(open("/dev/null", O_WRONLY | O_CLOEXEC)), second = std::move(first);
  EXPECT_FALSE(first.is_own());
  EXPECT_TRUE(second.is_own());
  const int number = second.get();
  second.close();
  EXPECT_FALSE(second.is_own());
  EXPECT_LT(fcntl(number, F_GETFD), 0);
}

INSTANTIATE_TEST_SUITE_P(Over, DescriptorExchange,
                         testing::Values(RanksBy{"Processes", run_processes}, RanksBy{"Threads", run_threads}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(DescriptorExchangeOfProcesses, EndsAtOnceWhenAProcessIsKilled) {
  const auto begin = Clock::now();
  testing::internal::CaptureStderr();
  const int code = run_processes(3, small, [](World& world) {
    const FileDescriptor own = file_with(world.rank());
    if (world.rank() == 2) raise(SIGKILL);
    exchange_descriptors(world, own.get());
    return 0;
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 3);
  for (const char* survivor : {"imbrex: rank 0: rank 2 (pid", "imbrex: rank 1: rank 2 (pid"})
    EXPECT_NE(text.find(survivor), std::string::npos) << text;
  EXPECT_LT(Clock::now() - begin, 5s);
}

}  // namespace
}  // namespace imbrex::test
