#include "runtime/control.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/narrow.hpp"

namespace imbrex::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Backoff::pause() {
  if (round_ < first_yield) {
    relax();
  } else if (round_ < first_sleep) {
    sched_yield();
  } else {
    const long microseconds = std::min(200, 20 << std::min(4, (round_ - first_sleep) / 8));
    const timespec time{0, microseconds * 1000};
    nanosleep(&time, nullptr);
  }
  if (round_ < 1 << 20) ++round_;
}

void Control::wait(const WaitLimits& limits, const std::function<bool()>& done,
                   const std::function<std::string(double)>& diagnosis, const std::function<std::string()>& hopeless,
                   const Meeting& meeting) {
  Backoff backoff;
  BoundedWait bounded(limits, base::monotonic_seconds());
  for (;;) {
    // What a rank did before it failed counts: its failure is looked for first, and brings all that came before. What a
    // rank of a third host said may still be on its way.
    const bool failed = has_failed();
    if (done()) return;
    if (failed) throw_failure();
    if (backoff.sleeping()) {
      if (hopeless)
        if (const std::string reason = hopeless(); !reason.empty()) record_and_throw(reason);
      std::vector<int> late;
      const auto look = [&] {
        if (meeting.late) late = meeting.late();
        return !late.empty();
      };
      switch (bounded.judge(base::monotonic_seconds(), look)) {
        case BoundedWait::Verdict::going_on: break;
        case BoundedWait::Verdict::tell_of_late:
          tell_late(rank_, list(late), late.size(), meeting.name, limits.entry);
          break;
        case BoundedWait::Verdict::late_rank: record_and_throw(diagnosis(limits.entry));
        case BoundedWait::Verdict::lost: record_and_throw(diagnosis(limits.wait));
      }
    }
    backoff.pause();
  }
}

std::vector<int> Control::late(Counted counted) const {
  const auto count = [&](int rank) {
    return word(home(rank).ranks[rank].entered[static_cast<std::uint32_t>(counted)]).load(std::memory_order_relaxed);
  };
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (base::wrapped<std::int32_t>(count(r) - count(rank_)) < 0) ranks.push_back(r);
  return ranks;
}

void Control::barrier(const WaitLimits& limits) { enter_barrier(no_gather, limits); }

void Control::enter_barrier(std::uint32_t gathered, const WaitLimits& limits) {
  throw_if_failed();
  RankRecord& own = block_->ranks[rank_];
  const std::uint64_t number = word(own.arrived).load(std::memory_order_relaxed) + 1;
  own.gathered[(number - 1) % 2] = gathered;
  word(own.arrived).store(number, std::memory_order_release);
  // The sum reaches number * size only when every rank has entered `number` times, because no rank enters a barrier
  // before the one before is complete. Each addition is part of one release sequence, so a rank that acquires the sum
  // sees what every rank did before it entered.
  word(block_->arrivals).fetch_add(1, std::memory_order_acq_rel);
  if (far_) far_->enter(number, gathered, block_->gather[(number - 1) % 2][rank_]);
  const std::uint64_t near = near_ranks();

  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r)
      if (word(home(r).ranks[r].arrived).load(std::memory_order_acquire) < number) ranks.push_back(r);
    return ranks;
  };
  wait(
      limits,
      [&] { return word(block_->arrivals).load(std::memory_order_acquire) >= number * near && far_arrived(number); },
      [&](double limit) {
        return fmt::format("{} waited {:.3g} s at barrier {} for {}, the wait limit", name(rank_), limit, number,
                           list(missing()));
      },
      [&]() -> std::string {
        for (int r = 0; r < size(); ++r)
          // A rank that has left enters no more barriers: its count is final once its state says so.
          if (state(r) >= finished && word(home(r).ranks[r].arrived).load(std::memory_order_acquire) < number)
            return fmt::format("{} waits at barrier {}, but {} has left the world", name(rank_), number, name(r));
        return {};
      },
      {missing, fmt::format("barrier {}", number)});
}

bool Control::far_arrived(std::uint64_t number) const {
  if (!far_) return true;
  for (int r = 0; r < size(); ++r)
    if (far_->is_far(r) && word(far_->block().ranks[r].arrived).load(std::memory_order_acquire) < number) return false;
  return true;
}

std::uint64_t Control::near_ranks() const {
  std::uint64_t count = 0;
  for (int r = 0; r < size(); ++r) count += is_far(r) ? 0 : 1;
  return count;
}

void Control::all_gather(const void* mine, void* all, std::size_t bytes, const WaitLimits& limits) {
  IMBREX_EXPECTS(bytes <= max_gather_bytes, "all_gather of {} bytes a rank: at most {} are allowed", bytes,
                 max_gather_bytes);
  // Two slots alternate: a rank overwrites slot s only after a barrier that every rank enters after it
  // has read slot s, because at least one other barrier, of a gather or not, lies between two uses of a slot.
  RankRecord& own = block_->ranks[rank_];
  const auto slot = static_cast<std::size_t>(word(own.arrived).load(std::memory_order_relaxed) % 2);
  throw_if_failed();
  if (bytes) std::memcpy(block_->gather[slot][rank_], mine, bytes);
  enter_barrier(static_cast<std::uint32_t>(bytes), limits);
  const std::uint32_t first = home(0).ranks[0].gathered[slot];
  for (int r = 0; r < size(); ++r) {
    const std::uint32_t other = home(r).ranks[r].gathered[slot];
    IMBREX_EXPECTS((other == no_gather) == (first == no_gather),
                   "all_gather of {} bytes on rank {}: rank {} is at a barrier", std::min(first, other),
                   first == no_gather ? r : 0, first == no_gather ? 0 : r);
    IMBREX_EXPECTS(other == first, "all_gather of different sizes: rank 0 gives {} bytes, rank {} {}", first, r, other);
    if (bytes)
      std::memcpy(static_cast<std::byte*>(all) + static_cast<std::size_t>(r) * bytes, home(r).gather[slot][r], bytes);
  }
}

void Control::record(std::string_view message) noexcept {
  std::uint32_t expected = phase_clear;
  if (word(block_->failure.phase).compare_exchange_strong(expected, writing_phase(rank_), std::memory_order_acquire))
    write_failure(message);
}

void Control::record_lost(int rank, std::string_view why) noexcept {
  char text[256];
  char* at = fmt::format_to_n(text, sizeof text, "rank {} (pid {}", rank, pid(rank)).out;
  const auto room = [&] { return static_cast<std::size_t>(text + sizeof text - at); };
  if (far_) at = fmt::format_to_n(at, room(), " on host {:.64}", far_->host_name(rank)).out;
  at = fmt::format_to_n(at, room(), ") was lost: {}", why).out;
  const std::string_view message(text, static_cast<std::size_t>(at - text));
  // The lost rank may have died while it wrote a failure; then no rank would ever commit it.
  std::uint32_t half_written = writing_phase(rank);
  if (word(block_->failure.phase)
          .compare_exchange_strong(half_written, writing_phase(rank_), std::memory_order_acquire)) {
    write_failure(message);
  } else {
    record(message);
  }
}

void Control::write_failure(std::string_view message) noexcept {
  FailureRecord& failure = block_->failure;
  const std::size_t length = std::min(message.size(), sizeof failure.message);
  std::memcpy(failure.message, message.data(), length);
  failure.length = static_cast<std::uint32_t>(length);
  word(failure.phase).store(phase_committed, std::memory_order_release);
  if (far_) far_->failed();
}

void Control::record_and_throw(const std::string& message) {
  record(message);
  // If another rank is just writing its failure, that is the one to report; its text is moments away.
  const auto begin = Clock::now();
  for (Backoff backoff; seconds_since(begin) < 1; backoff.pause()) throw_if_failed();
  throw Error(ErrorCode::runtime_failure, message);
}

std::string Control::failure() const {
  return {block_->failure.message, std::min<std::size_t>(block_->failure.length, sizeof block_->failure.message)};
}

void Control::throw_failure() const { throw Error(ErrorCode::runtime_failure, failure()); }

std::string Control::name(int rank) const { return list({rank}); }

std::string Control::list(const std::vector<int>& ranks) const {
  return list_ranks(ranks, [this](int rank) { return far_ ? fmt::format(" (host {})", far_->host_name(rank)) : ""; });
}

std::string list_ranks(const std::vector<int>& ranks, const std::function<std::string(int)>& place) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}{}",
                        i == 0                  ? ""
                        : i + 1 == ranks.size() ? " and "
                                                : ", ",
                        ranks[i], place ? place(ranks[i]) : "");
  return text;
}

}  // namespace imbrex::runtime
