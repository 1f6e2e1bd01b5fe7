// What a kernel of a checked build may do wrong. Files that include it define IMBREX_SHMEM_CHECK.
#pragma once

#include "shmem/scopes.hpp"
#include "shmem/suite.hpp"

#if !defined(IMBREX_SHMEM_CHECK)
#error "misuse.hpp is about checked builds"
#endif

namespace imbrex::shmem::test {

enum class Misuse : std::uint8_t {
  pe,
  far_pe,
  outside,
  before,
  huge,
  wrapping,
  strided,
  strided_end,
  strided_get,
  signal,
  packet,
  atomic,
  pointer,
  waiting,
  context,
};
inline constexpr int misuses = 15;
/// What the error says.
inline constexpr const char* misuse_words[] = {"PE 1, block 0 named PE 7: PEs are 0 to ",
                                               "named PE 4294967295: PEs are 0 to ",
                                               "bytes at offset",
                                               "bytes at offset -8 of the heap",
                                               "named 8589934592 bytes at offset",
                                               "the heap does not hold them",
                                               "the heap does not hold them",
                                               "named 40 bytes at offset",
                                               "named 40 bytes at offset",
                                               "named 8 bytes at offset",
                                               "named 16 bytes at offset",
                                               "named 4 bytes at offset",
                                               "the heap does not hold them",
                                               "named 8 bytes at offset",
                                               "PE 1, block 0 asked for context 4000000000: there are "};

/// PE 1 does it; the others wait for what never comes.
IMBREX_KERNEL misuse(Handle handle, Misuse what, std::uint64_t* box) {
  if (!is_leader(Block{})) return;
  Context context(handle, handle.pe() == 1 && what == Misuse::context ? 4000000000u : block_index());
  if (handle.pe() != 1) {
    context.wait_until(box, Compare::equal, 1);
    return;
  }
  std::uint64_t here = 0;
  const volatile std::uint64_t many = (std::uint64_t{1} << 63) + 1;  // compilers warn of loops that go so far
  auto* heap = reinterpret_cast<std::uint64_t*>(handle.own);
  std::uint64_t* end = heap + handle.bytes / 8;
  // What is right is no fault, and would be the first: nothing at no address, and the heap's last element, alone, as
  // the last of several, and as the last of several that lie apart.
  context.put(static_cast<std::uint64_t*>(nullptr), box, 0, 0);
  static_cast<void>(context.g(end - 1, 0));
  context.get(box, end - 4, 4, 0);
  context.iget(box, end - 3, 1, 2, 2, 0);
  switch (what) {
    case Misuse::pe: context.put(box, &here, 1, 7); break;
    case Misuse::far_pe: context.p(box, 1, 0xffffffffu); break;
    case Misuse::outside: context.put(&here, box, 1, 0); break;
    case Misuse::before: context.put(heap - 1, box, 1, 0); break;
    case Misuse::huge: context.get(box, box, std::uint64_t{1} << 30, 0); break;
    case Misuse::wrapping: context.put(box, box, std::uint64_t{1} << 61, 0); break;
    case Misuse::strided: context.iput(box, box, 2, 1, many, 0); break;
    case Misuse::strided_end: context.iput(end - 4, box, 2, 1, 3, 0); break;
    case Misuse::strided_get: context.iget(box, end - 4, 1, 2, 3, 0); break;
    case Misuse::signal: context.signal_add(end, 1, 0); break;
    case Misuse::packet: context.put_packet(reinterpret_cast<Packet<int>*>(end), 1, 1, 0); break;
    case Misuse::atomic: context.atomic_add(reinterpret_cast<int*>(end), 1, 0); break;
    case Misuse::pointer: static_cast<void>(context.pointer(end, 0)); break;
    case Misuse::waiting: context.wait_until(end, Compare::equal, 1); break;
    case Misuse::context: break;
  }
}

/// Collective: runs it, and waits; throws what the kernels end with.
inline void run_misuse(Heap& heap, CudaStream stream, Misuse what, std::uint64_t* box) {
  launch(heap, {.blocks = 1, .threads = block_threads, .stream = stream}, misuse, heap.handle(), what, box);
  heap.finish(stream);
}

}  // namespace imbrex::shmem::test
