// PEs that end, stop or never come: the others are told which, within the limit.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "gpu/harness/ranks.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::shmem {
namespace {

constexpr int lost = 1, pes = 3;

IMBREX_KERNEL go_round(Handle handle, Team team, Signal* signal, std::uint64_t rounds) {
  Context context(handle);
  const std::uint32_t next = (context.pe() + 1) % context.pes();
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    context.signal_add(signal, 1, next);
    if (!context.signal_wait_until(signal, Compare::greater_equal, round) || !barrier(context, team)) return;
  }
}

enum class How { killed, ends, throws, stays_away };

// Leaves in `well` 1 where a PE that is not lost was told so in time.
int run_with_loss(World& world, How how, double within, int& well) {
  Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
  auto* signal = static_cast<Signal*>(heap.allocate(sizeof(Signal)));
  const auto go = [&](std::uint64_t rounds) {
    launch(heap, {}, go_round, heap.handle(), heap.world_team(), signal, rounds);
  };
  const auto begin = std::chrono::steady_clock::now();
  if (world.rank() == lost) {
    go(100);
    if (how == How::killed) raise(SIGKILL);
    if (how == How::ends) _exit(5);
    if (how == How::throws) throw Error(ErrorCode::invalid_input, "PE 1 had enough");
    for (;;) {  // until the others have given up
      world.throw_if_failed();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  const char* wanted = how == How::stays_away ? "waited longer than"
                       : how == How::throws   ? "PE 1 had enough"
                                              : "rank 1";
  try {
    go(100);
    go(200);
  } catch (const Error& error) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    well = std::string(error.what()).find(wanted) != std::string::npos && took.count() < within ? 1 : 0;
    if (well == 0) std::fprintf(stderr, "after %g s: %s\n", took.count(), error.what());
    throw;
  }
  return 0;
}

void expect_told(How how, double limit, double within) {
  const imbrex::test::SharedArray<int> well(pes);
  const int code = run_processes(pes, {.heap_bytes = std::size_t{8} << 20, .wait_limit = limit}, [&](World& world) {
    return run_with_loss(world, how, within, well[static_cast<std::size_t>(world.rank())]);
  });
  EXPECT_EQ(code, 3);
  EXPECT_EQ(well[0] + well[2], 2);
}

TEST(ShmemLoss, APeThatIsKilledEndsTheOthers) {
  expect_told(How::killed, 60, 20);
  expect_told(How::ends, 60, 20);
}

TEST(ShmemLoss, APeThatFailsEndsTheOthers) { expect_told(How::throws, 60, 20); }

constexpr int ways_to_signal = 5;

// PE 0 puts with each kind of signal, once while all is well and once after a wait of some PE has given up.
IMBREX_KERNEL signal_in_each_way(Handle handle, std::uint64_t* box, Signal* signals) {
  if (handle.pe() != 0) return;
  Context context(handle);
  const std::uint64_t value = 1;
  for (const bool gave_up : {false, true}) {
    if (gave_up) device::end_all_waits(handle.group);
    context.put_signal(box, &value, 1, signals++, 1, SignalOperation::set, 1);
    context.put_signal(box, &value, 1, signals++, 1, SignalOperation::add, 1);
    context.put_signal_nbi(box, &value, 1, signals++, 1, SignalOperation::set, 1);
    context.put_signal_nbi(box, &value, 1, signals++, 1, SignalOperation::add, 1);
    context.p_signal(box, 1, signals++, 1, SignalOperation::set, 1);
  }
}

TEST(ShmemLoss, NothingIsSignalledOnceAWaitGaveUp) {
  const int code = run_threads(2, {.heap_bytes = std::size_t{8} << 20, .wait_limit = 20}, [](World& world) {
    Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
    auto* box = static_cast<std::uint64_t*>(heap.allocate(sizeof(std::uint64_t)));
    auto* signals = static_cast<Signal*>(heap.allocate(2 * ways_to_signal * sizeof(Signal)));
    std::fill_n(signals, 2 * ways_to_signal, Signal{0});
    world.barrier();
    launch(heap, {}, signal_in_each_way, heap.handle(), box, signals);
    world.barrier();
    for (int i = 0; i < 2 * ways_to_signal; ++i)
      EXPECT_EQ(signals[i], world.rank() == 1 && i < ways_to_signal ? 1u : 0u) << "signal " << i;
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(ShmemLoss, APeThatStaysAwayEndsTheOthers) { expect_told(How::stays_away, 1, 10); }

}  // namespace
}  // namespace imbrex::shmem
