// Where a plan's buffers and counters lie in the symmetric heap; the same on every rank and for every executor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/narrow.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::execute {

/// What a layout must know of a plan's tasks, which come one by one and have passed check_format.
class LayoutSurvey {
 public:
  explicit LayoutSurvey(const Plan& frame);
  void add(const plan::TaskPlace& place, const Task& task);

 private:
  friend class HeapLayout;

  std::vector<bool> shared_;                       // by buffer: another rank touches it
  std::vector<std::vector<std::uint32_t>> posts_;  // by rank and signal: in one epoch
  struct Group {
    std::vector<int> ranks;  // that it joins
    bool exchange = false;   // a send_receive
  };
  std::map<int, Group> groups_;  // by collective group
};

/// What a plan takes of memory that plans share which run one after another.
struct PlanShare {
  std::size_t bytes = 0;     ///< its buffers, one copy of each
  std::size_t counters = 0;  ///< of the rank that has most

  /// Room for either.
  PlanShare joined(const PlanShare& other) const {
    return {std::max(bytes, other.bytes), std::max(counters, other.counters)};
  }
  bool holds(const PlanShare& other) const { return bytes >= other.bytes && counters >= other.counters; }
};

class HeapLayout {
 public:
  /// The plan must have passed check_format.
  explicit HeapLayout(const Plan& plan);
  HeapLayout(const Plan& frame, LayoutSurvey survey);

  std::size_t bytes() const { return bytes_; }

  PlanShare share() const;

  /// Gives a buffer in the heap no room of its own: it lies elsewhere in the heap, at a place that only a run knows.
  /// Before share and lie_in_halves.
  void leave_out(int buffer) { places_[static_cast<std::size_t>(buffer)].stride = 0; }

  /// Places the plan in memory for two such shares, its own of which `half` holds: all its buffers and counters lie in
  /// the first half in even epochs, in the second in odd ones. base() means nothing then: other plans post there, too.
  void lie_in_halves(const PlanShare& half);
  /// Bytes of memory for two.
  static std::size_t bytes_of_halves(const PlanShare& half);

  /// Whether the buffer has a place in the heap: workspaces, and operands that a task of another rank touches. Other
  /// operands stay in the caller's memory.
  bool in_heap(int buffer) const { return places_[static_cast<std::size_t>(buffer)].copies > 0; }

  /// Offset of the copy that `epoch` uses.
  std::size_t offset(int buffer, std::uint64_t epoch) const {
    const Place& p = places_[static_cast<std::size_t>(buffer)];
    return p.offset + (epoch % static_cast<std::uint64_t>(p.copies)) * p.stride;
  }

  /// Elements from one row of the buffer to the next (of column_major: from column to column) where tasks find it: in
  /// the heap without gaps, in the caller's memory as the problem says.
  std::int64_t pitch(int buffer) const { return pitches_[static_cast<std::size_t>(buffer)]; }

  /// Offset of a rank's counter. Counters are 32 bits wide and count posts of all epochs of their set; they wrap.
  std::size_t counter(int signal, std::uint64_t epoch) const {
    return counters_ + ((epoch % signal_copies_) * most_signals_ + static_cast<std::size_t>(signal)) * counter_stride;
  }

  /// What a counter of `rank` shows when `epoch` begins, if all posts of earlier epochs have arrived.
  std::uint32_t base(int rank, int signal, std::uint64_t epoch) const {
    return base::wrapped<std::uint32_t>((epoch / signal_copies_) * posts(rank, signal));
  }

  /// Posts that a signal of `rank` receives in an epoch.
  std::uint32_t posts(int rank, int signal) const {
    return posts_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(signal)];
  }

  /// Counters of `rank`, those of collectives included.
  int signals(int rank) const { return base::narrow<int>(posts_[static_cast<std::size_t>(rank)].size(), "signals"); }

  /// Counters of a collective group, beside the plan's signals: `stage` 0 or 1. `rank` is one of those that it joins.
  int collective_signal(int rank, int group_index, int stage) const {
    return signals_[static_cast<std::size_t>(rank)] + 2 * group_index + stage;
  }

  /// Where buffers begin: at multiples of so many bytes.
  static constexpr std::size_t alignment = 256;

  /// Bytes between counters: two polled counters do not share a cache line's sector.
  static constexpr std::size_t counter_stride = 32;

 private:
  struct Place {
    std::size_t offset = 0, stride = 0;
    int copies = 0;
  };

  std::vector<Place> places_;                      // copies: 0 outside the heap
  std::vector<std::int64_t> pitches_;              // by buffer
  std::vector<int> signals_;                       // by rank: the plan's own
  std::vector<std::vector<std::uint32_t>> posts_;  // by rank and signal: in one epoch
  std::size_t counters_ = 0, most_signals_ = 0, bytes_ = 0;
  std::uint64_t signal_copies_ = 2;
};

/// Rows of memory: of a buffer, as it lies there, or of a part of it.
struct Rows {
  std::int64_t count = 0;
  std::size_t bytes = 0;  ///< of one
  std::size_t pitch = 0;  ///< bytes from one to the next, in the caller's memory
  /// All of them together, where they have no gaps.
  std::size_t packed() const { return static_cast<std::size_t>(count) * bytes; }
  bool has_gaps() const { return pitch != bytes && count > 1; }
};
/// The rows of an operand.
Rows rows_of(const Problem& problem, const Buffer& buffer, int index);

/// The caller's input that is that buffer.
const void* input_of(const Addresses& operands, const Problem& problem, int buffer);

/// The caller's address of an output.
void* output_of(const Addresses& operands, const Problem& problem, int buffer);

/// Throws Error(invalid_input) unless all operands of the problem's operator are given: a, b, out and, where the
/// problem has them, a bias, scales, further B and the gathered A are given, and nothing else.
void expect_given(const Addresses& operands, const Problem& problem);

/// The parts of each of the plan's collectives, by rank; by group number, ascending.
std::map<int, std::vector<const Collective*>> collective_groups(const Plan& plan);

/// True once `seen` has come as far as `expected`; both wrap at 2^32 and are less than 2^31 apart.
constexpr bool reached(std::uint32_t seen, std::uint32_t expected) {
  return base::wrapped<std::int32_t>(seen - expected) >= 0;
}

}  // namespace imbrex::execute
