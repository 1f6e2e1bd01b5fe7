// What moves bytes between the PEs' parts of a symmetric heap, for the thread that serves a PE's rings: memory that is
// mapped, copies of a GPU, or libfabric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "imbrex/shmem.hpp"

namespace imbrex::shmem::ring {

enum class Verb : std::uint8_t {
  put,       ///< `bytes` from `here` to `there`
  get,       ///< `bytes` from `there` to `here`
  put_word,  ///< `operand`, of `bytes` = 1, 2, 4 or 8, stored as one word; a waiting PE never sees a part of it
  swap,      ///< atomic operations on a word of 4 or 8 bytes; what was there before goes to `here`
  compare_swap,
  fetch_add,
  fetch_and,
  fetch_or,
  fetch_xor,
};

enum class WordType : std::uint8_t { unsigned_integer, floating_point };  ///< what fetch_add adds

/// One thing that a wire is to do. Offsets count from the beginning of the PE's whole part, states before the heap
/// included: Handle::group.own.
struct WireTransfer {
  Verb verb = Verb::put;
  WordType type = WordType::unsigned_integer;
  std::uint32_t pe = 0;
  std::uint64_t there = 0;    ///< offset in that PE's part
  std::byte* here = nullptr;  ///< in this PE's part; null where nothing is read or kept
  std::uint64_t bytes = 0;
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
  std::uint64_t token = 0;  ///< handed back by poll
};

/// One thread uses it. Nothing of it waits for long.
class Wire {
 public:
  virtual ~Wire() = default;

  /// Takes the transfer, or says that there is no room: poll, and try again. The memory at `here` is the wire's until
  /// poll has handed back the token.
  virtual bool begin(const WireTransfer& transfer) = 0;

  /// Goes on with all that was begun, here and for peers who ask this PE. Writes the tokens of what is complete, and
  /// returns their number: puts and atomic operations have taken effect, so that a wait over there sees them; what gets
  /// bring is there. Throws Error(runtime_failure) naming the PE where one cannot be reached any more.
  virtual std::size_t poll(std::span<std::uint64_t> tokens) = 0;

  /// Whether puts, words and atomic operations to one PE take effect in the order in which they were begun. Where not,
  /// what is to come behind another begins once that one is complete.
  virtual bool keeps_order() const = 0;
};

/// Collective. By loads and stores: the heap lies in memory of one host.
std::unique_ptr<Wire> mapped_wire(Heap& heap);

/// Collective. By copies on a stream of its own: the heap lies on GPUs of one host.
std::unique_ptr<Wire> gpu_wire(Heap& heap);

struct FabricOptions {
  std::string provider = {};   ///< of libfabric; empty: IMBREX_FABRIC_PROVIDER, or "tcp;ofi_rxm"
  bool near_by_memory = true;  ///< tests: false: PEs of one host, too, are reached by libfabric
  bool reads_back = false;     ///< tests: as if the provider could not say when a put is there
};

/// Collective. By libfabric to PEs of other hosts, by loads and stores to those of this one: the heap lies in memory.
/// Throws Error(invalid_input) where this build is without libfabric or the provider is not there,
/// Error(runtime_failure) naming what failed on which PE.
std::unique_ptr<Wire> fabric_wire(Heap& heap, const FabricOptions& options = {});

}  // namespace imbrex::shmem::ring
