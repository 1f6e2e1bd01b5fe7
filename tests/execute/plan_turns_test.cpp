// The account that kernels keep of counters that plans share, compiled for the host: ranks, and the blocks of one
// rank's kernel, are threads.
#include "execute/cuda/tables/plan_turns.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "execute/plan_pool.hpp"
#include "imbrex/device/protocol.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using cuda::EpochPosts, cuda::PlanTurns;
using test::Random;

constexpr std::uint32_t most_signals = 40, ranks = 3, blocks = 4, areas = 2;
constexpr std::uint64_t first_epoch = (std::uint64_t{1} << 32) - 20;  // counters wrap, and so do epochs' low words

/// What an epoch of a plan posts, and where its counters lie.
struct Turn {
  std::uint32_t area = 0, signals = 0;
  std::uint32_t posts[ranks][ranks][most_signals] = {};  // by sender, receiver and signal

  std::vector<std::uint32_t> received(std::uint32_t rank) const {
    std::vector<std::uint32_t> sum(signals);
    for (const auto& sender : posts)
      for (std::uint32_t s = 0; s < signals; ++s) sum[s] += sender[rank][s];
    return sum;
  }
};

std::vector<Turn> random_turns(Random& random) {
  std::vector<Turn> turns(6);
  for (Turn& turn : turns) {
    turn.area = static_cast<std::uint32_t>(random.between(0, areas - 1));
    turn.signals = static_cast<std::uint32_t>(random.between(1, most_signals));
    for (auto& sender : turn.posts)
      for (auto& receiver : sender) {
        for (std::uint32_t s = 0; s < turn.signals; ++s) receiver[s] = static_cast<std::uint32_t>(random.between(0, 3));
        receiver[random.between(0, turn.signals - 1)] += 1;  // every rank hears of every other
      }
  }
  return turns;
}

/// A rank's part of symmetric memory.
struct alignas(64) Part {
  device::State state{};
  std::uint32_t counters[areas][2][most_signals] = {};
  std::uint64_t words[2][ranks] = {};  // by half and sender: the epoch, stored before the posts
};

/// A rank's own memory.
struct Own {
  std::uint32_t bases[areas][2 * most_signals] = {};
  EpochPosts last[2] = {};
  device::Fault fault{};
  std::vector<std::vector<std::uint32_t>> posts;  // by plan
};

class TurnsOfRanks {
 public:
  explicit TurnsOfRanks(std::vector<Turn> turns) : turns_(std::move(turns)), parts_(ranks), own_(ranks) {
    constexpr auto count = static_cast<std::uint32_t>(first_epoch);
    for (std::uint32_t r = 0; r < ranks; ++r) {
      parts_[r].state.epoch = first_epoch;
      for (auto& half : parts_[r].counters[0]) std::fill(std::begin(half), std::end(half), count);
      std::fill(std::begin(own_[r].bases[0]), std::end(own_[r].bases[0]), count);
      for (const Turn& turn : turns_) own_[r].posts.push_back(turn.received(r));
    }
  }

  PlanTurns view(std::uint32_t rank, std::size_t plan) {
    Own& own = own_[rank];
    const Turn& turn = turns_[plan];
    return {own.bases[turn.area], own.posts[plan].data(),           own.last, most_signals,
            turn.signals,         static_cast<std::uint32_t>(plan), 0};
  }

  device::Group group(std::uint32_t rank) {
    device::Group g{};
    g.own = &parts_[rank].state;
    g.states = reinterpret_cast<std::byte*>(parts_.data());
    g.stride = sizeof(Part);
    g.limit = device::ticks_of(30'000'000'000);
    g.fault = &own_[rank].fault;
    g.rank = rank;
    g.ranks = ranks;
    g.readers = blocks;
    return g;
  }

  /// One block of the kernel of the next epoch. The first one posts, and all wait.
  void run(std::uint32_t rank, std::uint32_t block, std::size_t plan) {
    const device::Group g = group(rank);
    const PlanTurns t = view(rank, plan);
    const Turn& turn = turns_[plan];
    const std::uint64_t epoch = device::read_epoch(g);
    const auto half = static_cast<std::uint32_t>(epoch & 1);
    cuda::settle_last_epoch(t, epoch, block, blocks);
    if (device::advance_epoch(g, epoch)) cuda::leave_epoch(t, epoch);
    if (block == 0) post(g, turn, half, epoch);
    const std::vector<std::uint32_t>& received = own_[rank].posts[plan];
    std::uint32_t* counters = parts_[rank].counters[turn.area][half];
    for (std::uint32_t s = block; s < turn.signals; s += blocks)
      for (std::uint32_t count = 0; count <= received[s]; ++count)
        ASSERT_TRUE(
            device::wait_for(g, counters + s, cuda::base_of(t, half, s) + count, [](device::Fault&, std::uint32_t) {}))
            << "epoch " << epoch << ", plan " << plan << ", signal " << s;
  }

  /// Once the waits of all blocks are met: nothing of an epoch before or behind. No rank posts to this half again
  /// before this rank has begun the next epoch.
  void expect_all(std::uint32_t rank, std::size_t plan, std::uint64_t epoch) {
    const PlanTurns t = view(rank, plan);
    const auto half = static_cast<std::uint32_t>(epoch & 1);
    for (std::uint32_t sender = 0; sender < ranks; ++sender)
      ASSERT_EQ(parts_[rank].words[half][sender], epoch) << "from rank " << sender;
    for (std::uint32_t s = 0; s < t.signals; ++s)
      ASSERT_EQ(device::load_acquire(&parts_[rank].counters[turns_[plan].area][half][s]),
                cuda::base_of(t, half, s) + t.posts[s])
          << "epoch " << epoch << ", plan " << plan << ", signal " << s;
  }

 private:
  void post(const device::Group& g, const Turn& turn, std::uint32_t half, std::uint64_t epoch) {
    for (std::uint32_t to = 0; to < ranks; ++to) parts_[to].words[half][g.rank] = epoch;
    for (std::uint32_t to = 0; to < ranks; ++to)
      for (std::uint32_t s = 0; s < turn.signals; ++s)
        for (std::uint32_t i = 0; i < turn.posts[g.rank][to][s]; ++i)
          device::post_add(g, &parts_[to].counters[turn.area][half][s], 1);
  }

  std::vector<Turn> turns_;
  std::vector<Part> parts_;
  std::vector<Own> own_;
};

// Ranks run ahead of each other as far as their waits let them, and so do blocks within a kernel.
TEST(PlanTurns, KeepTheCountInAnyOrder) {
  Random random(test::seed_from_environment());
  for (int round = 0; round < 10; ++round) {
    TurnsOfRanks all(random_turns(random));
    std::vector<std::size_t> order(200);
    for (std::size_t& plan : order) plan = static_cast<std::size_t>(random.between(0, 5));
    std::vector<std::unique_ptr<std::barrier<>>> meet;
    for (std::uint32_t r = 0; r < ranks; ++r) meet.push_back(std::make_unique<std::barrier<>>(blocks));
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      for (std::uint32_t block = 0; block < blocks; ++block)
        threads.emplace_back([&, rank, block] {
          for (std::size_t i = 0; i < order.size(); ++i) {
            all.run(rank, block, order[i]);
            meet[rank]->arrive_and_wait();
            if (block == 0) all.expect_all(rank, order[i], first_epoch + i);
            meet[rank]->arrive_and_wait();  // the kernel has ended
          }
        });
  }
}

// What kernels keep and what a host would keep are the same numbers, which the counters show.
TEST(PlanTurns, ShowWhatTheHostsAccountShows) {
  Random random(test::seed_from_environment());
  constexpr execute::PlanShare small{256, most_signals};
  std::size_t end = 0;
  execute::PlanPool pool([&](std::size_t bytes) { return std::exchange(end, end + bytes); }, small, first_epoch);
  std::array<std::uint32_t, 2 * most_signals> bases, counters;
  bases.fill(pool.first_count());
  counters = bases;
  EpochPosts last[2] = {};
  std::vector<std::vector<std::uint32_t>> posts;
  for (const Turn& turn : random_turns(random)) posts.push_back(turn.received(0));
  for (int i = 0; i < 500; ++i) {
    const std::vector<std::uint32_t>& own = posts[static_cast<std::size_t>(random.between(0, 5))];
    const PlanTurns t{bases.data(), own.data(), last, most_signals, static_cast<std::uint32_t>(own.size()), 0, 0};
    const std::uint64_t epoch = pool.epoch();
    const auto half = static_cast<std::uint32_t>(epoch & 1);
    for (std::uint32_t s = 0; s < most_signals; ++s) {
      ASSERT_EQ(cuda::base_of(t, half, s), pool.counts(0)[s]) << fmt::format("call {}, signal {}", i, s);
      ASSERT_EQ(counters[half * most_signals + s], pool.counts(0)[s]);
    }
    for (std::uint32_t block = 0; block < blocks; ++block) cuda::settle_last_epoch(t, epoch, block, blocks);
    cuda::leave_epoch(t, epoch);
    for (std::uint32_t s = 0; s < own.size(); ++s) counters[half * most_signals + s] += own[s];
    pool.leave(0, own);
  }
}

}  // namespace
}  // namespace imbrex
