// Workers that share a product's blocks take each of them once, whatever the others do meanwhile.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "execute/cpu/worker.hpp"

namespace imbrex::execute {
namespace {

TEST(OpenProduct, EveryBlockIsTakenOnce) {
  constexpr std::size_t products = 2000;
  constexpr std::int64_t blocks = 7;
  OpenProduct open;
  std::vector<std::atomic<int>> taken(products * blocks);
  const auto take = [&] {
    const auto place = open.look();
    if (!place || place->block >= blocks) return false;
    const auto mine = open.take();
    if (!mine || mine->block >= blocks) return false;
    ++taken[mine->task * blocks + static_cast<std::size_t>(mine->block)];
    open.finish_block();
    return true;
  };
  std::vector<std::jthread> helpers;
  for (int i = 0; i < 3; ++i)
    helpers.emplace_back([&] {
      while (!open.ended()) take();
    });
  for (std::size_t p = 0; p < products; ++p) {
    open.open(p);
    while (open.done() < blocks) take();
  }
  open.end();
  helpers.clear();
  for (const auto& count : taken) ASSERT_EQ(count, 1);
}

// A helper may have seen a block, and take it only when the queue has ended.
TEST(OpenProduct, StaysEndedWhoeverTakes) {
  OpenProduct open;
  open.open(3);
  open.end();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(open.take());
  EXPECT_TRUE(open.ended());
  EXPECT_FALSE(open.look());
}

}  // namespace
}  // namespace imbrex::execute
