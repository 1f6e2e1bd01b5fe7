// The protocol of kernels, compiled for the host: ranks, and the threads of one, are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "imbrex/device/protocol.hpp"

namespace imbrex {
namespace {

using device::Group, device::State;
using GpuFault = device::Fault;

/// A rank's part of symmetric memory.
struct alignas(64) Part {
  State state{};
  std::uint32_t counter = 0;
  std::uint64_t token = 0;
};

/// As many ranks as asked for, whose parts lie one after the other.
class Ranks {
 public:
  explicit Ranks(std::uint32_t ranks, std::uint64_t limit_ns = std::uint64_t{20'000'000'000})
      : parts_(ranks), faults_(ranks), limit_ns_(limit_ns) {}

  Part& part(std::uint32_t rank) { return parts_[rank]; }
  GpuFault& fault(std::uint32_t rank) { return faults_[rank]; }

  Group group(std::uint32_t rank, std::uint32_t readers = 1) {
    Group g{};
    g.own = &parts_[rank].state;
    g.states = reinterpret_cast<std::byte*>(parts_.data());
    g.stride = sizeof(Part);
    g.limit = g.look_after = device::ticks_of(limit_ns_);
    g.fault = &faults_[rank];
    g.rank = rank;
    g.ranks = static_cast<std::uint32_t>(parts_.size());
    g.readers = readers;
    return g;
  }

  /// A thread for each rank.
  void run(const std::function<void(const Group&, Part&)>& body) {
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < parts_.size(); ++r)
      threads.emplace_back([this, &body, r] { body(group(r), parts_[r]); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<Part> parts_;
  std::vector<GpuFault> faults_;
  std::uint64_t limit_ns_;
};

constexpr auto nowhere = [](GpuFault&, std::uint32_t) { ADD_FAILURE() << "nobody gives up here"; };

// Ranks hand on a token, which lies beside the counter: a rank that sees the post sees the token.
TEST(DeviceProtocol, ATokenGoesRound) {
  constexpr std::uint32_t rounds = 2000;
  for (const std::uint32_t before : {0u, 0xffffff00u}) {  // counters wrap
    Ranks ranks(4);
    for (std::uint32_t r = 0; r < 4; ++r) ranks.part(r).counter = before;
    ranks.run([&](const Group& g, Part& own) {
      Part& next = *device::at_rank(g, &own, (g.rank + 1) % g.ranks);
      for (std::uint32_t round = 0; round < rounds; ++round) {
        const std::uint64_t epoch = device::read_epoch(g);
        ASSERT_EQ(epoch, round);
        // Rank 0 begins.
        ASSERT_TRUE(device::wait_for(g, &own.counter, before + round + (g.rank != 0), nowhere));
        ASSERT_EQ(own.token, std::uint64_t{round} * 4 + g.rank);
        next.token = own.token + 1;
        device::post_add(g, &next.counter, 1);
        ASSERT_TRUE(device::advance_epoch(g, epoch));
      }
    });
    EXPECT_EQ(ranks.part(0).token, rounds * 4);
    EXPECT_EQ(ranks.part(0).counter, before + rounds);
    for (std::uint32_t r = 0; r < 4; ++r) EXPECT_EQ(device::load_relaxed(&ranks.fault(r).ended_early), 0u);
  }
}

// No thread posts: the first thread that passes the limit writes down why, and all ranks' waits end.
TEST(DeviceProtocol, AWaitIsBoundedAndEndsAllOthers) {
  Ranks ranks(3, 50'000'000);
  std::atomic<int> said = 0;
  ranks.part(0).counter = 0xfffffffe;
  const auto begin = std::chrono::steady_clock::now();
  // Rank 0 has two threads that wait; ranks 1 and 2 have longer limits.
  const auto wait = [&](Group g, std::uint32_t kind) {
    if (g.rank != 0) g.limit = device::ticks_of(60'000'000'000);
    EXPECT_FALSE(device::wait_for(g, &ranks.part(g.rank).counter, 3, [&](GpuFault& fault, std::uint32_t seen) {
      ++said;
      fault.kind = kind;
      fault.place[0] = 7;
      fault.expected = 3;
      fault.seen = seen;
      fault.epoch = 11;
    }));
  };
  {
    std::vector<std::jthread> threads;
    for (const std::uint32_t kind : {5u, 6u}) threads.emplace_back([&, kind] { wait(ranks.group(0), kind); });
    for (const std::uint32_t rank : {1u, 2u}) threads.emplace_back([&, rank] { wait(ranks.group(rank), 9); });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(said, 1);
  device::give_up(ranks.group(0), [&](GpuFault&) { ++said; });  // the second of a rank says nothing
  EXPECT_EQ(said, 1);
  const GpuFault& fault = ranks.fault(0);
  EXPECT_EQ(device::load_acquire(const_cast<const std::uint32_t*>(&fault.state)), GpuFault::timed_out);
  EXPECT_TRUE(fault.kind == 5u || fault.kind == 6u);
  EXPECT_EQ(fault.place[0], 7u);
  EXPECT_EQ(fault.seen, 0xfffffffeu);
  EXPECT_EQ(fault.epoch, 11u);
  for (std::uint32_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.part(r).state.abort, 1u) << r;
  for (const std::uint32_t r : {1u, 2u}) {
    EXPECT_EQ(ranks.fault(r).state, GpuFault::clear);
    EXPECT_EQ(ranks.fault(r).ended_early, 1u);
  }
}

// Pauses take long where machines are busy: few polls between looks.
constexpr device::Cadence attentive{.look = 4, .ask = 4};

// A host that is late has not begun the epoch: its peers wait past the limit, tell their hosts once, and find what
// came.
TEST(DeviceProtocol, ALateRankIsWaitedForAndToldOfOnce) {
  Ranks ranks(3, 50'000'000);
  ranks.run([&](Group g, Part& own) {
    g.entry_limit = device::ticks_of(60'000'000'000);
    g.look_after = g.limit / 16;
    for (std::uint32_t epoch = 0; epoch < 2; ++epoch) {
      if (g.rank == 2) std::this_thread::sleep_for(std::chrono::seconds(1));
      ASSERT_EQ(device::read_epoch(g), epoch);
      device::enter_epoch(g, epoch);
      for (std::uint32_t r = 0; r < g.ranks; ++r) device::post_add(g, &device::at_rank(g, &own, r)->counter, 1);
      EXPECT_TRUE(device::wait_for<attentive>(g, &own.counter, 3 * (epoch + 1), [&](GpuFault& fault, std::uint32_t) {
        EXPECT_EQ(fault.told, 0u);
        fault.epoch = epoch;
        fault.kind = fault.kind + 1;
      }));
      ASSERT_TRUE(device::advance_epoch(g, epoch));
      if (g.rank == 2) continue;
      // As its host does.
      EXPECT_EQ(g.fault->told, GpuFault::late);
      EXPECT_EQ(g.fault->late_and_one, 3u);
      EXPECT_EQ(g.fault->epoch, epoch);
      EXPECT_EQ(g.fault->kind, epoch + 1);
      EXPECT_EQ(g.fault->state, GpuFault::clear);
      g.fault->told = 0;
    }
  });
  EXPECT_EQ(ranks.fault(2).told, 0u);
}

TEST(DeviceProtocol, ALateRankIsWaitedForUntilTheEntryLimit) {
  Ranks ranks(3, 50'000'000);
  Group g = ranks.group(0);
  g.entry_limit = device::ticks_of(400'000'000);
  device::enter_epoch(ranks.group(2), 0);
  device::enter_epoch(g, 0);
  const std::uint64_t begin = device::now_ns();
  EXPECT_FALSE(device::wait_for<attentive>(g, &ranks.part(0).counter, 1, [](GpuFault&, std::uint32_t) {}));
  EXPECT_GE(device::now_ns() - begin, 400'000'000u);
  EXPECT_EQ(ranks.fault(0).state, GpuFault::never_entered);
  EXPECT_EQ(ranks.fault(0).late_and_one, 2u);
  for (std::uint32_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.part(r).state.abort, 1u) << r;
}

// All have entered, and a post does not come: the limit holds, from when the last one came.
TEST(DeviceProtocol, ALostPostEndsAWaitWhereAllHaveEntered) {
  for (const bool late : {false, true}) {
    Ranks ranks(2, 200'000'000);
    constexpr std::uint64_t epoch = 0xffffffff;  // the count of epochs wraps
    ranks.part(1).state.entered = 0xffffffff;
    ranks.part(0).state.told = 7;
    Group g = ranks.group(0);
    g.entry_limit = device::ticks_of(60'000'000'000);
    g.look_after = g.limit / 16;
    device::enter_epoch(g, epoch);
    const std::uint64_t begin = device::now_ns();
    std::jthread peer([&] {
      if (late) std::this_thread::sleep_for(std::chrono::seconds(1));
      device::enter_epoch(ranks.group(1), epoch);
    });
    if (!late) peer.join();
    EXPECT_FALSE(device::wait_for<attentive>(g, &ranks.part(0).counter, 1, [](GpuFault&, std::uint32_t) {}));
    EXPECT_GE(device::now_ns() - begin, late ? 1'150'000'000u : 200'000'000u);
    EXPECT_LT(device::now_ns() - begin, 30'000'000'000u);
    EXPECT_EQ(ranks.fault(0).state, GpuFault::timed_out);
    EXPECT_EQ(ranks.fault(0).told, late ? std::uint32_t{GpuFault::late} : 0u);
  }
}

// Counts of polls wrap in long waits. A small count wraps every millisecond or so, and the clock must not begin again.
TEST(DeviceProtocol, AWaitIsBoundedWhereItsCountOfPollsWraps) {
  const auto ends = [](auto polls, std::uint64_t limit_ns) {
    Ranks ranks(2, limit_ns);
    const Group g = ranks.group(0);
    int said = 0;
    const std::uint64_t begin = device::now_ns();
    // The test's own bound, far above the limit: what waits for ever fails and does not hang.
    while (device::now_ns() - begin < std::uint64_t{20'000'000'000}) {
      if (polls.left(g, [&](GpuFault& fault) { fault.kind = 3, ++said; })) continue;
      EXPECT_GE(device::now_ns() - begin, limit_ns);
      EXPECT_EQ(ranks.fault(0).state, GpuFault::timed_out);
      EXPECT_EQ(said, 1);
      return true;
    }
    return false;
  };
  constexpr std::uint64_t limit = 500'000'000;
  EXPECT_TRUE(ends(device::BoundedPolls<device::Cadence{}, std::uint16_t>{}, limit));
  // As collectives count: they look at the clock more often than at the host's word.
  EXPECT_TRUE(ends(device::BoundedPolls<device::Cadence{.pause = 0, .look = 64, .ask = 1024}, std::uint16_t>{}, limit));
  // The count comes round to 0 at each look.
  EXPECT_TRUE(ends(device::BoundedPolls<device::Cadence{.pause = 0}, std::uint8_t>{}, limit));
  EXPECT_TRUE(ends(device::BoundedPolls<>{}, limit));
}

// A limit that is reached is not passed: the look that starts the clock ends no wait, however short the limit.
TEST(DeviceProtocol, TheLookThatStartsTheClockEndsNoWait) {
  Ranks ranks(1, 0);
  const Group g = ranks.group(0);
  device::BoundedPolls<device::Cadence{.pause = 0, .look = 1, .ask = 1}> polls;
  EXPECT_TRUE(polls.left(g, [](GpuFault&) { ADD_FAILURE() << "no time has passed"; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(polls.left(g, [](GpuFault&) {}));
  EXPECT_EQ(ranks.fault(0).state, GpuFault::timed_out);
}

// The host's word is seen, too, after the count has wrapped.
TEST(DeviceProtocol, TheHostsWordEndsAWaitWhoseCountHasWrapped) {
  Ranks ranks(1);
  const Group g = ranks.group(0);
  device::BoundedPolls<device::Cadence{.pause = 0}, std::uint16_t> polls;
  const auto no_one = [](GpuFault&) { ADD_FAILURE() << "nobody gives up here"; };
  for (int i = 0; i < 200'000; ++i) ASSERT_TRUE(polls.left(g, no_one));
  device::write_down(ranks.fault(0).abort, 1);
  int more = 0;
  while (polls.left(g, no_one)) ASSERT_LT(++more, 70'000);
  EXPECT_EQ(ranks.fault(0).state, GpuFault::clear);
}

// A host that knows of a loss ends the waits of its rank, and by these those of all others, whose hosts know nothing.
TEST(DeviceProtocol, TheHostsWordReachesAllRanks) {
  Ranks ranks(3);
  std::jthread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    device::write_down(ranks.fault(1).abort, 1);
  });
  ranks.run([&](const Group& g, Part& own) {
    EXPECT_FALSE(device::wait_for(g, &own.counter, 1, nowhere));
    EXPECT_TRUE(device::given_up(g));
  });
  for (std::uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks.fault(r).state, GpuFault::clear);
    EXPECT_EQ(ranks.fault(r).ended_early, 1u);
  }
}

TEST(DeviceProtocol, NothingIsPostedOnceARankGaveUp) {
  Ranks ranks(2);
  const Group g = ranks.group(0);
  device::post_add(g, &ranks.part(1).counter, 1);
  EXPECT_EQ(ranks.part(1).counter, 1u);
  EXPECT_FALSE(device::given_up(g));
  device::end_all_waits(ranks.group(1));
  device::post_add(g, &ranks.part(1).counter, 1);
  device::post_set(g, &ranks.part(1).counter, 9);
  EXPECT_EQ(ranks.part(1).counter, 1u);
  // A thread that comes late asks before it stores, and its host is told.
  EXPECT_TRUE(device::given_up(g, false));
  EXPECT_EQ(ranks.fault(0).ended_early, 1u);
}

// A loop that does not ask the host so often hears of it all the same, later.
TEST(DeviceProtocol, ACadenceSaysWhenTheHostIsAsked) {
  Ranks ranks(2);
  ranks.fault(0).abort = 1;
  constexpr device::Cadence cadence{.pause = 0, .look = 64, .ask = 1024};
  std::uint32_t polls = 0;
  EXPECT_FALSE(device::wait_until<cadence>(
      ranks.group(0), [&] { return ++polls == 0; }, [](GpuFault&) {}));
  EXPECT_EQ(polls, 1024u);
  polls = 0;  // a rank's own word is looked at more often
  EXPECT_FALSE(device::wait_until<cadence>(
      ranks.group(1), [&] { return ++polls == 0; }, [](GpuFault&) {}));
  EXPECT_EQ(polls, 64u);
}

// The last reader advances the epoch for the next kernel; none reads the next one's number before.
TEST(DeviceProtocol, TheLastReaderAdvancesTheEpoch) {
  constexpr std::uint32_t readers = 5, kernels = 3000;
  constexpr std::uint64_t first = 0xffffffff;  // beyond 32 bits
  Ranks ranks(1);
  ranks.part(0).state.epoch = first;
  std::atomic<std::uint32_t> last = 0;
  std::barrier kernel_ends(readers);
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < readers; ++i)
    threads.emplace_back([&] {
      const Group g = ranks.group(0, readers);
      for (std::uint32_t k = 0; k < kernels; ++k) {
        const std::uint64_t epoch = device::read_epoch(g);
        EXPECT_EQ(epoch, first + k);
        if (device::advance_epoch(g, epoch)) ++last;
        kernel_ends.arrive_and_wait();
      }
    });
  threads.clear();
  EXPECT_EQ(last, kernels);
  EXPECT_EQ(ranks.part(0).state.epoch, first + kernels);
  EXPECT_EQ(ranks.part(0).state.readers, 0u);
}

TEST(DeviceProtocol, PausesAreForTestsOnly) {
  Ranks ranks(1);
  Group g = ranks.group(0);
  const auto took = [&] {
    const std::uint64_t begin = device::now_ns();
    for (std::uint32_t i = 0; i < 200; ++i) device::pause_for_tests(g, i, i);
    return device::now_ns() - begin;
  };
  EXPECT_LT(took(), 5'000'000u);
  g.pause_seed = 3;
  g.max_pause_ns = 4'000'000;  // one in eight, half of it in the mean
  EXPECT_GT(took(), 10'000'000u);
}

}  // namespace
}  // namespace imbrex
