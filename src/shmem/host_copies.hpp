// Copies between PEs' parts of host memory, by a thread that stands for hardware.
#pragma once

#include <cstdint>
#include <cstring>

#include "imbrex/device/shmem/words.hpp"

namespace imbrex::shmem {

template <typename Word>
inline bool copy_word(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const auto both = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (bytes != sizeof(Word) || both % sizeof(Word) != 0) return false;
  words::store(reinterpret_cast<Word*>(to), words::load(reinterpret_cast<const Word*>(from)));
  return true;
}

/// Words of 1 to 8 bytes are written at once, as peers may look at them; else byte by byte.
inline void copy_between(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (copy_word<std::uint64_t>(to, from, bytes) || copy_word<std::uint32_t>(to, from, bytes) ||
      copy_word<std::uint16_t>(to, from, bytes) || copy_word<std::uint8_t>(to, from, bytes))
    return;
  std::memcpy(to, from, bytes);
}

}  // namespace imbrex::shmem
