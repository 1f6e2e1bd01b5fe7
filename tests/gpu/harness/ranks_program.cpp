// A program of tests whose ranks go wrong, for skips_test.py: what they say must reach the test, from processes too.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "gpu/harness/ranks.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

using test::Trouble, test::on_world;

bool told(std::string_view what) { return std::getenv("IMBREX_TEST_TOLD") == what; }

constexpr WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = 10};

TEST(Ranks, Expect) {
  EXPECT_EQ(on_world(3, options,
                     [](World& world) {
                       if (told("fail")) {
                         EXPECT_NE(world.rank(), 1) << "expected by a rank";
                       }
                       return 0;
                     }),
            0);
}

TEST(Ranks, ExpectAndThrow) {
  const int code = on_world(2, options, [](World& world) -> int {
    if (told("fail")) ADD_FAILURE() << "before it throws, rank " << world.rank();
    throw Error(ErrorCode::unsound, "as it is told");
  });
  EXPECT_EQ(code, 1);
}

TEST(Ranks, HaveTrouble) {
  Trouble trouble;
  const int code = on_world(4, options, [&](World& world) {
    world.barrier();
    if (told("fail") && world.rank() >= 2) trouble.add("trouble of rank " + std::to_string(world.rank()));
    world.barrier();
    return 0;
  });
  expect_none(code, trouble);
}

TEST(Ranks, AreWhatWasAskedFor) {
  test::SharedArray<int> pids(3);
  EXPECT_EQ(on_world(3, options,
                     [&](World& world) {
                       pids[static_cast<std::size_t>(world.rank())] = getpid();
                       return 0;
                     }),
            0);
  EXPECT_EQ(pids[0] != getpid() && pids[0] != pids[1], test::ranks_are_processes());
}

}  // namespace
}  // namespace imbrex
