#include "runtime/heap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "imbrex/error.hpp"
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

TEST(SharedMemory, RefusesAFileThatIsTooSmall) {
  const FileDescriptor file = SharedMemory::create_file("test", 4096);
  EXPECT_THROW(SharedMemory(file, 4097), Error);
}

}  // namespace
}  // namespace imbrex::runtime
