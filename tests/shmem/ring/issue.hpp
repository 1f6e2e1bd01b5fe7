// Ways to tell a host of a put, to be compared: in SASS by issue_test.py, in time by issue_bench.cu.
#pragma once

#include "imbrex/device/shmem/ring/transport.hpp"

namespace imbrex::shmem::ring::test {

enum class Way {
  descriptor,  ///< 16 bytes: what changes, and the number of a template
  fields       ///< 64 bytes: all that the host needs to know, in 4 stores, each with its parity
};

/// What a version without templates has to say.
struct Fields {
  std::uint64_t there_base, here_base;  ///< of the memory there and here
  std::uint64_t signal;                 ///< its address
  std::uint32_t opcode, flags;
};

/// A ring as one thread counts.
struct Queue {
  words::Pair* ring;
  std::uint32_t log_slots, posted, room;
};

template <Way way>
IMBREX_DEVICE bool issue(Queue& queue, const Fields* fields, std::uint32_t number, std::uint32_t pe,
                         std::uint64_t there, std::uint64_t here, std::uint32_t bytes, std::uint64_t value) {
  const std::uint32_t index = queue.posted;
  if (!device::reached(queue.room, index + 1)) return false;
  queue.posted = index + 1;
  const std::uint32_t slot = index & ((1u << queue.log_slots) - 1);
  const std::uint64_t parity = parity_of(index, queue.log_slots);
  if constexpr (way == Way::descriptor) {
    static_cast<void>(fields), static_cast<void>(value);
    store_slot(queue.ring + slot, move_slot(number, pe, there, here, bytes), parity);
  } else {
    words::Pair* line = queue.ring + std::uint64_t{slot} * 4;
    const std::uint64_t head = fields->opcode | static_cast<std::uint64_t>(pe) << 32;
    const std::uint64_t tail = bytes | static_cast<std::uint64_t>(fields->flags) << 32;
    store_slot(line, {head, fields->there_base + there}, parity);
    store_slot(line + 1, {fields->here_base + here, tail}, parity);
    store_slot(line + 2, {fields->signal, value & ~parity_bit}, parity);
    store_slot(line + 3, {value >> 63, number}, parity);
  }
  return true;
}

}  // namespace imbrex::shmem::ring::test
