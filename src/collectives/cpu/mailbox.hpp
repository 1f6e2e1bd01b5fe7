// Where the ranks of a CPU collective put what they send each other, and how they wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "imbrex/world.hpp"

namespace imbrex::collectives {

/// Slots in every rank's symmetric heap, numbered alike on all ranks. A transfer puts one message into one slot of one
/// rank. docs/dev/protocols.md tells why two copies of each slot, used in turn, are enough.
///
/// Steps: a collective cuts a call into steps, counted over all calls. A slot has one writer, the same in all steps,
/// and in a step takes at most one message; every message that is sent is waited for. Copy (step mod 2) of a slot is in
/// use; the slot's counter, 64 bits, is at least step + 1 once the message is there (more where the sender is a step
/// ahead, in the other copy). The writer of the message stores the counter after it (release); its reader polls the
/// counter (acquire). Nothing is ever reset.
class Mailbox {
 public:
  /// What goes with every message.
  struct Header {
    std::int64_t count = 0;  ///< of the call: ranks that disagree are found out
    float error = 0;
    std::int32_t vote = 0;
  };

  /// Collective. `slots` slots of up to `bytes` bytes.
  Mailbox(World& world, int slots, std::size_t bytes);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Where the message of the current step lies: 16-byte aligned, in the memory of `rank`.
  std::byte* message(int rank, int slot) const { return at(rank, slot) + header_bytes; }
  /// Delivers what was written there. Throws std::logic_error if another rank has written to the slot before.
  void post(int rank, int slot, const Header& header);

  /// Waits for the message in this rank's own slot. Throws Error(runtime_failure) past the world's wait limit, with
  /// `what` in words and the sender's rank, and the world's failure once it has one.
  const Header& wait(int slot, int sender, const std::function<std::string()>& what);

  void next_step() { ++step_; }

 private:
  static constexpr std::size_t header_bytes = 64;

  /// What is known of one slot, for both copies.
  struct alignas(64) Commit {
    std::uint64_t counter;
    std::int32_t writer;  ///< rank + 1 of the one that has written; 0: none yet
  };

  std::byte* at(int rank, int slot) const;
  Commit& commit(int rank, int slot) const;

  World& world_;
  int slots_;
  std::size_t slot_bytes_;
  int exceptions_;  // in flight when the mailbox was made
  std::size_t offset_;
  std::uint64_t step_ = 0;
};

}  // namespace imbrex::collectives
