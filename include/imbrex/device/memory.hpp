// The host's side of the protocol of kernels: memory at the same place on every rank's GPU, and groups that cross into
// kernels by value.
//
//     imbrex::device::Memory memory(*world);                       // collective
//     auto* box = static_cast<Box*>(memory.allocate(sizeof(Box)));  // this rank's; peers' by device::at_rank
//     const imbrex::device::Group group = memory.group();
//     my_kernel<<<1, 32, 0, stream>>>(group, box);                 // any number of times, or in a graph
//     memory.finish(stream);                                       // throws what a wait gave up
//
// Ownership. A Memory owns all that it hands out, which lives as long as it does; the world outlives it. A Group is a
// plain value, which may be copied and captured; its State lies in the memory, its Fault in memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "imbrex/device/protocol.hpp"
#include "imbrex/world.hpp"

struct CUstream_st;

namespace imbrex::device {

struct MemoryOptions {
  std::size_t bytes = std::size_t{64} << 20;  ///< of each rank's GPU, taken when the memory is made
  int ranks_per_gpu = 1;                      ///< ranks that share each GPU
  std::uint64_t pauses = 0;                   ///< tests: not 0: seed of the pauses of pause_for_tests
  double max_pause = 1e-4;                    ///< the longest, seconds
};

/// One rank's. Functions that are collective are called by all ranks with the same arguments, in the same order. Used
/// by one host thread a rank.
class Memory {
 public:
  /// Collective. Selects the rank's GPU: the one of its number where the process sees one for every rank, else the only
  /// one. Throws Error(invalid_input) on options out of range or in a build without CUDA; Error(runtime_failure) where
  /// GPUs do not reach each other or have too little memory.
  explicit Memory(World& world, const MemoryOptions& options = {});

  /// Waits for the GPU; graphs of kernels that use the memory are not replayed any more.
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// CUDA's number of the rank's GPU.
  int gpu() const;

  /// Collective, but does not wait for peers: a peer may write here before this rank has called. This rank's part, of
  /// `bytes` zeroed bytes, aligned to 256. Throws Error(runtime_failure) naming asked and left bytes where they do not
  /// fit.
  void* allocate(std::size_t bytes);

  /// Collective, and waits for all ranks and their GPUs before and after: no kernel uses the bytes any more. Throws
  /// Error(invalid_input) for an address that allocate did not give.
  void release(void* own);

  /// Collective as allocate. A group with a State of its own, for kernels that run one after another: on one stream, or
  /// ordered by events, in the same order on every rank. In each, `readers` threads of the rank read the epoch and
  /// advance it. `describe` says for messages what a wait was for, from "for" or "in" on; `whole`: it says what the
  /// rank's message is after its number.
  Group group(std::uint32_t readers = 1, std::function<std::string(const Fault&)> describe = {}, bool whole = false);

  /// Throws Error(runtime_failure) if a wait of a kernel passed the world's limit, or a rank failed or was lost; all
  /// waits of all groups end then, on every rank, and the memory cannot be used any more.
  void check();

  /// Ends this rank's waits, and so all ranks'. Any thread may call it while no group is made.
  void end_waits() noexcept;

  /// Waits for the stream, and throws as check does.
  void finish(CUstream_st* stream);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace imbrex::device
