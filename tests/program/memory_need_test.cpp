// What does not fit is refused, and nothing else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "imbrex/error.hpp"
#include "program/memory_need.hpp"

namespace imbrex::program {
namespace {

// A host with files of its own.
class Host {
 public:
  Host() : root_(std::filesystem::temp_directory_path() / ("imbrex-memory-" + std::to_string(getpid()))) {}
  ~Host() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  MemoryLeft left() const { return memory_left(root_.string()); }

 private:
  std::filesystem::path root_;
};

TEST(MemoryNeed, TheSystemSaysWhatIsLeft) {
  const Host host;
  EXPECT_EQ(host.left().bytes, std::numeric_limits<double>::infinity());
  host.write("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable:    2000 kB\nSwapFree: 500 kB\n");
  EXPECT_EQ(host.left().bytes, 2500 * 1024.0);
  EXPECT_EQ(host.left().by, "the system");
}

TEST(MemoryNeed, AControlGroupMayLeaveLess) {
  const Host host;
  host.write("proc/meminfo", "MemAvailable: 1000000 kB\nSwapFree: 0 kB\n");
  host.write("proc/self/cgroup", "4:memory:/job/a\n1:cpu:/\n0::/job/a\n");
  host.write("sys/fs/cgroup/job/a/memory.max", "max\n");
  host.write("sys/fs/cgroup/job/a/memory.current", "100\n");
  EXPECT_EQ(host.left().by, "the system");
  // The group around it counts, too.
  host.write("sys/fs/cgroup/job/memory.max", "100000\n");
  host.write("sys/fs/cgroup/job/memory.current", "60000\n");
  host.write("sys/fs/cgroup/job/memory.stat", "anon 20000\ninactive_file 3000\nactive_file 500\n");
  EXPECT_EQ(host.left().bytes, 43500);
  EXPECT_EQ(host.left().by, "the control group's limit");
  host.write("sys/fs/cgroup/memory/job/a/memory.limit_in_bytes", "5000\n");
  host.write("sys/fs/cgroup/memory/job/a/memory.usage_in_bytes", "7000\n");
  host.write("sys/fs/cgroup/memory/job/a/memory.stat", "total_inactive_file 8\n");
  EXPECT_EQ(host.left().bytes, 8);
}

TEST(MemoryNeed, OnlyWhatDoesNotFitIsRefused) {
  const MemoryLeft left{0x1p30, "the system"};
  EXPECT_NO_THROW(expect_memory("a job", 0x1p30, left));
  try {
    expect_memory("a job", 0x3p29, left);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_STREQ(error.what(),
                 "a job needs 1.5 GiB of this host's memory at least, and 1.0 GiB are left by the system");
  }
}

// Ranks have A, B and two results each; verified, a float an element and, of rows that are compared, five
// numbers in float64.
TEST(MemoryNeed, AllRanksCountAndTheirReferences) {
  const Problem p{Operator::gemm_all_reduce, 100, 200, 400, 4, Type::bf16};
  const double operands = 4 * 2.0 * (100 * 100 + 100 * 200 + 2 * 100 * 200);
  EXPECT_EQ(least_bytes_of(p, false), operands);
  EXPECT_EQ(least_bytes_of(p, true), operands + 4 * 100 * 200 * 44.0);
  const Problem large{Operator::gemm_reduce_scatter, 4096, 8192, 28672, 4, Type::bf16};
  EXPECT_DOUBLE_EQ(least_bytes_of(large, true) - least_bytes_of(large, false), 4096 * 8192 * (4 + 40.0 / 14));
  // What lies between rows is memory, too.
  Problem apart = p;
  apart.lda = std::int64_t{1} << 31;
  EXPECT_EQ(least_bytes_of(apart, false), operands + 4 * 2 * 99 * (0x1p31 - 100));
}

}  // namespace
}  // namespace imbrex::program
