// What becomes of calls that some ranks refuse and others take.
#include "runtime/calls.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "imbrex/error.hpp"

namespace imbrex::runtime {
namespace {

constexpr double limit = 20;

std::string failure_of(World& world) {
  try {
    world.throw_if_failed();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Until the world fails, as a call does that waits for its peers.
std::string await_failure(World& world) {
  for (int i = 0; i < 20'000; ++i) {
    if (const std::string text = failure_of(world); !text.empty()) return text;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return "no failure";
}

TEST(Calls, ThatEveryRankRefusesCostNothing) {
  const int code = run_threads(3, {.heap_bytes = 4096, .wait_limit = limit}, [](World& world) {
    std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()) + 1);
    for (int i = 0; i < 200; ++i) {
      // All make equal calls, at different times.
      if (i % 3 == 0 || (i > 90 && i < 130))
        calls_of(world).refuse("operand a is null");
      else
        calls_of(world).take();
      if (i % 16 == 0) world.barrier();  // 32 calls are remembered
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
    world.barrier();
    EXPECT_EQ(failure_of(world), "");
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// Whichever rank comes first, in both kinds of worlds.
TEST(Calls, ThatOneRankRefusesFailTheWorld) {
  for (const bool taken_back : {false, true})
    for (const bool refuser_first : {false, true}) {
      const auto body = [&](World& world) {
        Calls& calls = calls_of(world);
        calls.take();
        calls.refuse("all refuse this one");
        calls.take();
        world.barrier();
        if ((world.rank() == 1) != refuser_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::string text;
        if (world.rank() == 1) {
          if (taken_back) calls.take();
          taken_back ? calls.take_back("operand b is fp16") : calls.refuse("operand b is fp16");
          text = await_failure(world);
        } else {
          try {
            calls.take();
            text = await_failure(world);
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::runtime_failure);
            text = error.what();
          }
        }
        return text.starts_with("rank 1 refused a call that rank ") && text.ends_with(": operand b is fp16") ? 0 : 1;
      };
      EXPECT_EQ(run_threads(3, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
      EXPECT_EQ(run_processes(2, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
    }
}

// Calls on GPUs are queued: a rank may be far ahead of one that refuses.
TEST(Calls, ThatWereTakenLongAgoAreRemembered) {
  const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [](World& world) {
    if (world.rank() == 0)
      for (int i = 0; i < 100; ++i) calls_of(world).take();
    world.barrier();
    if (world.rank() == 1) calls_of(world).refuse("operand a is null");
    world.throw_if_failed();  // throws on rank 1 at least
    await_failure(world);
    world.throw_if_failed();
    return 0;
  });
  EXPECT_EQ(code, 3);
}

// The last refusal is remembered however many calls a rank has taken since.
TEST(Calls, ThatWereRefusedLongAgoAreRemembered) {
  const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [](World& world) {
    Calls& calls = calls_of(world);
    calls.take();
    if (world.rank() == 0) {
      calls.refuse("operand a is null");
      for (int i = 0; i < 100; ++i) calls.take();
    }
    world.barrier();
    if (world.rank() == 1) {
      calls.refuse("operand a is null");
      for (int i = 0; i < 100; ++i) calls.take();
    }
    world.barrier();
    EXPECT_EQ(failure_of(world), "");
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// Both sides write, then look: one of them sees the other, whatever the timing.
TEST(Calls, RefusalsAreNeverMissed) {
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> ready = 0;
    const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [&](World& world) {
      ready.fetch_add(1);
      while (ready.load() < 2) {
      }
      if (world.rank() == 0)
        calls_of(world).refuse("operand a is null");
      else
        calls_of(world).take();
      return await_failure(world) == "rank 0 refused a call that rank 1 takes: operand a is null" ? 0 : 1;
    });
    // Rank 1's call may throw.
    ASSERT_TRUE(code == 0 || code == 3) << "round " << round;
  }
}

// A reason longer than its place is cut.
TEST(Calls, ReasonsAreCut) {
  const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [](World& world) {
    if (world.rank() == 0) calls_of(world).refuse(std::string(5000, 'x'));
    world.barrier();
    std::string text;
    if (world.rank() == 1) try {
        calls_of(world).take();
      } catch (const Error& error) {
        text = error.what();
      }
    else
      return 0;
    return text.ends_with(std::string(503, 'x')) && text.size() < 600 ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex::runtime
