// Whether a put is done with its source when it returns, by any transport.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "imbrex/device/shmem.cuh"
#include "imbrex/shmem.hpp"

namespace imbrex::shmem::test {

inline constexpr std::uint32_t overwritten_count = 300;

enum class Put : std::uint8_t { plain, with_signal, with_signal_nbi };

/// Each PE puts to the next one, and overwrites what it put as soon as the call returns. Counts elements that came
/// otherwise.
template <typename Transport>
IMBREX_KERNEL pass_and_overwrite(Handle handle, Put how, std::uint64_t* landing, std::uint64_t* source, Signal* signals,
                                 std::uint64_t* wrong) {
  Context<Transport> context(handle);
  const std::uint32_t pes = context.pes(), next = (context.pe() + 1) % pes, before = (context.pe() + pes - 1) % pes;
  for (std::uint64_t round = 1; round <= 300; ++round) {
    for (std::uint32_t i = 0; i < overwritten_count; ++i) source[i] = round * 1000 + i;
    switch (how) {
      case Put::plain:
        context.put(landing, source, overwritten_count, next);
        context.fence();
        context.signal_set(signals, round, next);
        break;
      case Put::with_signal:
        context.put_signal(landing, source, overwritten_count, signals, round, SignalOperation::set, next);
        break;
      case Put::with_signal_nbi:
        context.put_signal_nbi(landing, source, overwritten_count, signals, round, SignalOperation::set, next);
        break;
    }
    for (std::uint32_t i = 0; i < overwritten_count; ++i) words::store(source + i, std::uint64_t{0});
    if (!context.signal_wait_until(signals, Compare::greater_equal, round)) return;
    for (std::uint32_t i = 0; i < overwritten_count; ++i)
      if (words::load(landing + i) != round * 1000 + i) ++*wrong;
    context.quiet();
    context.signal_set(signals + 1, round, before);
    if (!context.signal_wait_until(signals + 1, Compare::greater_equal, round)) return;
  }
}

/// One PE's part: 0 where all came as it was put, 1 where something did not.
template <typename Transport>
int run_overwritten(Heap& heap, Put how) {
  const auto landing = heap.array<std::uint64_t>(overwritten_count),
             source = heap.array<std::uint64_t>(overwritten_count);
  const auto signals = heap.array<Signal>(2);
  std::uint64_t wrong = 0;
  launch(heap, {}, pass_and_overwrite<Transport>, heap.handle(), how, landing.data(), source.data(), signals.data(),
         &wrong);
  return wrong == 0 ? 0 : 1;
}

/// `run`: the code of PEs that each make their site and call run_overwritten. A put that returns at once shows that the
/// test sees it.
inline void expect_puts_done_with_their_source(const std::function<int(Put)>& run) {
  EXPECT_EQ(run(Put::plain), 0);
  EXPECT_EQ(run(Put::with_signal), 0);
  EXPECT_EQ(run(Put::with_signal_nbi), 1);
}

}  // namespace imbrex::shmem::test
