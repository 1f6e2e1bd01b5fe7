// Whether a put is done with its source when it returns, by any transport.
#pragma once

#include <cstdint>

#include "imbrex/device/shmem.cuh"

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

}  // namespace imbrex::shmem::test
