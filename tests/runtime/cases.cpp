#include "runtime/cases.hpp"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>

#include "imbrex/error.hpp"

namespace imbrex::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Says where a body found a fault, since only its exit code crosses processes.
#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", world.rank(), __FILE__, __LINE__, #condition); \
      return 1;                                                                                   \
    }                                                                                             \
  } while (false)

/// Message and code of the Error that `call` throws; code 0 if it throws none.
struct Thrown {
  int code = 0;
  std::string message;
  bool says(std::string_view part) const { return message.find(part) != std::string::npos; }
};
template <typename Call>
Thrown thrown_by(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
  return {};
}

std::uint32_t& number_at(World& world, int peer, std::size_t offset) {
  return *reinterpret_cast<std::uint32_t*>(world.heap().handle().at(peer, offset));
}

/// "rank 1", with its host where there are several.
std::string named(const World& world, int rank) {
  return world.hosts() == 1 ? fmt::format("rank {}", rank)
                            : fmt::format("rank {} (host {})", rank, world.host_name(world.host_of(rank)));
}

bool shares_memory(const World& world, int rank) { return world.host_of(rank) == world.host_of(world.rank()); }

int barrier_orders(World& world) {
  const std::size_t offset = world.heap().allocate(64 * sizeof(std::uint32_t));
  for (std::uint32_t round = 1; round <= 50; ++round) {
    for (int peer = 0; peer < world.size(); ++peer)
      if (shares_memory(world, peer))
        number_at(world, peer, offset + 4 * static_cast<std::size_t>(world.rank())) = round;
    world.barrier();
    for (int from = 0; from < world.size(); ++from)
      if (shares_memory(world, from))
        CHECK(number_at(world, world.rank(), offset + 4 * static_cast<std::size_t>(from)) == round);
    world.barrier();
  }
  return 0;
}

int gathers(World& world) {
  for (std::size_t bytes : {1, 8, 1000, 4096, 0, 3}) {
    for (int round = 0; round < 5; ++round) {
      const auto value = [&](int rank) { return static_cast<char>(rank * 31 + round + static_cast<int>(bytes)); };
      std::vector<char> mine(bytes, value(world.rank())), all(bytes * static_cast<std::size_t>(world.size()) + 1, '#');
      world.all_gather(mine.data(), all.data(), bytes);
      for (int r = 0; r < world.size(); ++r)
        for (std::size_t i = 0; i < bytes; ++i) CHECK(all[static_cast<std::size_t>(r) * bytes + i] == value(r));
      CHECK(all.back() == '#');
      if (round == 2) world.barrier();  // shifts which slot a gather uses
    }
  }
  return 0;
}

int gather_limits(World& world) {
  std::vector<char> data(5000 * static_cast<std::size_t>(world.size()));
  const Thrown large = thrown_by([&] { world.all_gather(data.data(), data.data(), 4097); });
  CHECK(large.code == 2 && large.says("4097"));
  const std::size_t bytes = world.rank() == 1 ? 16 : 8;
  const Thrown unequal = thrown_by([&] { world.all_gather(data.data(), data.data(), bytes); });
  CHECK(unequal.code == 2 && unequal.says("rank 1 16"));
  return 0;
}

int gather_meets_barrier(World& world) {
  for (const int at_barrier : {1, 0}) {
    // Both slots have bytes of the right size, which are not to be taken for an answer.
    std::uint64_t mine = 0, all[3];
    for (int round = 0; round < 2; ++round) world.all_gather(&mine, all, sizeof mine);
    if (world.rank() == at_barrier) {
      world.barrier();
      continue;
    }
    const Thrown seen = thrown_by([&] { world.all_gather(&mine, all, sizeof mine); });
    CHECK(seen.code == 2);
    CHECK(seen.message == (at_barrier == 1 ? "all_gather of 8 bytes on rank 0: rank 1 is at a barrier"
                                           : "all_gather of 8 bytes on rank 1: rank 0 is at a barrier"));
  }
  return 0;
}

int heap_is_symmetric(World& world) {
  SymmetricHeap& heap = world.heap();
  CHECK(heap.handle().rank == world.rank());
  const std::size_t first = heap.allocate(10), second = heap.allocate(100000);
  std::size_t offsets[64];
  world.all_gather(&second, offsets, sizeof second);
  for (int r = 0; r < world.size(); ++r) CHECK(offsets[r] == second);
  CHECK(first % 256 == 0 && second % 256 == 0 && first != second);

  const auto own = [&](std::size_t i) { return heap.handle().at(world.rank(), second)[i]; };
  for (std::size_t i = 0; i < 100000; ++i) CHECK(own(i) == std::byte{0});
  world.barrier();
  int next = (world.rank() + 1) % world.size();
  while (!shares_memory(world, next)) next = (next + 1) % world.size();
  std::memset(heap.handle().at(next, second), 0xa5, 100000);
  world.barrier();
  for (std::size_t i = 0; i < 100000; ++i) CHECK(own(i) == std::byte{0xa5});

  heap.release(second);
  const std::size_t again = heap.allocate(99999);
  CHECK(again == second);
  for (std::size_t i = 0; i < 99999; ++i) CHECK(own(i) == std::byte{0});
  CHECK(heap.handle().at(world.rank(), first) != heap.handle().at(next, first) || next == world.rank());
  return 0;
}

int heap_fills(World& world) {
  const std::size_t part = world.options().heap_bytes / 2;
  world.heap().allocate(part);
  const Thrown full = thrown_by([&] { world.heap().allocate(part + 1); });
  CHECK(full.code == 3 && full.says(fmt::format("{} bytes asked, {} left", part + 1, part)));
  world.heap().allocate(part);
  return 0;
}

/// Looks for a failure again and again, and leaves the processor to others in between.
void look_until(World& world, Clock::time_point end) {
  for (; Clock::now() < end; std::this_thread::sleep_for(1ms)) world.throw_if_failed();
}

int early_finisher(World& world) {
  world.barrier();
  if (world.rank() == 0) return 0;
  std::this_thread::sleep_for(400ms);
  world.throw_if_failed();
  return 0;
}

int failure_reaches_all(World& world) {
  // A rank may hear of the failure here, before it hears what a third host's rank said.
  Thrown seen = thrown_by([&] { world.barrier(); });
  if (world.rank() == 1) world.fail("no such luck (17)");
  const auto begin = Clock::now();
  if (world.rank() % 2 == 0) {
    seen = thrown_by([&] { look_until(world, begin + 5s); });
  } else {
    seen = thrown_by([&] { world.barrier(); });
  }
  CHECK(seen.code == 3 && seen.message == named(world, 1) + " failed: no such luck (17)");
  CHECK(thrown_by([&] { world.fail("later"), world.throw_if_failed(); }).message == seen.message);
  return 0;
}

int leaver_is_named(World& world) {
  if (world.rank() == 2) {
    // A rank of another host may hear of a failure before the last word that it needs for its world.
    if (world.hosts() > 1) std::this_thread::sleep_for(100ms);
    return 0;
  }
  const auto begin = Clock::now();
  const Thrown seen = thrown_by([&] { world.barrier(); });
  CHECK(seen.code == 3 && seen.says(named(world, 2) + " has left"));
  CHECK(Clock::now() - begin < 5s);
  return 0;
}

int barrier_is_bounded(World& world) {
  const auto begin = Clock::now();
  Thrown seen;
  if (world.rank() == 1 || world.rank() == 3) {
    seen = thrown_by([&] { look_until(world, begin + 5s); });
  } else {
    seen = thrown_by([&] { world.barrier(); });
  }
  CHECK(seen.code == 3 && seen.says("at barrier"));
  CHECK(seen.says(fmt::format("for ranks {} and {}", named(world, 1).substr(5), named(world, 3).substr(5))));
  CHECK(Clock::now() - begin < 5s);
  return 0;
}

int many_ranks(World& world) {
  for (int round = 0; round < 10; ++round) world.barrier();
  int ranks[64];
  const int mine = world.rank();
  world.all_gather(&mine, ranks, sizeof mine);
  for (int r = 0; r < world.size(); ++r) CHECK(ranks[r] == r);
  return 0;
}

WorldOptions options_with(std::size_t heap_bytes, double wait_limit) {
  WorldOptions options;
  options.heap_bytes = heap_bytes;
  options.wait_limit = wait_limit;
  return options;
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"one_rank", 1, {}, many_ranks},
      {"barrier_orders", 4, {}, barrier_orders},
      {"gathers", 5, {}, gathers},
      {"gather_limits", 3, {}, gather_limits},
      {"gather_meets_barrier", 3, {}, gather_meets_barrier},
      {"heap_is_symmetric", 4, {}, heap_is_symmetric},
      {"heap_fills", 2, options_with(1 << 20, 30), heap_fills},
      {"early_finisher", 3, {}, early_finisher},
      {"failure_reaches_all", 4, {}, failure_reaches_all},
      {"leaver_is_named", 4, {}, leaver_is_named},
      {"barrier_is_bounded", 4, options_with(1 << 20, 1), barrier_is_bounded},
      {"many_ranks", 32, options_with(1 << 20, 30), many_ranks},
  };
  return all;
}

const Case& find_case(const std::string& name) {
  for (const Case& entry : cases())
    if (entry.name == name) return entry;
  throw std::out_of_range("no case '" + name + "'");
}

std::string to_hex(const UniqueId& id) {
  std::string text;
  for (const char c : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

int run_connected_threads(const Case& entry) {
  const UniqueId id = World::make_unique_id();
  std::vector<int> codes(static_cast<std::size_t>(entry.ranks), 3);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < entry.ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto world = World::connect(id, rank, entry.ranks, entry.options);
        codes[static_cast<std::size_t>(rank)] = entry.body(*world);
      } catch (const std::exception& error) {
        fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      }
    });
  threads.clear();
  return *std::max_element(codes.begin(), codes.end());
}

int storm(World& world, int rounds) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()) * 16);
  for (int round = 0; round < rounds; ++round) {
    if (round % 3 == 0) {
      world.barrier();
      continue;
    }
    const std::size_t count = static_cast<std::size_t>(round * 7 % 16) + 1;
    std::vector<std::uint64_t> mine(count);
    const auto value = [&](int rank, std::size_t i) {
      return static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint64_t>(round) << 8 | i;
    };
    for (std::size_t i = 0; i < count; ++i) mine[i] = value(world.rank(), i);
    world.all_gather(mine.data(), all.data(), count * sizeof mine[0]);
    for (int rank = 0; rank < world.size(); ++rank)
      for (std::size_t i = 0; i < count; ++i) CHECK(all[static_cast<std::size_t>(rank) * count + i] == value(rank, i));
  }
  return 0;
}

int work_until_lost(World& world, int lost, const std::function<void()>& all_there) {
  const std::string expected = fmt::format("rank {} (pid ", lost);
  const Thrown seen = thrown_by([&] {
    const std::size_t offset = world.heap().allocate(4096);
    for (std::uint32_t round = 0;; ++round) {
      if (const int next = (world.rank() + 1) % world.size(); shares_memory(world, next))
        number_at(world, next, offset) = round;
      if (round % 3 == 0) {
        std::uint32_t all[64];
        world.all_gather(&round, all, sizeof round);
        if (round == 0 && all_there) all_there();
      } else {
        world.barrier();
      }
    }
  });
  CHECK(seen.code == 3 && seen.says(expected) && seen.says("was lost"));
  return 0;
}

void kill_self_after(long nanoseconds) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  itimerspec when{};
  when.it_value = {nanoseconds / 1000000000, nanoseconds % 1000000000 + 1};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, nullptr) != 0)
    throw std::runtime_error("no timer");
}

}  // namespace imbrex::test
