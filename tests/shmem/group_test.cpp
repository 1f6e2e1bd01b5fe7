// Where the threads of a group meet in a call. On a CPU a group is one thread, so the test has a group that tells.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "imbrex/shmem.hpp"

namespace imbrex::shmem {
namespace {

// What a call did, in order: what it asked of its transport, and where its group met.
std::string done;

/// One of two threads that make calls together.
struct OneOfTwo {
  std::uint32_t rank = 0;
  std::uint32_t thread_rank() const { return rank; }
  std::uint32_t size() const { return 2; }
  void sync() const { done += " meet"; }
};

/// A transport that moves nothing.
struct Telling {
  bool open(const Handle&, std::uint32_t) { return true; }
  template <typename T, typename G>
  void put(const Handle&, T*, const T*, std::uint64_t, std::uint32_t, const G&) {
    done += " put";
  }
  template <typename T, typename G>
  void put_nbi(const Handle&, T*, const T*, std::uint64_t, std::uint32_t, const G&) {
    done += " put_nbi";
  }
  template <typename T, typename G>
  void get(const Handle&, T*, const T*, std::uint64_t, std::uint32_t, const G&) {
    done += " get";
  }
  template <typename T, typename G>
  void get_nbi(const Handle&, T*, const T*, std::uint64_t, std::uint32_t, const G&) {
    done += " get_nbi";
  }
  template <typename T>
  void put_one(const Handle&, T*, T, std::uint32_t) {
    done += " put_one";
  }
  template <typename T>
  T get_one(const Handle&, const T*, std::uint32_t) {
    done += " get_one";
    return T{};
  }
  void signal(const Handle&, Signal*, Signal, SignalOperation, std::uint32_t) { done += " signal"; }
  void fence(const Handle&, std::uint32_t) { done += " fence"; }
  void quiet(const Handle&, std::uint32_t) { done += " quiet"; }
};

/// One that has a put and its signal in one.
struct OrdersSignals : Telling {
  static constexpr bool orders_signals = true;
  template <typename T, typename G>
  void put_signal(const Handle&, T*, const T*, std::uint64_t, Signal*, Signal, SignalOperation, std::uint32_t,
                  const G&) {
    done += " put_signal";
  }
  template <typename T, typename G>
  void put_signal_nbi(const Handle&, T*, const T*, std::uint64_t, Signal*, Signal, SignalOperation, std::uint32_t,
                      const G&) {
    done += " put_signal_nbi";
  }
};

void expect_meetings(const Handle& handle, std::uint64_t* far, Signal* signal, std::uint32_t rank) {
  const OneOfTwo group{rank};
  std::uint64_t own[4] = {};
  Context<Telling> context(handle, 0);
  Context<OrdersSignals> ordering(handle, 0);
  const auto expect = [&](const std::string& wanted, const char* name, auto&& call) {
    call();
    EXPECT_EQ(std::exchange(done, {}), wanted) << name << " by thread " << rank;
  };
  const std::string by_leader = rank == 0 ? " fence signal" : "";

  // The source may be written again, and what was asked for is there, for all of the group.
  expect(" put meet", "put", [&] { context.put(far, own, 4, 0, group); });
  expect(" get meet", "get", [&] { context.get(own, far, 4, 0, group); });
  expect(" put_one meet", "iput", [&] { context.iput(far, own, 1, 1, 2, 0, group); });
  expect(" get_one meet", "iget", [&] { context.iget(own, far, 1, 1, 2, 0, group); });
  expect(" put_nbi", "put_nbi", [&] { context.put_nbi(far, own, 4, 0, group); });
  expect(" get_nbi", "get_nbi", [&] { context.get_nbi(own, far, 4, 0, group); });

  // A signal comes behind what all of the group put.
  const auto set = SignalOperation::set;
  expect(" put meet" + by_leader, "put_signal", [&] { context.put_signal(far, own, 4, signal, 1, set, 0, group); });
  expect(" put_nbi meet" + by_leader, "put_signal_nbi",
         [&] { context.put_signal_nbi(far, own, 4, signal, 1, set, 0, group); });
  expect(" put_signal meet", "ordered put_signal", [&] { ordering.put_signal(far, own, 4, signal, 1, set, 0, group); });
  expect(" put_signal_nbi", "ordered put_signal_nbi",
         [&] { ordering.put_signal_nbi(far, own, 4, signal, 1, set, 0, group); });

  // They are about what any thread of the group did before, and hold for what any does afterwards.
  const auto between = [&](const std::string& what) { return rank == 0 ? " meet " + what + " meet" : " meet meet"; };
  expect(between("fence"), "fence", [&] { context.fence(group); });
  expect(between("fence"), "pe_fence", [&] { context.pe_fence(0, group); });
  expect(between("quiet"), "quiet", [&] { context.quiet(group); });
  expect(between("quiet"), "pe_quiet", [&] { context.pe_quiet(0, group); });
}

TEST(ShmemGroups, MeetAroundWhatIsAboutAllOfThem) {
  const int code = run_threads(1, {.heap_bytes = std::size_t{16} << 20, .wait_limit = 20}, [](World& world) {
    Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
    const auto far = heap.array<std::uint64_t>(4);
    const auto signal = heap.array<Signal>(1);
    for (const std::uint32_t rank : {0u, 1u}) expect_meetings(heap.handle(), far.data(), signal.data(), rank);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex::shmem
