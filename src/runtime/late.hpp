// How long hosts wait, and what they say of ranks that are late.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// Seconds.
struct WaitLimits {
  // NOTE: implicit, for waits that ranks do not come to.
  WaitLimits(double both) : wait(both), entry(both) {}
  WaitLimits(double wait_limit, double entry_limit) : wait(wait_limit), entry(entry_limit) {}

  double wait;   ///< of a wait once all ranks have come to it
  double entry;  ///< of a wait before
};

inline WaitLimits limits_of(const WorldOptions& options) { return {options.wait_limit, options.entry_limit}; }

/// From its limits, the part of a wait that is too short to look who is late: the sixteenth.
template <typename T>
constexpr T look_after(T wait, T entry) {
  return wait == entry ? wait : (wait < entry ? wait : entry) / 16;
}

/// The rule by which a wait ends that does not come to what it waits for; device::BoundedPolls has it for kernels.
/// While a rank is late, the entry limit holds. Once all have come, the wait limit begins anew: a wait looks for late
/// ranks only from a sixteenth of it on, so that it lasts so much longer where none is late. Where both are the same,
/// no wait lasts longer.
class BoundedWait {
 public:
  enum class Verdict {
    going_on,
    tell_of_late,  ///< once
    late_rank,     ///< past the entry limit
    lost,          ///< past the wait limit, and no rank is late
  };

  /// `begin`, as `now` below: seconds of one clock.
  BoundedWait(const WaitLimits& limits, double begin) : limits_(limits), begin_(begin) {}

  /// `is_late`: whether a rank has not come yet.
  template <typename IsLate>
  Verdict judge(double now, IsLate&& is_late) {
    if (now - begin_ <= look_after(limits_.wait, limits_.entry)) return Verdict::going_on;
    if (!all_came_ && limits_.wait != limits_.entry) {
      if (is_late()) {
        if (now - begin_ > limits_.entry) return Verdict::late_rank;
        const bool tells = !told_ && now - begin_ > limits_.wait;
        told_ = told_ || tells;
        return tells ? Verdict::tell_of_late : Verdict::going_on;
      }
      all_came_ = true;
      begin_ = now;
    }
    return now - begin_ > limits_.wait ? Verdict::lost : Verdict::going_on;
  }

 private:
  WaitLimits limits_;
  double begin_;
  bool all_came_ = false, told_ = false;
};

/// "rank 2 has not come to barrier 3". `late`: names of so many ranks.
std::string late_text(std::string_view late, std::size_t count, std::string_view what);

/// Prints, as rank `rank`, that those ranks have not come to `what`, and that it waits up to so many seconds.
void tell_late(int rank, std::string_view late, std::size_t count, std::string_view what, double entry_limit) noexcept;

/// Tells which ranks are late to join a world, once past the wait limit.
class LateToJoin {
 public:
  LateToJoin(int rank, const WorldOptions& options);
  /// Now and then. `late`: the ranks that have not come.
  void look(const std::function<std::vector<int>()>& late);

 private:
  int rank_;
  WaitLimits limits_;
  double begin_;
  bool told_;
};

/// Prints "imbrex: rank 2: message" to standard error, in one write so that ranks do not mix.
void print_rank_line(int rank, std::string_view message) noexcept;

}  // namespace imbrex::runtime
