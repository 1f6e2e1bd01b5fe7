// What becomes of calls that some ranks refuse and others take.
#include "runtime/calls.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "imbrex/error.hpp"
#include "runtime/agreement.hpp"

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

// What a call gives: the text of its Error(invalid_input), or nothing.
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
    return error.what();
  }
  return "";
}

// A call that ends where every rank makes it: its ranks meet.
struct Meeting {
  explicit Meeting(World& of)
      : world(of),
        calls(calls_of(of)),
        member((agree(of, [] { return Terms("a meeting"); }), calls), [&](const CallNote& note) {
          stood_in = note.size;
          if (on_stand_in) on_stand_in();
          meet();
        }) {}

  void meet() {
    if (prepares) calls.prepare_alike([&] { agree(world, prepares); });
    world.barrier();
  }

  void call(std::int64_t size, const std::string& refuses = {}, bool late = false) {
    calls.make(
        [&] {
          IMBREX_EXPECTS(refuses.empty() || late, "{}", refuses);
          return 0;
        },
        [&](int) { return note_of(size); }, [](int) { return Terms("a meeting"); },
        [&](int) {
          IMBREX_EXPECTS(refuses.empty(), "{}", refuses);
          meet();
        });
  }

  CallNote note_of(std::int64_t size) const { return {member.number(), size, 0, false, "size"}; }

  World& world;
  Calls& calls;
  CallMember member;
  std::int64_t stood_in = 0;
  std::function<void()> on_stand_in;
  std::function<Terms()> prepares;  // within the call, with the others
};

// A call that is queued says so when it gets there, and ranks that stand in wait for that. One that begins with a
// prelude waits for those ranks before: it counts as begun.
int begin_with_prelude(World& world, std::uint64_t seed) {
  Calls& calls = calls_of(world);
  const auto meet = [&] { world.barrier(); };
  agree(world, [] { return Terms("a meeting"); });
  const CallMember member(calls, [&](const CallNote&) { meet(); });
  const auto call = [&](const std::string& before, const std::string& after) {
    calls.make(
        [&] {
          IMBREX_EXPECTS(before.empty(), "{}", before);
          return 0;
        },
        [&](int) {
          return CallNote{member.number(), 1, 0, true, "size"};
        },
        [](int) { return Terms("a meeting"); },
        [&](int) {
          IMBREX_EXPECTS(after.empty(), "{}", after);
          calls.began(false);
          meet();
        });
  };
  std::mt19937_64 random(seed), own(seed + 7 * static_cast<std::uint64_t>(world.rank()) + 1);
  for (int round = 0; round < 300; ++round) {
    int done = 0;
    agree(world, [] { return Terms("what prepares a prelude"); });
    calls.set_prelude([&] {
      agree(world, [] { return Terms("in a prelude"); });
      ++done;
    });
    const auto refuser = static_cast<int>(random() % static_cast<std::uint64_t>(world.size() + 1));
    const bool late = random() % 2 == 0, all = random() % 8 == 0;
    if (own() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    const bool refuses = refuser < world.size() && (all || refuser == world.rank());
    const std::string reason = refuses ? "it is wrong" : "",
                      told = refusal_of([&] {
                        call(late ? "" : reason, late ? reason : "");
                        world.barrier();  // after the call, a rank that was queued hears of a refusal
                        calls.expect_none_refused();
                      });
    if (told.empty() != (refuser == world.size())) return 1;
    if (!told.empty()) world.barrier();
    call("", "");
    if (done != 1 || calls.has_prelude()) return 2;
  }
  return failure_of(world).empty() ? 0 : 3;
}

TEST(Calls, BeginOnceWithAPrelude) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto body = [&](World& world) { return begin_with_prelude(world, seed); };
  for (const int ranks : {1, 3}) EXPECT_EQ(run_threads(ranks, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
  EXPECT_EQ(run_processes(3, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
}

// Whichever rank comes first, in both kinds of worlds, before the call is taken or after it.
TEST(Calls, ThatOneRankRefusesFailOnAllRanks) {
  for (const bool late : {false, true})
    for (const bool refuser_first : {false, true}) {
      const auto body = [&](World& world) {
        Meeting meeting(world);
        meeting.call(1);
        EXPECT_EQ(refusal_of([&] { meeting.call(2, "all refuse this one"); }), "all refuse this one");
        meeting.call(3);
        world.barrier();
        if ((world.rank() == 1) != refuser_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        const std::string told =
            refusal_of([&] { meeting.call(4, world.rank() == 1 ? "operand b is fp16" : "", late); });
        EXPECT_EQ(told, world.rank() == 1 ? "operand b is fp16" : "rank 1 refused this call: operand b is fp16");
        EXPECT_TRUE(world.rank() != 1 || refuser_first || meeting.stood_in == 4);
        meeting.call(5);
        EXPECT_EQ(failure_of(world), "");
        return testing::Test::HasFailure() ? 1 : 0;
      };
      EXPECT_EQ(run_threads(3, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
      EXPECT_EQ(run_processes(2, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
    }
}

// Rank 0 has taken the call and not said its size yet; rank 2, which refuses, stands in with it, and so says it.
TEST(Calls, ARankThatStandsInSaysTheSize) {
  std::atomic<int> step = 0;
  const auto await = [&](int wanted) {
    for (int i = 0; i < 100'000 && step < wanted; ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
    EXPECT_GE(step, wanted);
  };
  const auto body = [&](World& world) {
    Meeting meeting(world);
    if (world.rank() == 0) {
      meeting.calls.take(meeting.note_of(2));
      step = 1;
      world.barrier();
    } else if (world.rank() == 2) {
      meeting.on_stand_in = [&] { step = 2; };
      await(1);
      EXPECT_EQ(refusal_of([&] { meeting.call(2, "operand b is fp16"); }), "operand b is fp16");
      EXPECT_EQ(meeting.stood_in, 2);
    } else {
      await(2);
      EXPECT_EQ(refusal_of([&] { meeting.call(3); }),
                "rank 1 calls with size = 3, another rank with 2: it must be the same on every rank");
      EXPECT_EQ(meeting.stood_in, 2);
    }
    return testing::Test::HasFailure() ? 1 : 0;
  };
  EXPECT_EQ(run_threads(3, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
}

// Ranks that are asked for different things are all told of both, whether they make the call, prepare it, or have no
// rows for it. What a rank is asked for ends with its call.
TEST(Calls, ThatAreAskedForDifferentThingsFailOnAllRanks) {
  const auto body = [&](World& world) {
    Meeting meeting(world);
    const bool odd = world.rank() == 1;
    const auto told = [&](const std::function<void()>& call) { return refusal_of(call); };
    for (int turn = 0; turn < 3; ++turn) {
      const auto ask = [&] { meeting.calls.ask("rows", odd ? "[2, 3]" : "[3, 2]"); };
      ask();
      const std::string taken = told([&] { meeting.call(6); });
      EXPECT_TRUE(taken.find("calls with rows = [2, 3], another rank with rows = [3, 2]") != std::string::npos ||
                  taken.find("calls with rows = [3, 2], another rank with rows = [2, 3]") != std::string::npos)
          << taken;
      meeting.call(6);
      if (odd) ask();
      const std::string lacking = told([&] { meeting.call(6); });
      EXPECT_NE(lacking.find("no such argument"), std::string::npos) << lacking;
      EXPECT_NE(lacking.find("rows = [2, 3]"), std::string::npos) << lacking;
      meeting.call(6);
      ask();
      const std::string preparing = told([&] {
        try {
          agree(world, [] { return Terms("an object").add("m", 6); });
        } catch (const Error& error) {
          meeting.calls.refuse(error.what());
          throw;
        }
      });
      EXPECT_EQ(preparing.substr(0, 28), "ranks disagree on an object:") << preparing;
      EXPECT_NE(preparing.find("rows = [2, 3]"), std::string::npos) << preparing;
      EXPECT_NE(preparing.find("rows = [3, 2]"), std::string::npos) << preparing;
      ask();
      const std::string without = told([&] { odd ? meeting.calls.skip("a is 0 x 8") : meeting.call(6); });
      EXPECT_NE(without.find("rows = [2, 3]: a is 0 x 8"), std::string::npos) << without;
      ask();
      EXPECT_EQ(told([&] { meeting.call(6, "all refuse this one"); }), "all refuse this one");
      meeting.calls.ask("rows", "[3, 2]");
      meeting.call(6);
      meeting.call(6);
    }
    world.barrier();
    EXPECT_EQ(failure_of(world), "");
    return testing::Test::HasFailure() ? 1 : 0;
  };
  EXPECT_EQ(run_threads(3, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
  EXPECT_EQ(run_processes(2, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
}

// What a call prepares, its ranks agree on once more: also one that was asked for something else, that refused the
// call, or whose peers cannot prepare it, either. Then each rank makes a gather of its own, which finds them in step.
TEST(Calls, ThatPrepareWithinThemselvesStayInStep) {
  const auto body = [](World& world) {
    Meeting meeting(world);
    const bool odd = world.rank() == 1;
    const auto next = [&] {
      std::vector<std::byte> own(560), all(own.size() * static_cast<std::size_t>(world.size()));
      world.all_gather(own.data(), all.data(), own.size());
      EXPECT_EQ(refusal_of([&] { meeting.call(3); }), "");
    };
    meeting.prepares = [] { return Terms("what a call prepares"); };
    for (int turn = 0; turn < 20; ++turn) {
      const bool late = turn % 2 == 1;
      meeting.calls.ask("rows", odd ? "[2, 3]" : "[3, 2]");
      EXPECT_NE(refusal_of([&] { meeting.call(6); }).find("rows = ["), std::string::npos);
      next();
      if (!odd || late) meeting.calls.ask("rows", "[3, 2]");
      EXPECT_NE(refusal_of([&] { meeting.call(6, odd ? "b is fp16" : "", late); }).find("b is fp16"),
                std::string::npos);
      next();
      meeting.prepares = []() -> Terms { throw Error(ErrorCode::invalid_input, "no room"); };
      for (const char* refuses : {"", "b is fp16"}) {
        const std::string said = refusal_of([&] { meeting.call(6, odd ? refuses : "", late); });
        EXPECT_TRUE(said.find("b is fp16") != std::string::npos || said.find("no room") != std::string::npos) << said;
      }
      meeting.prepares = [] { return Terms("what a call prepares"); };
      next();
    }
    return testing::Test::HasFailure() ? 1 : 0;
  };
  EXPECT_EQ(run_threads(3, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
  EXPECT_EQ(run_processes(2, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
}

// Where no rank can stand in, the world fails.
TEST(Calls, OfNoObjectFailTheWorld) {
  const auto body = [&](World& world) {
    Calls& calls = calls_of(world);
    if (world.rank() == 0) calls.take();
    world.barrier();
    if (world.rank() == 1) calls.refuse("operand b is fp16");
    return await_failure(world) == "rank 1 refused a call that rank 0 takes: operand b is fp16" ? 0 : 1;
  };
  EXPECT_EQ(run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, body), 0);
}

// One word holds the last 32 calls, and a list the last 1024: both edges.
constexpr int at_edges[] = {0, 1, 30, 31, 32, 33, 34, 100, 1022, 1023, 1024, 1025, 1026};

// Calls on GPUs are queued: a rank may be far ahead of one that refuses.
TEST(Calls, ThatWereTakenLongAgoAreRemembered) {
  for (const int later : at_edges) {
    const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [&](World& world) {
      if (world.rank() == 0)
        for (int i = 0; i < 1 + later; ++i) calls_of(world).take();
      world.barrier();
      if (world.rank() == 1) calls_of(world).refuse("operand a is null");
      EXPECT_EQ(await_failure(world), "rank 1 refused a call that rank 0 takes: operand a is null");
      world.throw_if_failed();
      return 0;
    });
    EXPECT_EQ(code, 3) << later << " calls later";
  }
}

// The last refusal is remembered however many calls a rank has taken since.
TEST(Calls, ThatWereRefusedLongAgoAreRemembered) {
  for (const int later : at_edges)
    for (const int before : {0, 1}) {  // call 1, or call 2
      const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [&](World& world) {
        Calls& calls = calls_of(world);
        for (int i = 0; i < before; ++i) calls.take();
        for (const int turn : {0, 1}) {
          if (world.rank() == turn) {
            calls.refuse("operand a is null");
            for (int i = 0; i < later; ++i) calls.take();
          }
          world.barrier();
        }
        EXPECT_EQ(failure_of(world), "");
        return 0;
      });
      EXPECT_EQ(code, 0) << later << " calls later";
    }
}

// A rank that has not looked for refusals since is told of one as long as the list reaches.
TEST(Calls, ThatPeersRefusedAreToldOfLater) {
  for (const int later : at_edges)
    for (const int before : {0, 1}) {
      const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [&](World& world) {
        Meeting meeting(world);
        for (int i = 0; i < before; ++i) meeting.call(1);
        if (world.rank() == 0) meeting.calls.take({meeting.member.number(), 1, 0, false});
        world.barrier();
        if (world.rank() == 0) {
          world.barrier();  // the call, which the other rank stands in for
        } else {
          EXPECT_EQ(refusal_of([&] { meeting.call(1, "operand b is fp16"); }), "operand b is fp16");
        }
        for (int i = 0; i < later; ++i) meeting.calls.take();
        world.barrier();
        const std::string when =
            later == 0 ? "this call" : "the call that was made " + std::to_string(later) + " calls before this one";
        const std::string told = refusal_of([&] { meeting.calls.expect_none_refused(); });
        EXPECT_EQ(told.substr(0, told.find(", whose")).substr(0, told.find(": operand")),
                  world.rank() == 0 && later <= 1024 ? "rank 1 refused " + when : "")
            << told;
        EXPECT_EQ(refusal_of([&] { meeting.calls.expect_none_refused(); }), "");
        return testing::Test::HasFailure() ? 1 : 0;
      });
      EXPECT_EQ(code, 0) << later << " calls later";
    }
}

// Nor is it told of calls that no rank refused, however long it has not looked.
TEST(Calls, ThatAllTookAreNotToldOf) {
  for (const int before : at_edges) {
    const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [&](World& world) {
      Calls& calls = calls_of(world);
      for (int i = 0; i < before; ++i) calls.take();
      calls.refuse("all refuse this one");
      world.barrier();
      EXPECT_EQ(refusal_of([&] { calls.expect_none_refused(); }), "");
      return testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(code, 0) << before << " calls before";
  }
}

// Both sides write, then look: one of them sees the other, whatever the timing.
TEST(Calls, RefusalsAreNeverMissed) {
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> ready = 0;
    const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [&](World& world) {
      Meeting meeting(world);
      ready.fetch_add(1);
      while (ready.load() < 2) {
      }
      const std::string told = refusal_of([&] { meeting.call(1, world.rank() == 0 ? "operand a is null" : ""); });
      EXPECT_EQ(told, world.rank() == 0 ? "operand a is null" : "rank 0 refused this call: operand a is null");
      meeting.call(2);
      return testing::Test::HasFailure() ? 1 : 0;
    });
    ASSERT_EQ(code, 0) << "round " << round;
  }
}

// A rank that is ahead by more than is remembered of refusals waits for the others.
TEST(Calls, ARankThatRefusesManyWaitsForTheOthers) {
  const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = limit}, [](World& world) {
    Meeting meeting(world);
    for (int i = 0; i < 500; ++i) {
      if (world.rank() == 1 && i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_NE(refusal_of([&] { meeting.call(1, i % 3 == 0 || world.rank() == 0 ? "no" : ""); }), "");
    }
    meeting.call(2);
    return testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(code, 0);
}

// The place of a decision is used again once every rank is past the call that it was about.
TEST(Calls, ARankThatRefusesIsAheadByWhatIsRememberedAndNoMore) {
  for (const int made : {0, 1}) {
    const int code = run_threads(2, {.heap_bytes = 4096, .wait_limit = 1}, [&](World& world) {
      Calls& calls = calls_of(world);
      if (world.rank() == 1)
        for (int i = 0; i < made; ++i) calls.refuse("no");
      world.barrier();
      if (world.rank() == 0) {
        for (int i = 0; i < 64; ++i) calls.refuse("no");
        EXPECT_EQ(failure_of(world), "");
        std::string text;
        try {
          calls.refuse("no");
        } catch (const Error& error) {
          text = error.what();
        }
        EXPECT_NE(text.find("waited 1 s for a call that was refused for rank 1, the wait limit"), std::string::npos)
            << text;
      }
      await_failure(world);
      return 0;
    });
    EXPECT_EQ(code, 0) << made << " calls of rank 1";
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
    return text.ends_with(std::string(503, 'x')) && !text.ends_with(std::string(504, 'x')) ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex::runtime
