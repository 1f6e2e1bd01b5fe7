// What the collectives' kernels share on a rank: its workspace, and a record of the wait that failed. The same header
// on both sides.
//
// A rank's workspace is its part of a symmetric allocation: a CommState, then two copies of slots for packets, which
// are empty between calls, then two copies of slots for codes, which hold anything. Call number e, the epoch, uses copy
// e mod 2. The ranks make the same calls in the same order, each on one stream at a time.
//
// Use again. Rank r's kernel of epoch e ends only after it has had data from every peer that the peer sent in epoch e,
// so after the peer's kernel of epoch e - 1 had ended. What r stores in epoch e + 1, into copy (e + 1) mod 2, therefore
// finds that copy as the peers' kernels of epoch e - 1 left it when they ended: read, and cleared.
//
// Epochs. Every block reads its own BlockState and advances it at its end; block 0 advances those of the blocks that
// the launch does not have. So no block waits for another one, no host argument changes between calls, and a captured
// graph replays for ever.
#pragma once

#include <cstddef>
#include <cstdint>

#include "imbrex/device/protocol.hpp"

namespace imbrex::cuda {

inline constexpr std::uint32_t max_comm_ranks = 8, max_comm_blocks = 256, max_comm_signallers = 3;

struct alignas(16) BlockState {
  std::uint64_t epoch;  ///< calls so far
  std::uint32_t posts;  ///< of calls through codecs: at least what this block's counters at its peers show, mod 2^32
  std::uint32_t rooms;  ///< of exact calls: what its `room` at its peers shows
};

/// What a call through a codec says of its errors, of what this rank owns. Call e writes reports[e mod 2].
struct alignas(16) CommReport {
  unsigned long long non_finite;  ///< elements of the output
  std::uint32_t error_bits;       ///< of the largest possible error, a float
  std::uint32_t raw_groups;
};

/// [peer][block]
using CommCounters = std::uint32_t[max_comm_ranks][max_comm_blocks];
/// [stage of a ring][block]
using RingCounters = std::uint32_t[2 * max_comm_ranks - 1][max_comm_blocks];

/// Zero at first. The state's words are shared by all kernels; its `epoch` and `readers` are not used: see above.
struct alignas(256) CommState {
  device::State state;
  /// The epoch of the last call that was voted on and goes the exact way. Written by this rank's vote.
  std::uint64_t exact_epoch;
  std::uint32_t unused[38];
  CommReport reports[2];
  BlockState blocks[max_comm_blocks];
  /// Counters that the peer's block writes, over all calls, mod 2^32: chunks of parts that it has sent, of sums that it
  /// has sent, and chunks that it is done with and this rank's block may send again into. Where warps post in turn,
  /// each has a counter of its own: it says that the chunks of that warp up to there have come.
  CommCounters parts[max_comm_signallers], sums[max_comm_signallers], freed[max_comm_signallers];
  /// What `freed` is, of exact calls.
  CommCounters room;
  /// Counters of rings, whose stages are posted by one neighbour each: chunks that it has sent, and, of the last
  /// stage, that it is done with.
  RingCounters ring;
};
/// What lies there of the last call's report: which of the two it is, the epoch of block 0 tells.
struct KeptReport {
  std::uint64_t exact_epoch;
  std::uint32_t unused[38];
  CommReport reports[2];
  BlockState block;
};
static_assert(offsetof(KeptReport, reports) == offsetof(CommState, reports) - offsetof(CommState, exact_epoch));
static_assert(offsetof(KeptReport, block) == offsetof(CommState, blocks) - offsetof(CommState, exact_epoch));

static_assert(sizeof(CommState) ==
              256 + 16 * max_comm_blocks + (3 * max_comm_signallers + 1) * sizeof(CommCounters) + sizeof(RingCounters));

/// What a wait was for: device::Fault::kind. The places are the peer whose data or word did not come, the block of
/// threads, and, of data, the number of 16 bytes within the peer's or the owner's part, in two words; `expected` and
/// `seen` are of a counter, counted from the call's begin, or zero.
enum class CommStep : std::uint32_t { vector, part, sum, room, block, vote };

/// One of two kernels after a vote does the work; the other ends at once, and is no epoch.
enum class Turn : std::uint32_t { always, unless_exact, if_exact };

/// One rank's view, by value into kernels. A workspace begins with the rank's state; `readers` is not used.
struct Comm : device::Group {
  std::uint64_t copy_bytes;  ///< of one copy of the slots of either kind
  Turn turn;
};

/// From the start of a workspace to its slots.
inline constexpr std::size_t slots_offset = sizeof(CommState);

}  // namespace imbrex::cuda
