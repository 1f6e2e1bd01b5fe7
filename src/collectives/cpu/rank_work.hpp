// One rank's work in a call of a CPU collective: values on the way to the wire and back, sums, bounds, and the record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bound.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/cpu/mailbox.hpp"
#include "collectives/cpu/wire.hpp"

namespace imbrex::collectives {

/// Up to here, one-shot costs less than two-shot on the CPU: the largest vector that takes one shot.
inline constexpr std::int64_t one_shot_bytes = 16384;

inline std::int64_t round_up(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit * unit; }
inline std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

/// A stretch of the caller's elements.
struct Piece {
  std::int64_t begin = 0, count = 0;
};

class RankWork {
 protected:
  /// Values that one slot holds; longer calls take several steps.
  static constexpr std::int64_t most_slot_values = 32768;
  /// Values for which one bound is kept: the smallest group.
  static constexpr std::int64_t bound_unit = 32;

  /// Collective.
  RankWork(World& world, Type type, int slots, std::size_t slot_bytes, const char* name);

  /// Throws Error(invalid_input) for what the caller may not ask for.
  void check(const void* in, const void* out, std::int64_t count, std::int64_t max_count, const void* stream) const;
  void begin(const void* in, void* out, std::int64_t count);

  /// Elements of `in`, and of `out`.
  void load(const Piece& piece, std::vector<float>& values) const;
  void store(const Piece& piece, const std::vector<float>& values) const;

  /// Waits for a message, and fails where its sender's call is of another number of elements. `what` is in words.
  const Mailbox::Header& wait(int slot, int sender, const char* what);

  /// Writes values_ to a message; counts what became of it.
  void encode(const Wire& wire, std::int64_t count, std::span<const float> allowed, std::byte* message);
  /// Reads a message to values_ and records_.
  void decode(const Wire& wire, const std::byte* message, std::int64_t count);

  /// Adds a part to sum_, and to the bounds.
  void add(const Wire& parts, const std::byte* message, std::int64_t count, bool first);

  /// Puts the records of exact values in place of those of a message.
  void note_magnitudes(std::int64_t count, std::int64_t group);
  /// The bound of outputs that were sent as records_ say, from those of their sums.
  void note_errors(std::int64_t group, int ranks);
  /// Counts those of values_.
  void count_non_finite(std::int64_t count);

  World& world_;
  int ranks_, rank_;
  Type type_;
  codec::Range range_;
  const char* name_;
  Mailbox mailbox_;

  // The current call, and room for it.
  CallRecord record_;
  std::int64_t count_ = 0;
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::vector<float> values_, sum_;
  std::vector<codec::GroupRecord> records_;
  std::vector<codec::Bound> bounds_;
};

}  // namespace imbrex::collectives
