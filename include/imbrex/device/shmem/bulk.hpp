// Blocks that have long puts done by Hopper's cp.async.bulk, through shared memory: few registers, and threads that are
// free meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "imbrex/device/shmem/group.hpp"

namespace imbrex::shmem {

/// A block whose first thread has puts done by cp.async.bulk. `stage` is the block's shared memory, aligned to 128
/// bytes, of 2 KiB or more, which no other code uses from a call on until the block has met; by 64 KiB the engine
/// streams. Where source and target lie differently in their lines of 16 bytes, or the source is not in global memory,
/// and for all but puts and puts with a signal, it is a Block. Needs a GPU of compute capability 9.
struct BulkBlock : Block {
  std::byte* stage;
  std::uint32_t bytes;  ///< of the stage
};

namespace copies {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/// By the whole block, of whole lines; its first thread returns when all has arrived.
IMBREX_DEVICE void by_bulk(std::uint64_t to, std::uint64_t from, std::uint64_t bytes, const BulkBlock& block) {
  // `slots` pieces are in the stage at once; `ahead` of them are on their way into it.
  constexpr std::uint32_t slots = 8, ahead = 4, head = 128;
  block.sync();  // others have written the source, and are done with the stage
  if (!is_leader(block)) return;
  const auto stage = static_cast<std::uint32_t>(__cvta_generic_to_shared(block.stage));
  const std::uint32_t room = (block.bytes - head) / slots / 128 * 128;
#pragma unroll 1
  for (std::uint32_t s = 0; s < slots; ++s)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(stage + s * 8) : "memory");
  device::fence_shared_for_bulk();
  device::fence_before_bulk_loads();
  const auto at = [&](std::uint64_t piece) { return static_cast<std::uint32_t>(piece % slots); };
  const auto size = [&](std::uint64_t piece) {
    const std::uint64_t left = bytes - piece * room;
    return left < room ? static_cast<std::uint32_t>(left) : room;
  };
  const std::uint64_t pieces = (bytes + room - 1) / room;
#pragma unroll 1
  for (std::uint64_t i = 0; i < pieces + ahead; ++i) {
    if (i < pieces) {
      // What was in the slot before has left it: all stores but the youngest have read theirs.
      asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(slots - ahead - 1) : "memory");
      const std::uint32_t barrier = stage + at(i) * 8;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(size(i)) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       stage + head + at(i) * room),
                   "l"(from + i * room), "r"(size(i)), "r"(barrier)
                   : "memory");
    }
    if (i < ahead) continue;
    const std::uint64_t piece = i - ahead;
    std::uint32_t there = 0;
    while (there == 0)
      asm volatile(
          "{\n\t.reg .pred there;\n\tmbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, there;\n\t}"
          : "=r"(there)
          : "r"(stage + at(piece) * 8), "r"(static_cast<std::uint32_t>(piece / slots & 1))
          : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + piece * room),
                 "r"(stage + head + at(piece) * room), "r"(size(piece))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#pragma unroll 1
  for (std::uint32_t s = 0; s < slots; ++s)
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(stage + s * 8) : "memory");
}

#endif

}  // namespace copies
}  // namespace imbrex::shmem
