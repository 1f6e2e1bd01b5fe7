// Work requests of mlx5 NICs, 64 bytes each, as a kernel stores them into the ring of a send queue. One source for
// kernels and hosts; equal, bit for bit, to what rdma-core's mlx5dv.h makes (tests/shmem/mlx5/mlx5dv_test.cpp).
//
// Two ways. `prepared` and `fill`: the CPU writes all of a ring's slots when the queue is made, and a kernel stores
// what changes: address there, address here, byte count and the 16 bits of the index. `build`: a kernel writes every
// field, from keys and numbers that it loads. A slot keeps what was prepared as long as its verb does not change: a
// slot is of one verb for ever.
//
// Needs C++20. Compiles as CUDA and as C++.
#pragma once

#include <cstdint>
#include <cstring>

#include "imbrex/device/ordering.hpp"

namespace imbrex::shmem::mlx5 {

// NICs read words with the highest byte first.
IMBREX_DEVICE std::uint32_t be32(std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(value, 0, 0x0123);
#else
  return __builtin_bswap32(value);
#endif
}
IMBREX_DEVICE std::uint64_t be64(std::uint64_t value) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint64_t>(be32(static_cast<std::uint32_t>(value))) << 32 |
         be32(static_cast<std::uint32_t>(value >> 32));
#else
  return __builtin_bswap64(value);
#endif
}

enum class Verb : std::uint8_t { write, write_inline, read, fetch_add, compare_swap };

IMBREX_DEVICE constexpr std::uint32_t opcode_of(Verb verb) {
  switch (verb) {
    case Verb::write:
    case Verb::write_inline: return 0x08;
    case Verb::read: return 0x10;
    case Verb::fetch_add: return 0x12;
    case Verb::compare_swap: return 0x11;
  }
  return 0;
}

/// Segments of 16 bytes, of the four that a slot has.
IMBREX_DEVICE constexpr std::uint32_t segments_of(Verb verb) {
  return verb == Verb::fetch_add || verb == Verb::compare_swap ? 4 : 3;
}

/// 16 bytes of a request, which one store writes.
struct alignas(16) Segment {
  std::uint32_t word[4];
};

/// A slot. Segment 0 is control {operation and index; queue and segments; flags; immediate}, 1 the place there
/// {address, address; key; 0}. 2 and 3: write, read {byte count; key; address here}; inline {byte count and bit 31; up
/// to 8 bytes of data}; atomic {added or new, compared with}, {8; key; address of the result}.
struct alignas(64) Request {
  Segment segment[4];
};
static_assert(sizeof(Request) == 64);

inline constexpr std::uint32_t inline_bit = 0x80000000u;
inline constexpr std::uint32_t completes_bit = 8;  ///< of the flags: the request ends in a completion

/// What is known when the queue is made.
struct Fixed {
  std::uint32_t queue;                  ///< its number, 24 bits
  std::uint32_t remote_key, local_key;  ///< of the memory there and here
  bool completes = true;                ///< without it a completion comes for an error only
};

/// What changes from request to request.
struct Moving {
  std::uint64_t remote = 0;   ///< address in the memory there
  std::uint64_t local = 0;    ///< address in the memory here; of atomic operations, the result's
  std::uint32_t bytes = 0;    ///< up to 8 if inline; atomic operations have 8
  std::uint64_t operand = 0;  ///< the data if inline, its first byte lowest; added; or the new value
  std::uint64_t compare = 0;  ///< compare_swap
};

/// The first 4 bytes. The index counts a queue's requests, and wraps.
IMBREX_DEVICE std::uint32_t first_word(Verb verb, std::uint32_t index) {
  return be32((index & 0xffffu) << 8 | opcode_of(verb));
}

/// The second 4, of a queue's number that was shifted and turned before: `be32(queue << 8)`.
IMBREX_DEVICE std::uint32_t second_word(Verb verb, std::uint32_t queue_word) {
  return queue_word | segments_of(verb) << 24;
}

IMBREX_DEVICE void store_two(std::uint32_t* to, std::uint64_t value) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<std::uint64_t*>(to) = value;
#else
  memcpy(to, &value, sizeof value);
#endif
}

/// Stores what changes into a slot that was prepared for the verb: 24 bytes in 4 stores (fetch_add: 20 in 3,
/// compare_swap: 28 in 4). Returns the first word. The address of an atomic operation's result stays as it was
/// prepared.
template <Verb verb>
IMBREX_DEVICE std::uint32_t fill(Request& slot, std::uint32_t index, const Moving& moving) {
  const std::uint32_t first = first_word(verb, index);
  slot.segment[0].word[0] = first;
  store_two(slot.segment[1].word, be64(moving.remote));
  Segment& last = slot.segment[2];
  if constexpr (verb == Verb::write || verb == Verb::read) {
    last.word[0] = be32(moving.bytes);
    store_two(last.word + 2, be64(moving.local));
  } else if constexpr (verb == Verb::write_inline) {
    store_two(last.word, moving.operand << 32 | be32(inline_bit | moving.bytes));
    last.word[2] = static_cast<std::uint32_t>(moving.operand >> 32);
  } else {
    store_two(last.word, be64(moving.operand));
    if constexpr (verb == Verb::compare_swap) store_two(last.word + 2, be64(moving.compare));
  }
  return first;
}

/// Writes every field of a slot, 16 bytes a store. Returns the first word.
template <Verb verb>
IMBREX_DEVICE std::uint32_t build(Request& slot, std::uint32_t index, const Fixed& fixed, const Moving& moving) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  const std::uint32_t first = first_word(verb, index);
  const std::uint32_t flags = fixed.completes ? completes_bit << 24 : 0;
  const std::uint64_t remote = be64(moving.remote), local = be64(moving.local);
  const Segment here{{be32(moving.bytes), be32(fixed.local_key), low(local), high(local)}};
  slot.segment[0] = Segment{{first, second_word(verb, be32(fixed.queue << 8)), flags, 0}};
  slot.segment[1] = Segment{{low(remote), high(remote), be32(fixed.remote_key), 0}};
  if constexpr (verb == Verb::write || verb == Verb::read) {
    slot.segment[2] = here;
  } else if constexpr (verb == Verb::write_inline) {
    slot.segment[2] = Segment{{be32(inline_bit | moving.bytes), low(moving.operand), high(moving.operand), 0}};
  } else {
    const std::uint64_t operand = be64(moving.operand), compare = be64(moving.compare);
    slot.segment[2] = Segment{{low(operand), high(operand), low(compare), high(compare)}};
    slot.segment[3] = here;
  }
  return first;
}

/// By the CPU, when the queue is made: all that `fill` leaves as it is. `result` is where the slot's atomic operations
/// put what was there before.
IMBREX_DEVICE void prepare(Request& slot, Verb verb, const Fixed& fixed, std::uint64_t result) {
  slot = {};
  const Moving nothing{.local = result, .bytes = 8};
  switch (verb) {
    case Verb::write: build<Verb::write>(slot, 0, fixed, nothing); break;
    case Verb::write_inline: build<Verb::write_inline>(slot, 0, fixed, nothing); break;
    case Verb::read: build<Verb::read>(slot, 0, fixed, nothing); break;
    case Verb::fetch_add: build<Verb::fetch_add>(slot, 0, fixed, nothing); break;
    case Verb::compare_swap: build<Verb::compare_swap>(slot, 0, fixed, nothing); break;
  }
}

}  // namespace imbrex::shmem::mlx5
