// A PE's rings over a symmetric heap, and the thread that serves them: what Context<Ring> and Context<OwnRing> work by.
//
//     imbrex::shmem::ring::Rings rings(heap, {.contexts = 8});      // collective; the heap's own wire
//     const auto row = rings.add({.there = below, .here = last_row, .bytes = bytes, .signal = signal});
//     launch(heap, grid, kernel, heap.handle(), row);               // transport().put_registered(handle, row, 7, pe)
//
// The thread takes descriptors from all contexts' rings, in each one's order, trusts nothing that it reads, and has its
// wire move the bytes. It is done with what kernels posted when these contexts end. It yields while it has nothing to
// do. A descriptor that it refuses, or a wire that fails, ends all waits of all PEs, by name; and a world that fails
// ends its work.
#pragma once

#include <memory>

#include "imbrex/device/shmem/ring/transport.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::shmem::ring {

/// The same on every PE.
struct RingOptions {
  std::uint32_t contexts = 64;       ///< that kernels may have at once; each has a ring
  std::uint32_t slots = 256;         ///< of a ring: a power of two from 4 to 65,536
  std::uint32_t stage_bytes = 1024;  ///< of a context's piece of the heap, 64 or more
  std::uint32_t templates = 4096;    ///< that add() may register, up to 65,000
};

/// A put whose place and signal never change: a kernel posts its number, the PE and the signal's value.
struct RegisteredPut {
  void* there = nullptr;       ///< in this PE's part, for the same place there
  const void* here = nullptr;  ///< in this PE's part
  std::uint64_t bytes = 0;     ///< 0: the signal alone
  Signal* signal = nullptr;    ///< null: none; else it is at the same place there
  SignalOperation operation = SignalOperation::set;
};

/// What the thread did so far.
struct RingCounts {
  std::uint64_t descriptors = 0;
  std::uint64_t laps = 0;  ///< of rings
};

class Rings {
 public:
  /// Collective. The heap outlives it, and from now on its contexts of rings work by this: by libfabric where the world
  /// has several hosts, else by loads and stores, or copies of the GPU. Throws Error(invalid_input) on options out of
  /// range and for a heap beyond 1 TiB a PE, Error(runtime_failure) where the heap has no room.
  explicit Rings(Heap& heap, const RingOptions& options = {});
  /// Collective, unless an exception is on its way: no PE's kernels use them any more.
  ~Rings();
  Rings(const Rings&) = delete;
  Rings& operator=(const Rings&) = delete;

  /// A template's number, for this PE's kernels that start afterwards. Throws Error(invalid_input) for what the heap
  /// does not hold, a signal that is not aligned, and more than there may be.
  std::uint32_t add(const RegisteredPut& put);

  RingCounts counts() const;

 protected:
  struct Parts;
  explicit Rings(std::unique_ptr<Parts> parts);

 private:
  std::unique_ptr<Parts> parts_;
};

}  // namespace imbrex::shmem::ring
