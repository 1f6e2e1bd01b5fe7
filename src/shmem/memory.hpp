// Where a symmetric heap lies: in this host's memory, or on GPUs.
#pragma once

#include <memory>

#include "imbrex/shmem.hpp"

namespace imbrex::shmem {

/// What a PE keeps beside what the caller allocates, at the same place on all.
struct TeamStates {
  static constexpr std::uint32_t teams = 64;  ///< the world's is number 0
  TeamState state[teams];
  std::uint64_t wish[max_pes];  ///< by PE; when a team is made: a bit for each number that the PE has no team of
};

class Memory {
 public:
  virtual ~Memory() = default;

  virtual Device device() const = 0;
  virtual int gpu() const { return -1; }
  virtual int multiprocessors() const { return 0; }
  virtual const Handle& handle() const = 0;
  virtual void use_transport(const void* transport) = 0;
  virtual TeamStates* teams() const = 0;

  /// Collective. Aligned to 256; throws Error(runtime_failure) naming asked and left bytes.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  /// Collective: all PEs and their GPUs are done with it, before and behind.
  virtual void release(std::byte* own) = 0;

  /// By the heap's destructor, when all PEs are there: all of it. Without this it stays taken as long as the world
  /// lives, because peers may still be at work in it.
  virtual void give_back() {}

  /// Copies from and to any PE's memory, as this PE reaches it.
  virtual void write(std::byte* there, const void* here, std::size_t bytes) = 0;
  virtual void read(void* here, const std::byte* there, std::size_t bytes) = 0;
  virtual void zero(std::byte* own, std::size_t bytes) = 0;

  /// Throws why a wait of a kernel ended.
  virtual void check() = 0;
  virtual void finish(CudaStream stream) = 0;
};

/// Out of the world's own heap. Collective.
std::unique_ptr<Memory> host_memory(World& world, const HeapOptions& options, std::size_t bytes);

/// Collective. Throws Error(invalid_input) in a build without CUDA.
std::unique_ptr<Memory> gpu_memory(World& world, const HeapOptions& options);

/// "PE 1, block 3 waited longer than 30 s for the 8 bytes at offset 4096 of the heap: expected 5, saw 4".
std::string fault_words(const device::Fault& fault, int pe, double limit);

}  // namespace imbrex::shmem
