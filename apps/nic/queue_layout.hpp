// What the queues of a PE over a symmetric heap have in common: how many there are, to which PEs they go,
// their pieces of the heap, and rings whose requests are prepared.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "apps/nic/transport.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::shmem::mlx5 {

/// The same on every PE.
struct QueueOptions {
  std::uint32_t contexts = 4;        ///< that kernels may have at once; each has queues of its own
  std::uint32_t slots = 64;          ///< of a ring: a power of two from 2 to 32,768
  std::uint32_t largest = 1u << 30;  ///< bytes that one request moves
  std::uint32_t stage_bytes = 4096;  ///< of a context's piece of the heap, 64 or more
  std::uint64_t seed = 1;            ///< for keys that no NIC gives
};

/// A queue as its NIC knows it.
struct Port {
  Queue* queue;
  Completion* completion;
  std::uint32_t number;  ///< 24 bits
  std::uint32_t slots;
  std::uint32_t pe;  ///< whom it is connected to
};

/// Keys of the memory that NICs reach.
struct RegionKeys {
  std::uint32_t local;                ///< of this PE's, in its own requests
  std::vector<std::uint32_t> remote;  ///< by PE
  std::uint64_t base = 0;             ///< what Endpoint::base says
};

/// Parts of a queue, as kernels address them.
struct QueueParts {
  Request* ring;
  std::uint32_t* record;
  std::uint64_t* doorbell;
  const Completion* completion;
  std::uint32_t number;
};

/// Queues are numbered from 0: by context, then by PE, then by kind.
class QueueLayout {
 public:
  /// Throws Error(invalid_input) on options out of range.
  QueueLayout(const Heap& heap, const QueueOptions& options);

  const QueueOptions& options() const { return options_; }
  std::uint32_t pes() const { return pes_; }
  std::uint32_t each() const { return pes_ * kinds; }  ///< of a context
  std::uint32_t count() const { return options_.contexts * each(); }
  std::uint32_t pe_of(std::uint32_t queue) const { return queue % each() / kinds; }
  static Kind kind_of(std::uint32_t queue) { return static_cast<Kind>(queue % kinds); }

  /// What is registered: it begins with what the heap's teams need.
  std::byte* begin() const { return begin_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Words of 8 bytes that all contexts take of the heap: stages, and results of atomic operations.
  std::size_t scratch_words() const { return context_words() * options_.contexts; }
  Shared context(std::uint32_t context, Queue* queues, std::uint64_t* scratch) const;
  Queue queue(std::uint32_t queue, const QueueParts& parts, const std::uint64_t* scratch) const;
  /// Writes all that kernels leave as it is into the queue's slots.
  void prepare_ring(std::span<Request> slots, std::uint32_t queue, std::uint32_t number, const RegionKeys& keys,
                    const std::uint64_t* scratch) const;
  Endpoint endpoint(Shared* contexts, const RegionKeys& keys) const;

 private:
  std::size_t context_words() const;
  const std::uint64_t* results(std::uint32_t queue, const std::uint64_t* scratch) const;

  QueueOptions options_;
  std::uint32_t pes_;
  std::byte* begin_;
  std::uint64_t bytes_;
};

}  // namespace imbrex::shmem::mlx5
