#include "runtime/heap.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "imbrex/error.hpp"
#include "runtime/host_world.hpp"
#include "runtime/memory.hpp"

namespace imbrex::runtime {
namespace {

TEST(OffsetAllocator, GivesFromRangesAddedLater) {
  OffsetAllocator allocator(1024);
  EXPECT_EQ(allocator.allocate(1024), 0u);
  EXPECT_EQ(allocator.allocate(256), std::nullopt);
  allocator.add(2048, 1000);  // 768 of them
  EXPECT_EQ(allocator.free_bytes(), 768u);
  EXPECT_EQ(allocator.allocate(768), 2048u);
  allocator.release(0);
  allocator.release(2048);
  EXPECT_EQ(allocator.allocate(1280), std::nullopt);  // a gap lies between them
  allocator.add(2816, 512);                           // touches the second
  EXPECT_EQ(allocator.allocate(1280), 2048u);
  EXPECT_EQ(allocator.allocate(1024), 0u);
}

TEST(OffsetAllocator, TakesBackRangesOfWhichNothingIsTaken) {
  OffsetAllocator allocator(1024);
  allocator.add(2048, 1024);
  ASSERT_EQ(allocator.allocate(1024), 0u);
  ASSERT_EQ(allocator.allocate(512), 2048u);
  EXPECT_FALSE(allocator.remove(2048, 1024));
  allocator.release(2048);
  EXPECT_FALSE(allocator.remove(2048, 512));
  EXPECT_TRUE(allocator.remove(2048, 1024));
  EXPECT_FALSE(allocator.remove(2048, 1024));
  EXPECT_EQ(allocator.free_bytes(), 0u);
  EXPECT_EQ(allocator.allocate(256), std::nullopt);
  // What comes to that place is new memory.
  allocator.add(2048, 512);
  EXPECT_EQ(allocator.unused_bytes(), 512u);
  EXPECT_EQ(allocator.allocate_unused(512), 2048u);
  // A range before one that is taken is not.
  allocator.release(0);
  EXPECT_TRUE(allocator.remove(0, 1024));
  EXPECT_EQ(allocator.unused_bytes(), 0u);
}

TEST(OffsetAllocator, MatchesAModelOverRandomSequences) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int sequence = 0; sequence < 200; ++sequence) {
    // The model: one flag a unit of 256 bytes; first fit is the lowest run of free flags.
    const std::size_t units = 1 + random() % 60;
    std::vector<bool> taken(units);
    OffsetAllocator allocator(units * 256 + random() % 256);
    std::vector<std::pair<std::size_t, std::size_t>> live;  // unit, units
    for (int step = 0; step < 200; ++step) {
      if (live.empty() || random() % 5 < 3) {
        const std::size_t bytes = random() % (random() % 4 ? 1000 : 20000);
        const std::size_t length = std::max<std::size_t>(1, (bytes + 255) / 256);
        std::optional<std::size_t> expected;
        for (std::size_t first = 0; first + length <= units && !expected; ++first) {
          bool fits = true;
          for (std::size_t i = 0; i < length; ++i) fits = fits && !taken[first + i];
          if (fits) expected = first * 256;
        }
        ASSERT_EQ(allocator.allocate(bytes), expected);
        if (!expected) continue;
        for (std::size_t i = 0; i < length; ++i) taken[*expected / 256 + i] = true;
        live.emplace_back(*expected / 256, length);
      } else {
        std::swap(live[random() % live.size()], live.back());
        const auto [first, length] = live.back();
        live.pop_back();
        ASSERT_EQ(allocator.release(first * 256), length * 256);
        ASSERT_EQ(allocator.release(first * 256), std::nullopt);
        for (std::size_t i = 0; i < length; ++i) taken[first + i] = false;
      }
      ASSERT_EQ(allocator.free_bytes(), 256 * static_cast<std::size_t>(std::count(taken.begin(), taken.end(), false)));
    }
    for (const auto& [first, length] : live) allocator.release(first * 256);
    ASSERT_EQ(allocator.largest_free(), units * 256);
  }
}

// The end of all that was ever taken, and the lowest free place after it.
TEST(OffsetAllocator, GivesWhatNobodyHad) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int sequence = 0; sequence < 200; ++sequence) {
    const std::size_t capacity = 256 * (1 + random() % 100);
    OffsetAllocator allocator(capacity);
    std::vector<std::size_t> live;
    std::size_t used = 0;
    for (int step = 0; step < 60; ++step) {
      EXPECT_EQ(allocator.unused_bytes(), capacity - used);
      const std::size_t bytes = 256 * (1 + random() % 12);
      std::optional<std::size_t> given;
      if (random() % 3 == 0) {
        given = allocator.allocate_unused(bytes - random() % 256);
        ASSERT_EQ(given, used + bytes <= capacity ? std::optional(used) : std::nullopt);
      } else if (random() % 2 == 0 || live.empty()) {
        given = allocator.allocate(bytes);
      } else {
        std::swap(live[random() % live.size()], live.back());
        ASSERT_TRUE(allocator.release(live.back()));
        live.pop_back();
      }
      if (!given) continue;
      live.push_back(*given);
      used = std::max(used, *given + bytes);
    }
    for (const std::size_t offset : live) ASSERT_TRUE(allocator.release(offset));
    EXPECT_EQ(allocator.free_bytes(), capacity);
    EXPECT_EQ(allocator.largest_free(), capacity);
  }
  EXPECT_EQ(OffsetAllocator(1024).allocate_unused(std::size_t(-1)), std::nullopt);
}

TEST(OffsetAllocator, RefusesWhatCannotBe) {
  OffsetAllocator allocator(1024);
  EXPECT_EQ(allocator.allocate(1025), std::nullopt);
  EXPECT_EQ(allocator.allocate(std::size_t(-1)), std::nullopt);
  EXPECT_EQ(allocator.release(0), std::nullopt);
  EXPECT_EQ(OffsetAllocator(255).allocate(1), std::nullopt);
}

TEST(ZeroShared, ZeroesExactlyTheRange) {
  const std::size_t bytes = 6 * page_bytes();
  const FileDescriptor file = SharedMemory::create_file("test", bytes);
  const SharedMemory memory(file, bytes);
  const std::vector<std::pair<std::size_t, std::size_t>> ranges = {
      {0, bytes}, {256, 256}, {256, 3 * page_bytes()}, {page_bytes(), page_bytes()}, {page_bytes() - 1, 2}, {512, 0}};
  for (const auto& [begin, length] : ranges) {
    std::memset(memory.data(), 0xff, bytes);
    zero_shared(memory.data() + begin, length);
    for (std::size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(memory.data()[i], i >= begin && i < begin + length ? std::byte{0} : std::byte{0xff}) << i;
  }
}

TEST(SharedMemory, RefusesAFileOfAnotherSize) {
  const FileDescriptor file = SharedMemory::create_file("test", 4096);
  EXPECT_THROW(SharedMemory(file, 4097), Error);
  EXPECT_THROW(SharedMemory(file, 4095), Error);
  EXPECT_NO_THROW(SharedMemory(file, 4096));
}

TEST(SharedMemory, RefusesAFileThatCouldShrink) {
  const auto file_with = [](int seals) {
    FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(file.get(), 4096), 0);
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  };
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_GROW | F_SEAL_SEAL})
    EXPECT_THROW(SharedMemory(file_with(seals), 4096), Error) << seals;
  EXPECT_NO_THROW(SharedMemory(file_with(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 4096));
  // A file of a file system has no seals.
  std::FILE* plain = std::tmpfile();
  ASSERT_TRUE(plain);
  const FileDescriptor copy(dup(fileno(plain)));
  EXPECT_EQ(ftruncate(copy.get(), 4096), 0);
  EXPECT_THROW(SharedMemory(copy, 4096), Error);
  std::fclose(plain);
}

TEST(Segment, RefusesFilesOfAnotherWorld) {
  const WorldOptions options{.heap_bytes = 8192, .wait_limit = 1};
  const auto attach = [&](int size, const WorldOptions& wanted, bool twice = false) {
    const auto made = Segment::create(2, options);
    return Segment::attach(FileDescriptor(dup(made->control_file.get())),
                           FileDescriptor(dup(twice ? made->control_file.get() : made->heap_file.get())), size, wanted);
  };
  EXPECT_EQ(attach(2, options)->heap.bytes(), 2 * 8192u);
  EXPECT_THROW(attach(3, options), Error);
  EXPECT_THROW(attach(2, {.heap_bytes = 4096, .wait_limit = 1}), Error);
  EXPECT_THROW(attach(2, {.heap_bytes = 12288, .wait_limit = 1}), Error);
  EXPECT_THROW(attach(2, options, true), Error);
}

}  // namespace
}  // namespace imbrex::runtime
