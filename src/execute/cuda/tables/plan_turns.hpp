// Plans that take turns with the same counters: what these show when an epoch begins depends on the plans that ran
// before. Kernels keep the account, so that a captured graph replays right whatever ran since. Compiles as CUDA and as
// C++.
//
// Protocol. Epoch e, whatever its plan, uses half e % 2 of the counters. This rank's own memory holds as
// many bases: a wait of epoch e for `count` posts is met by base + count. What epoch e brought, the kernel of epoch
// e + 1 adds to the bases of half e % 2, which no kernel reads meanwhile: its own waits ask the other half, and the
// kernel of epoch e + 2 begins when it has ended. It knows from `last` which plan epoch e ran.
#pragma once

#include <cstddef>
#include <cstdint>

#include "imbrex/device/ordering.hpp"

namespace imbrex::cuda {

/// What an epoch brought to this rank's counters. In its memory, for each half: that of the half's last epoch.
struct alignas(32) EpochPosts {
  const std::uint32_t* posts;  ///< by signal
  std::uint32_t* bases;        ///< of the half, by signal
  std::uint32_t signals;       ///< none at first
  std::uint32_t unused[3];
};
static_assert(sizeof(EpochPosts) == 32 && offsetof(EpochPosts, signals) == 16);

/// A plan's view, by value into its kernel. All null: it has counters of its own.
struct PlanTurns {
  std::uint32_t* bases;        ///< of half 0, by signal
  const std::uint32_t* posts;  ///< by signal: in one epoch of this plan
  EpochPosts* last;            ///< by half
  std::uint32_t half_stride;   ///< bases from half to half
  std::uint32_t signals;
  std::uint32_t plan;  ///< its number, for messages
  std::uint32_t unused;
};
static_assert(sizeof(PlanTurns) == 40);

/// What the signal's counter shows when an epoch of that half begins, once all earlier posts have come.
IMBREX_DEVICE std::uint32_t base_of(const PlanTurns& t, std::uint32_t half, std::uint32_t signal) {
  return device::load_relaxed(t.bases + half * t.half_stride + signal);
}

/// By each of the `readers` of an epoch, numbered from 0, before it takes part in advancing it.
IMBREX_DEVICE void settle_last_epoch(const PlanTurns& t, std::uint64_t epoch, std::uint32_t reader,
                                     std::uint32_t readers) {
  // Words of an earlier kernel's, which may have come since this SM last read them.
  const volatile EpochPosts& last = t.last[(epoch + 1) & 1];
  const std::uint32_t signals = last.signals;
  const std::uint32_t* posts = last.posts;
  std::uint32_t* bases = last.bases;
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // few, beside hot loops
#endif
  for (std::uint32_t i = reader; i < signals; i += readers)
    bases[i] = device::load_relaxed(bases + i) + device::load_relaxed(posts + i);
}

/// By the one that advanced it.
IMBREX_DEVICE void leave_epoch(const PlanTurns& t, std::uint64_t epoch) {
  EpochPosts& last = t.last[epoch & 1];
  last.posts = t.posts;
  last.bases = t.bases + (epoch & 1) * t.half_stride;
  last.signals = t.signals;
}

}  // namespace imbrex::cuda
