// What a kernel writes to a ring: descriptors of 16 bytes, one store each. One source for kernels, and for the host
// thread that reads them. docs/dev/shmem-ring.md explains.
//
// A slot is two words of 8 bytes. The highest bit of each is the lap's parity: a slot is there once both have that of
// the lap, so nothing else tells the reader of it, and the two words may come apart. First word, from the lowest bit:
// offset there (40 bits), PE (6), template (16), the operand's highest bit (1). Second word: offset here (40) and bytes
// (23), or the operand's other 63 bits. What does not fit follows in an extension: one more slot.
//
// Needs C++20. Compiles as CUDA and as C++.
#pragma once

#include "imbrex/device/shmem/operations.hpp"

namespace imbrex::shmem::ring {

inline constexpr std::uint64_t parity_bit = std::uint64_t{1} << 63;
inline constexpr std::uint32_t offset_bits = 40, pe_bits = 6, template_bits = 16;
inline constexpr std::uint64_t offsets_end = std::uint64_t{1} << offset_bits;  ///< bytes of a PE's part at most
/// Bytes of one descriptor's put or get at most; more are several.
inline constexpr std::uint32_t largest_move = 1u << 22;

/// Numbers of the templates that every ring has. Atomic operations: `first_atomic` + 4 x operation + type.
enum class Standard : std::uint16_t {
  fence,       ///< what follows to the PE takes effect after all that comes before; for wires that keep no order
  fence_all,   ///< to any PE
  put,         ///< here, bytes
  put_signal,  ///< the same, and an extension: the signal
  get,         ///< here, bytes
  put_pair,    ///< the first word is the operand, the second one is in the extension
  put_word,    ///< of 1, 2, 4 and 8 bytes, by 4 numbers: the operand
  first_atomic = 16
};
enum class AtomicCode : std::uint16_t { set, swap, add, fetch_add, fetch_and, fetch_or, fetch_xor, compare_swap };
enum class WordCode : std::uint16_t { u32, u64, f32, f64 };
inline constexpr std::uint32_t atomic_codes = 8, word_codes = 4;
/// The first that the user registers.
inline constexpr std::uint32_t first_own = 64;

template <Standard which>
IMBREX_DEVICE constexpr std::uint32_t number_of() {
  return static_cast<std::uint32_t>(which);
}
template <Scalar T>
IMBREX_DEVICE constexpr std::uint32_t number_of_word() {
  return number_of<Standard::put_word>() + (sizeof(T) == 8 ? 3 : sizeof(T) == 4 ? 2 : sizeof(T) == 2 ? 1 : 0);
}
IMBREX_DEVICE constexpr std::uint32_t number_of_atomic(AtomicCode atomic, WordCode word) {
  return number_of<Standard::first_atomic>() + word_codes * static_cast<std::uint32_t>(atomic) +
         static_cast<std::uint32_t>(word);
}
template <Atomic T>
IMBREX_DEVICE constexpr WordCode word_code() {
  if constexpr (std::is_floating_point_v<T>)
    return sizeof(T) == 4 ? WordCode::f32 : WordCode::f64;
  else
    return sizeof(T) == 4 ? WordCode::u32 : WordCode::u64;
}

/// What tells a template from another, and the two words of a descriptor without their parity.
IMBREX_DEVICE std::uint64_t first_word(std::uint32_t number, std::uint32_t pe, std::uint64_t there) {
  return there | static_cast<std::uint64_t>(pe | number << pe_bits) << offset_bits;
}
IMBREX_DEVICE words::Pair move_slot(std::uint32_t number, std::uint32_t pe, std::uint64_t there, std::uint64_t here,
                                    std::uint32_t bytes) {
  return {first_word(number, pe, there), here | static_cast<std::uint64_t>(bytes) << offset_bits};
}
IMBREX_DEVICE words::Pair operand_slot(std::uint32_t number, std::uint32_t pe, std::uint64_t there,
                                       std::uint64_t operand) {
  return {first_word(number, pe, there) | (operand >> 63) << 62, operand & ~parity_bit};
}
/// An extension: 64 bits, and for a signal where it lies and whether it is added to.
IMBREX_DEVICE words::Pair extension_slot(std::uint64_t value, std::uint64_t there = 0, bool add = false) {
  return {value & ~parity_bit, there | (value >> 63) << offset_bits | static_cast<std::uint64_t>(add) << 41};
}

/// A descriptor as its reader takes it apart.
struct Descriptor {
  std::uint32_t number, pe;
  std::uint64_t there, here, operand;
  std::uint32_t bytes;
};
IMBREX_DEVICE Descriptor descriptor_of(words::Pair slot) {
  const auto head = static_cast<std::uint32_t>(slot.first >> offset_bits & ((1u << (pe_bits + template_bits)) - 1));
  return {head >> pe_bits,
          head & ((1u << pe_bits) - 1),
          slot.first & (offsets_end - 1),
          slot.second & (offsets_end - 1),
          (slot.second & ~parity_bit) | (slot.first >> 62 & 1) << 63,
          static_cast<std::uint32_t>(slot.second >> offset_bits & ((1u << 23) - 1))};
}
struct Extension {
  std::uint64_t value, there;
  bool add;
};
IMBREX_DEVICE Extension extension_of(words::Pair slot) {
  return {(slot.first & ~parity_bit) | (slot.second >> offset_bits & 1) << 63, slot.second & (offsets_end - 1),
          (slot.second >> 41 & 1) != 0};
}

/// The parity of slot `index`, counted over all laps, of a ring of 2^log_slots: 1 in the first lap, as memory is 0.
IMBREX_DEVICE std::uint64_t parity_of(std::uint32_t index, std::uint32_t log_slots) {
  return static_cast<std::uint64_t>(~(index >> log_slots) & 1u) << 63;
}

/// One store of 16 bytes.
IMBREX_DEVICE void store_slot(words::Pair* slot, words::Pair value, std::uint64_t parity) {
  value.first |= parity, value.second |= parity;
#if defined(__CUDA_ARCH__)
  words::store_pair(slot, value);
#else
  // NOTE: two that release: the reader waits for both, and thread sanitizers see them.
  words::store(&slot->first, value.first);
  words::store(&slot->second, value.second);
#endif
}

}  // namespace imbrex::shmem::ring
