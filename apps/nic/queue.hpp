// A send queue of an mlx5 NIC and its completions, as one thread at a time works on them.
//
// Protocol. The ring has a power of two of slots, up to 32,768, each prepared for one verb. Request n, counted from 0,
// lies in slot n modulo the ring's size; its index is n's lowest 16 bits, so it tells laps apart. The thread stores the
// request, then, behind a fence, the number of requests so far into the doorbell record (4 bytes, the NIC reads it),
// then, behind another, the first 8 bytes of the last request into the doorbell (the NIC's register). The second fence
// is there because the NIC, told by the doorbell, reads the record.
//
// The completion queue is collapsed: the NIC writes every completion to one place, the last one stays. One load of its
// last 4 bytes tells how far the queue has come and whether a request failed: requests of a queue complete in order, so
// none but the last counts. There is no index to keep, none to tell the NIC, nothing can overrun, and requests need not
// all complete. The price: after an error, those that were posted behind the failed one complete as `flushed` over it.
// The 16 bits that come with a completion mean one number only while less than 2^16 requests are under way: hence the
// largest ring.
#pragma once

#include "apps/nic/request.hpp"
#include "imbrex/device/shmem/words.hpp"

namespace imbrex::shmem::mlx5 {

inline constexpr std::uint32_t most_slots = 32768;

/// Where what the NIC reads behind a doorbell lies, the request's own data included.
enum class Reach {
  gpu,    ///< all of it in this GPU's memory: a fence of the GPU makes it visible to what reads that memory
  system  ///< some of it in the host's
};

/// A completion, 64 bytes. Bytes 54 and 55 of one with an error: the vendor's syndrome, the syndrome; 60 to 63: index,
/// signature, operation and owner. The highest byte comes first.
struct alignas(64) Completion {
  std::uint32_t word[16];
};
inline constexpr std::uint32_t nothing_yet = 0xf000ffffu;  ///< the last word before the first: the index is -1

/// What completions have in their highest 4 bits.
inline constexpr std::uint32_t sent_well = 0x0, sent_badly = 0xd, never_written = 0xf;

/// One queue. What is constant was written by the CPU; the rest belongs to the thread that has its turn.
struct alignas(64) Queue {
  Request* ring;
  std::uint32_t* record;
  std::uint64_t* doorbell;
  const Completion* completion;
  const std::uint64_t* results;  ///< of atomic operations, one a slot
  std::uint32_t queue_word;      ///< be32(number << 8)
  std::uint32_t mask;            ///< slots - 1
  std::uint32_t posted;          ///< requests so far
  std::uint32_t completed;       ///< that are known to be
};
static_assert(sizeof(Queue) == 64);

template <Reach reach>
IMBREX_DEVICE void fence_for_nic() {
#if defined(__CUDA_ARCH__)
  if constexpr (reach == Reach::gpu)
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  else
    device::fence_system();
#else
  words::fence();
#endif
}

/// Stores a request into the next slot, which must be free. The NIC does not know of it before `ring_doorbell`.
template <Verb verb>
IMBREX_DEVICE std::uint32_t append(Queue& queue, const Moving& moving) {
  const std::uint32_t index = queue.posted;
  queue.posted = index + 1;
  return fill<verb>(queue.ring[index & queue.mask], index, moving);
}

/// Tells the NIC of all requests so far. `first` is the last one's first word.
template <Verb verb, Reach reach>
IMBREX_DEVICE void ring_doorbell(const Queue& queue, std::uint32_t first) {
  fence_for_nic<reach>();
  words::store(queue.record, be32(queue.posted & 0xffffu));
  fence_for_nic<reach>();
  const std::uint64_t both = static_cast<std::uint64_t>(second_word(verb, queue.queue_word)) << 32 | first;
#if defined(__CUDA_ARCH__)
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(queue.doorbell), "l"(both) : "memory");
#else
  words::store(queue.doorbell, both);
#endif
}

/// What a completion's last word says.
struct Progress {
  std::uint32_t completed;  ///< requests of the queue
  bool failed;              ///< the last of them did, and all later ones will
};

IMBREX_DEVICE Progress look(const Queue& queue) {
  const std::uint32_t word = words::load_acquire(&queue.completion->word[15]);
  const std::uint32_t opcode = word >> 28;
  // The index is that of the last request that completed; it lies less than 2^16 before the next to be posted.
  const std::uint32_t open = (queue.posted - (be32(word) >> 16) - 1) & 0xffffu;
  return {queue.posted - open, opcode != sent_well && opcode != never_written};
}

}  // namespace imbrex::shmem::mlx5
