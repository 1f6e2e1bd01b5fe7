// Structures that a PE's kernels take by value: the place of the symmetric heap, the PEs that take part, the limits of
// waits.
#pragma once

#include "imbrex/device/protocol.hpp"
#include "imbrex/device/shmem/words.hpp"

namespace imbrex::shmem {

inline constexpr std::uint32_t max_pes = 64;
inline constexpr std::uint64_t none = ~std::uint64_t{0};  ///< what calls return that found or waited for nothing

/// Epoch of what stands at the place of a PE's State where the PE is on another host.
inline constexpr std::uint64_t epoch_of_far = none;

/// One PE's view of the symmetric heap, by value into kernels. Made by shmem::Heap.
struct Handle {
  device::Group group;     ///< bounds waits; its ranks are the PEs, its stride the heap's
  std::byte* own;          ///< this PE's part of the heap
  std::uint64_t bytes;     ///< of a part
  std::uint32_t contexts;  ///< that this PE's kernels may have at once: numbers below this
  const void* transport;   ///< what a transport other than loads and stores works by; null without one

  IMBREX_DEVICE std::uint32_t pe() const { return group.rank; }
  IMBREX_DEVICE std::uint32_t pes() const { return group.ranks; }
};

/// What members of a team tell each other, at the same place on every PE. Zero at first.
struct alignas(64) TeamState {
  std::uint64_t calls;             ///< collective calls that this PE has made, written by itself
  std::uint64_t arrived[max_pes];  ///< by member: the number of the call that it last told this PE of
};

/// Members `start`, `start + stride`, ... of the world. By value into kernels. Made by shmem::Heap.
struct Team {
  std::uint32_t start, stride, size;
  std::uint32_t me;  ///< this PE's number in the team
  TeamState* state;  ///< this PE's, in the symmetric heap

  /// The number in the world of the team's member.
  IMBREX_DEVICE std::uint32_t pe(std::uint32_t member) const { return start + member * stride; }
};

/// A signal: 64 bits that puts set or add to.
using Signal = std::uint64_t;

enum class SignalOperation : std::uint8_t { set, add };

enum class Compare : std::uint8_t { equal, not_equal, greater, greater_equal, less, less_equal };

template <typename T>
IMBREX_DEVICE bool holds(T seen, Compare compare, T value) {
  switch (compare) {
    case Compare::equal: return seen == value;
    case Compare::not_equal: return seen != value;
    case Compare::greater: return seen > value;
    case Compare::greater_equal: return seen >= value;
    case Compare::less: return seen < value;
    case Compare::less_equal: return seen <= value;
  }
  return false;
}

/// Data of up to 8 bytes and its signal, which travel as one packet of 16 and need no fence.
template <Scalar T>
struct alignas(16) Packet {
  T value;
  alignas(8) Signal signal;
};

/// What a Fault's `kind` says. `place`: block; PE or member; offset of the address in the heap, low and high half.
/// `expected` and `seen` are low halves, `epoch` holds the high ones: expected's above seen's.
enum class FaultKind : std::uint32_t {
  wait = 0x5101,  ///< a wait for a variable passed its limit
  collective,     ///< a wait for a member of a team passed its limit
  pe,             ///< IMBREX_SHMEM_CHECK: a PE out of range; `expected` is their number
  address,        ///< IMBREX_SHMEM_CHECK: bytes outside of the heap; `expected` is how many
  context,        ///< a context's number is out of range; `expected` is how many there are
  far,            ///< loads and stores to a PE of another host; checked on the CPU
  // By a NIC's queues; the offset is the queue's kind.
  request,     ///< the NIC refused a request; `expected` is the syndrome, the vendor's above it, `seen` its index
  completion,  ///< requests took too long; `expected` is how many, `seen` how many were complete
  turn,        ///< the context's other threads took too long
  // By rings.
  ring_full,  ///< no slot was free in time; the offset is how many there are, `expected` slots so far, `seen` read
  ring_completion,  ///< `expected` slots took too long, `seen` are complete
  descriptor,       ///< the host's thread refused one of a context, the block: `expected` is a Refusal
};

IMBREX_DEVICE void describe(device::Fault& fault, FaultKind kind, std::uint32_t block, std::uint32_t pe,
                            std::uint64_t offset, std::uint64_t expected, std::uint64_t seen) {
  fault.kind = static_cast<std::uint32_t>(kind);
  fault.place[0] = block;
  fault.place[1] = pe;
  fault.place[2] = static_cast<std::uint32_t>(offset);
  fault.place[3] = static_cast<std::uint32_t>(offset >> 32);
  fault.expected = static_cast<std::uint32_t>(expected);
  fault.seen = static_cast<std::uint32_t>(seen);
  fault.epoch = (expected >> 32) << 32 | seen >> 32;
}

/// Ends all waits of all PEs. `where` as in device::give_up.
template <typename Where>
IMBREX_DEVICE void give_up(const Handle& handle, Where&& where) {
  device::Group group = handle.group;
  group.states = words::here(group.states);
  device::give_up(group, where);
}

// ------------------------------------------------------------------------------------ what arguments come to

/// Elements from the first to the last of `count`; more than any heap has where they are too many to count.
IMBREX_DEVICE std::uint64_t span(std::uint64_t count, std::uint64_t stride) {
  if (count == 0) return 0;
  return stride != 0 && count - 1 > (none - 1) / stride ? none : (count - 1) * stride + 1;
}

/// Whether a wait for many variables does without this one.
IMBREX_DEVICE bool is_left_out(const int* status, std::uint64_t i) { return status != nullptr && status[i] != 0; }

/// The first that `status` does not leave out; `count` where it leaves out all.
IMBREX_DEVICE std::uint64_t first_of(const int* status, std::uint64_t count) {
  std::uint64_t i = 0;
  while (i < count && is_left_out(status, i)) ++i;
  return i;
}

}  // namespace imbrex::shmem
