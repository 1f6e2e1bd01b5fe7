#include "runtime/kept_ranges.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace imbrex::runtime {
namespace {

// Memory that goes and comes back, as zeros.
struct Memory {
  std::vector<std::byte> bytes;

  explicit Memory(std::size_t size) : bytes(size) {}
  KeptRanges::Read reader() {
    return [this](std::size_t offset, std::span<std::byte> to) {
      std::memcpy(to.data(), bytes.data() + offset, to.size());
    };
  }
  KeptRanges::Write writer() {
    return [this](std::size_t offset, std::span<const std::byte> from) {
      std::memcpy(bytes.data() + offset, from.data(), from.size());
    };
  }
};

TEST(KeptRanges, BringBackWhatWasSaved) {
  Memory memory(1024);
  std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{7});
  KeptRanges kept;
  kept.add(0, 16);
  kept.add(256, 8);
  kept.add(512, 0);
  kept.add(768, 4);
  kept.save(0, 512, memory.reader());  // without the last
  memory = Memory(1024);
  kept.add(128, 4);  // it was not there
  kept.bring_back(0, 1024, memory.writer());
  for (std::size_t i = 0; i < 1024; ++i)
    EXPECT_EQ(memory.bytes[i], i < 16 || (i >= 256 && i < 264) ? std::byte{7} : std::byte{0}) << i;
  kept.forget();
  memory = Memory(1024);
  kept.bring_back(0, 1024, memory.writer());
  EXPECT_EQ(memory.bytes, Memory(1024).bytes);
}

TEST(KeptRanges, BringBackOnlyWhatLiesThere) {
  Memory memory(512);
  std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{1});
  KeptRanges kept;
  kept.add(0, 8);
  kept.add(256, 8);
  kept.save(0, 512, memory.reader());
  memory = Memory(512);
  kept.bring_back(256, 256, memory.writer());
  EXPECT_EQ(memory.bytes[0], std::byte{0});
  EXPECT_EQ(memory.bytes[256], std::byte{1});
}

// Allocations come and go, some while the memory is away.
TEST(KeptRanges, MatchAModelOverRandomSequences) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::size_t places = 16, width = 64;
  Memory memory(places * width);
  KeptRanges kept;
  std::map<std::size_t, std::size_t> live;  // place, bytes
  for (int round = 0; round < 300; ++round) {
    const auto turn_over = [&] {
      for (std::size_t place = 0; place < places; ++place) {
        if (random() % 3 != 0) continue;
        kept.drop(place * width, width);
        if (live.erase(place) > 0) continue;
        live[place] = 1 + random() % width;
        kept.add(place * width, live[place]);
      }
    };
    turn_over();
    for (std::byte& byte : memory.bytes) byte = static_cast<std::byte>(random());
    const std::vector<std::byte> before = memory.bytes;
    kept.save(0, memory.bytes.size(), memory.reader());
    memory = Memory(places * width);
    std::map<std::size_t, std::size_t> stayed = live;
    if (round % 2 == 0) {
      // What is dropped and made anew there begins with zeros.
      for (std::size_t place = 0; place < places; place += 2) {
        kept.drop(place * width, width);
        stayed.erase(place);
        if (live.contains(place)) kept.add(place * width, live[place]);
      }
    }
    kept.bring_back(0, memory.bytes.size(), memory.writer());
    kept.forget();
    for (std::size_t i = 0; i < memory.bytes.size(); ++i) {
      const auto range = stayed.find(i / width);
      const bool is_kept = range != stayed.end() && i % width < range->second;
      ASSERT_EQ(memory.bytes[i], is_kept ? before[i] : std::byte{0}) << "round " << round << ", byte " << i;
    }
  }
}

}  // namespace
}  // namespace imbrex::runtime
