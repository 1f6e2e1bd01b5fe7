// Rings whose wire, and whose thread, a test chooses.
#pragma once

#include <memory>

#include "imbrex/shmem/rings.hpp"
#include "shmem/ring/wire.hpp"

namespace imbrex::shmem::ring {

/// RingOptions, and what tests ask for besides; the latter may differ by PE.
struct RingTrial {
  std::uint32_t contexts = RingOptions().contexts;
  std::uint32_t slots = RingOptions().slots;
  std::uint32_t stage_bytes = RingOptions().stage_bytes;
  std::uint32_t templates = RingOptions().templates;
  std::uint64_t far = 0;         ///< bit r: MixedRing takes PE r for one of another host
  std::uint32_t first = 0;       ///< slots that a ring seems to have had before: a multiple of `slots`
  std::uint64_t seed = 1;        ///< of its pauses
  double max_pause = 0;          ///< the longest random pause between descriptors, seconds
  std::uint64_t stop_at = none;  ///< behind so many descriptors the thread takes no more
};

class TrialRings final : public Rings {
 public:
  /// `wire`: null for the one that Rings takes.
  explicit TrialRings(Heap& heap, const RingTrial& trial = {}, std::unique_ptr<Wire> wire = nullptr);
};

}  // namespace imbrex::shmem::ring
