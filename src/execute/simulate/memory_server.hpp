// One device's memory: loads share its bandwidth, and traffic of links and stores is charged to it as well.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace imbrex::simulate {

/// Fair sharing, because hundreds of loads are in flight at once and none goes first: each load proceeds at
/// min(sm_rate, what is left of the bandwidth / number of loads), times its weight. Kept in "virtual bytes served to a
/// load of weight one", so that every change costs O(log loads).
class MemoryServer {
 public:
  MemoryServer(double bandwidth, double sm_rate) : bandwidth_(bandwidth), sm_rate_(sm_rate) {}

  void start(double now, std::uint32_t task, double bytes, double weight);

  /// Bytes that links and stores move and no task waits for: they take half the bandwidth until they are served.
  void charge(double now, double bytes);

  /// Bandwidth taken by a running library collective; negative gives it back.
  void reserve(double now, double rate);

  /// Tasks whose load has ended by `now`.
  void collect(double now, std::vector<std::uint32_t>& ended);

  /// When the next load will end if nothing changes; infinity if none is running.
  double next(double now);

  /// Changes whenever a forecast of next() may have become wrong.
  std::uint64_t generation() const { return generation_; }

 private:
  struct Load {
    double until = 0;  ///< virtual bytes at which it ends
    std::uint64_t sequence = 0;
    std::uint32_t task = 0;
    double weight = 1;
    bool operator<(const Load& other) const {
      return until != other.until ? until > other.until : sequence > other.sequence;
    }
  };

  double available() const;
  double share(bool charged) const;  ///< rate of a load of weight one
  void advance(double now);

  double bandwidth_, sm_rate_;
  double served_ = 0;  ///< virtual bytes so far
  double weights_ = 0, debt_ = 0, reserved_ = 0, last_ = 0;
  std::priority_queue<Load> loads_;
  std::uint64_t generation_ = 0, sequence_ = 0;
};

}  // namespace imbrex::simulate
