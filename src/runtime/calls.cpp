#include "runtime/calls.hpp"

#include <fmt/format.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "base/narrow.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::uint32_t remembered = 32;
// What a rank writes down of a call that it was told of as refused.
constexpr std::uint32_t told_kind = 0xffffffff;

// Forks of this process since its first ancestor that had this library.
std::atomic<std::uint64_t> forks = 0;
[[maybe_unused]] const int counts_forks = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

// What a rank's records say of a call.
enum class Fate { to_come, taken, refused };

std::uint64_t packed(std::uint64_t number, std::uint32_t refused) { return number << 32 | refused; }

Fate fate_of(const Control& control, int rank, std::uint64_t number) {
  ControlBlock& block = control.home(rank);
  const std::uint64_t record = word(block.ranks[rank].calls).load(std::memory_order_seq_cst);
  // Numbers wrap; ranks are never 2^31 calls apart.
  const std::uint32_t ahead = base::wrapped<std::uint32_t>(record >> 32) - base::wrapped<std::uint32_t>(number);
  if (ahead >= std::uint32_t{1} << 31) return Fate::to_come;
  if (ahead < remembered) return (record >> ahead & 1) != 0 ? Fate::refused : Fate::taken;
  // A rank that is far ahead has written it down.
  TakenRecord& taken = block.taken[rank][number % remembered_calls];
  const bool given = word(taken.state).load(std::memory_order_acquire) == given_back;
  const bool refused = word(taken.number).load(std::memory_order_acquire) == number
                           ? given
                           : word(block.refusals[rank].number).load(std::memory_order_acquire) == number;
  return refused ? Fate::refused : Fate::taken;
}

constexpr std::size_t text_words = std::size(RefusalRecord{}.text);

void write_text(RefusalRecord& record, std::uint64_t number, std::string_view reason) noexcept {
  std::array<std::uint64_t, text_words> words{};
  std::memcpy(words.data(), reason.data(), std::min(reason.size(), sizeof words - 1));
  word(record.number).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); ++i) word(record.text[i]).store(words[i], std::memory_order_relaxed);
  word(record.number).store(number, std::memory_order_release);
}

// The rank may come to another call meanwhile: then its words are not this call's.
std::string text_of(RefusalRecord& record, std::uint64_t number, std::string_view lost = "its error says why") {
  std::array<std::uint64_t, text_words> words{};
  const bool begun = word(record.number).load(std::memory_order_acquire) == number;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(record.text[i]).load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!begun || word(record.number).load(std::memory_order_relaxed) != number) return std::string(lost);
  const auto* text = reinterpret_cast<const char*>(words.data());
  return {text, strnlen(text, sizeof words)};
}

// A rank is no more refusals ahead of the others than are remembered.
std::string reason_of(const Control& control, int rank, std::uint64_t number) {
  if (control.is_far(rank)) return text_of(control.home(rank).refusals[rank], number);
  return text_of(control.block().reasons[rank][number % remembered_decisions], number);
}

void raise(std::uint64_t& last_refused, std::uint64_t number) noexcept {
  const auto last = word(last_refused);
  for (std::uint64_t seen = last.load(); seen < number && !last.compare_exchange_weak(seen, number);) {
  }
}

// Records that one rank refused what another takes.
void record_refusal(Control& control, int refuser, int taker, std::string_view reason) noexcept {
  try {
    control.record(
        fmt::format("{} refused a call that {} takes: {}", control.name(refuser), control.name(taker), reason));
  } catch (...) {
    control.record("a rank refused a call that others take");
  }
}

}  // namespace

std::string CallNote::with_size() const {
  return size_is == nullptr ? std::string() : fmt::format(" with {} = {}", size_is, size);
}

CallMember::CallMember(Calls& calls, std::function<void(const CallNote&)> stand_in)
    : calls_(calls), number_(calls.agreements_), stand_in_(std::move(stand_in)) {
  calls_.members_.push_back(this);
}

CallMember::~CallMember() { std::erase(calls_.members_, this); }

Calls::Calls(World& world, Control& control, int rank)
    : world_(world),
      control_(control),
      rank_(rank),
      checked_(base::environment().check_calls()),
      forks_(forks.load(std::memory_order_relaxed)) {}

void Calls::expect_own_process() const {
  IMBREX_EXPECTS(forks.load(std::memory_order_relaxed) == forks_,
                 "a call of rank {}, by process {}, which the rank's process forked: it is no rank", rank_, getpid());
}

void Calls::compare(const std::function<Terms()>& ask) { agree(world_, ask); }

void Calls::refuse(const Error& error) {
  try {
    make([&]() -> int { throw error; }, [](int) { return CallNote{}; }, [](int) { return Terms("a call"); },
         [](int) {});
  } catch (const Error&) {  // `error`: the caller throws it
  }
}

std::uint64_t Calls::number_of(int rank) const {
  const std::uint64_t record = word(control_.block().ranks[rank].calls).load(std::memory_order_seq_cst);
  // The record has the lower half; ranks are never 2^31 calls apart.
  const auto ahead =
      static_cast<std::int32_t>(base::wrapped<std::uint32_t>(record >> 32) - base::wrapped<std::uint32_t>(number_));
  return number_ + static_cast<std::uint64_t>(std::int64_t{ahead});
}

std::string Calls::absence(std::string_view last_call) const {
  // From the records alone: number_ is the calling thread's.
  const auto lower = [&](int rank) { return word(control_.block().ranks[rank].calls).load() >> 32; };
  std::vector<int> ranks;
  for (int rank = 0; rank < world_.size(); ++rank)
    if (base::wrapped<std::int32_t>(lower(rank) - lower(rank_)) < 0) ranks.push_back(rank);
  if (ranks.empty()) return {};
  return fmt::format("; {} {} not come to {}", list_ranks(ranks), ranks.size() == 1 ? "has" : "have", last_call);
}

// Calls that this rank refused, or has thrown for: peers need not tell it of them.
void Calls::settle_here(std::uint64_t number) {
  settled_.push_back(number);
  if (settled_.size() > 2 * remembered_calls)
    std::erase_if(settled_, [&](std::uint64_t one) { return one + remembered_calls < number_; });
}

bool Calls::is_settled(std::uint64_t number) const {
  // Ranks are never so far apart.
  return number + remembered_calls < number_ || std::find(settled_.begin(), settled_.end(), number) != settled_.end();
}

void Calls::write_down(const CallNote& note, TakenState state) {
  TakenRecord& taken = control_.block().taken[rank_][number_ % remembered_calls];
  word(taken.number).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  word(taken.object).store(note.object, std::memory_order_relaxed);
  word(taken.size).store(note.size, std::memory_order_relaxed);
  word(taken.asked).store(note.asked, std::memory_order_relaxed);
  word(taken.kind).store(note.kind, std::memory_order_relaxed);
  word(taken.state).store(state, std::memory_order_relaxed);
  word(taken.number).store(number_, std::memory_order_release);
}

std::string Calls::asked_by(int rank) const {
  return text_of(control_.block().asked[rank][number_ % remembered_decisions], number_, "another one");
}

// A rank that takes a call writes that down, then looks for refusals. One that refuses it writes that down, then looks
// for ranks that took it. All four are sequentially consistent, so one of the two sees the other.
void Calls::take(const CallNote& note) {
  refused_ <<= 1;
  ControlBlock& block = control_.block();
  ++number_;
  if (note.asked != 0)
    write_text(block.asked[rank_][number_ % remembered_decisions], number_, asked_.field + " = " + asked_.value);
  write_down(note, note.queued ? taken_only : begun);
  word(block.ranks[rank_].calls).store(packed(number_, refused_), std::memory_order_seq_cst);
  if (control_.far()) {
    if (word(block.last_refused).load(std::memory_order_seq_cst) < number_ &&
        word(control_.far()->block().last_refused).load(std::memory_order_seq_cst) < number_) [[likely]]
      return;
    for (int r = 0; r < control_.size(); ++r)
      if (fate_of(control_, r, number_) == Fate::refused)
        control_.record_and_throw(fmt::format("{} refused a call that {} takes: {}", control_.name(r),
                                              control_.name(rank_), reason_of(control_, r, number_)));
    return;
  }
  if (word(block.last_refused).load(std::memory_order_seq_cst) < number_ &&
      word(block.last_prepared).load(std::memory_order_seq_cst) < number_) [[likely]]
    return;
  known_ = ~std::uint64_t{0};  // what is refused is told after the call
  const CallFate decided = fate(number_);
  if (decided == CallFate::made) return;
  if (decided == CallFate::agreed) {
    // That agreement ends with what the others say.
    std::string reason = fmt::format(
        "{} makes a call of an object that is there{}{}, and other ranks prepare one: the ranks' calls differ",
        control_.name(rank_), note.with_size(), note.asked == 0 ? "" : " and " + asked_.text());
    refused_ |= 1;
    word(block.taken[rank_][number_ % remembered_calls].state).store(given_back, std::memory_order_release);
    publish_refusal(reason);
    try {
      const Launching joins(*this);
      agree(world_, [] { return Terms("a call of an object that is there"); });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      reason = error.what();
    }
    settle(reason);
    told_ = true;
    throw Error(ErrorCode::invalid_input, reason);
  }
  refused_ |= 1;
  settle_here(number_);
  write_down({.kind = told_kind}, given_back);
  word(block.ranks[rank_].calls).store(packed(number_, refused_), std::memory_order_seq_cst);
  throw_refused(number_);
}

void Calls::began(bool is_captured) noexcept {
  word(control_.block().taken[rank_][number_ % remembered_calls].state)
      .store(is_captured ? captured : begun, std::memory_order_release);
}

// No rank makes the call.
void Calls::throw_refused(std::uint64_t number) {
  told_ = true;
  // Ranks that were told so, too, count as such that refused it.
  for (int r = 0; r < control_.size(); ++r) {
    TakenRecord& written = control_.block().taken[r][number % remembered_calls];
    if (r == rank_ || fate_of(control_, r, number) != Fate::refused ||
        word(written.number).load(std::memory_order_acquire) != number ||
        word(written.kind).load(std::memory_order_relaxed) == told_kind)
      continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} refused this call: {}", control_.name(r), reason_of(control_, r, number)));
  }
  throw Error(ErrorCode::invalid_input, "another rank refused this call");
}

void Calls::tell_of_refusals() {
  if (control_.far()) return;
  ControlBlock& block = control_.block();
  known_ = word(block.refusals_made).load(std::memory_order_seq_cst);
  std::string first;
  const auto look = [&](int rank, std::uint64_t number) {
    if (number == 0 || number > number_ || is_settled(number) || fate_of(control_, rank, number) != Fate::refused)
      return;
    settle_here(number);
    if (first.empty())
      first = fmt::format("{} refused {}: {}", control_.name(rank),
                          number == number_
                              ? std::string("this call")
                              : fmt::format("the call that was made {} calls before this one, whose outputs mean "
                                            "nothing",
                                            number_ - number),
                          reason_of(control_, rank, number));
  };
  for (int r = 0; r < control_.size(); ++r) {
    if (r == rank_) continue;
    look(r, word(block.refusals[r].number).load(std::memory_order_acquire));
    const std::uint64_t last = number_of(r);
    for (std::uint64_t back = 0; back < remembered_calls && back < last; ++back) look(r, last - back);
  }
  if (first.empty()) return;
  told_ = true;
  throw Error(ErrorCode::invalid_input, first);
}

void Calls::refuse(std::string_view reason) {
  expect_own_process();
  const AskedOnce asked(*this);
  ++number_;
  refused_ = refused_ << 1 | 1;
  write_down({}, given_back);
  publish_refusal(reason);
  settle(reason);
}

void Calls::take_back(std::string_view reason) {
  refused_ |= 1;
  // What it says of the call stays: ranks that stand in may read it.
  word(control_.block().taken[rank_][number_ % remembered_calls].state).store(given_back, std::memory_order_release);
  publish_refusal(reason);
  settle(reason);
}

void Calls::publish_refusal(std::string_view reason) {
  ControlBlock& block = control_.block();
  settle_here(number_);
  write_text(block.refusals[rank_], number_, reason);
  write_text(block.reasons[rank_][number_ % remembered_decisions], number_, reason);
  word(block.ranks[rank_].calls).store(packed(number_, refused_), std::memory_order_seq_cst);
  raise(block.last_refused, number_);
  word(block.refusals_made).fetch_add(1);
  if (!control_.far()) return;
  // Far ranks look whether they have taken it.
  control_.far()->refused(number_, packed(number_, refused_), reason);
  for (int r = 0; r < control_.size(); ++r)
    if (r != rank_ && fate_of(control_, r, number_) == Fate::taken) return record_refusal(control_, rank_, r, reason);
}

void Calls::await(const std::function<bool(int)>& there, std::string_view for_what) {
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 0; r < control_.size(); ++r)
      if (!there(r)) ranks.push_back(r);
    return ranks;
  };
  control_.wait(
      limits_of(world_.options()), [&] { return missing().empty(); },
      [&](double limit) {
        return fmt::format("{} waited {:.3g} s {} for {}, the wait limit", control_.name(rank_), limit, for_what,
                           control_.list(missing()));
      },
      [&]() -> std::string {
        for (const int r : missing())
          if (control_.state(r) >= finished && !there(r))
            return fmt::format("{} waits {}, but {} has left the world", control_.name(rank_), for_what,
                               control_.name(r));
        return {};
      },
      {missing, fmt::format("call {}", number_)});
}

// A rank proposes that the call is skipped, or that an agreement comes before it, only where it has seen, after it said
// so, that no rank had taken it; who takes it later sees that and asks here. So either no rank makes the call, or all
// do. An agreement that this rank has been in is over, and the call is open again.
Calls::CallFate Calls::fate(std::uint64_t number, bool prepares) {
  ControlBlock& block = control_.block();
  // The place may hold an older decision that some rank has still to read.
  if (number > remembered_decisions)
    await([&](int r) { return r == rank_ || number_of(r) + remembered_decisions > number; },
          "for a call that was refused");
  auto decided = word(block.decisions[number % remembered_decisions].fate);
  std::uint64_t seen = decided.load(std::memory_order_seq_cst);
  const auto agreement_of = [](std::uint64_t word) { return base::wrapped<std::uint32_t>(word & 0xffffffff) >> 2; };
  const auto is_open = [&] {
    return seen >> 32 != base::wrapped<std::uint32_t>(number) ||
           (static_cast<CallFate>(seen % 4) == CallFate::agreed &&
            (agreement_of(seen) - agreements_ - 1) % (1u << 30) >= 1u << 29);
  };
  while (is_open()) {
    CallFate proposed = CallFate::skipped;
    std::uint64_t agreement = agreements_ + (prepares ? 1 : 0);
    for (int r = 0; r < control_.size(); ++r) {
      // No rank goes past the call before it is decided: a rank that is past it had taken it.
      const std::uint64_t there = number_of(r);
      if (there > number || (there == number && fate_of(control_, r, number) == Fate::taken)) proposed = CallFate::made;
      agreement = std::max(agreement, word(block.ranks[r].agreements).load(std::memory_order_seq_cst));
    }
    if (proposed == CallFate::skipped && agreement > agreements_) proposed = CallFate::agreed;
    const std::uint64_t own = number << 32 | (agreement << 2 & 0xffffffff) | static_cast<std::uint64_t>(proposed);
    if (decided.compare_exchange_strong(seen, own, std::memory_order_seq_cst)) seen = own;
  }
  return static_cast<CallFate>(seen % 4);
}

void Calls::settle(std::string_view reason) {
  if (control_.far()) return;
  for (;;) {
    const CallFate decided = fate(number_);
    if (decided == CallFate::made) return stand_in();
    if (decided == CallFate::skipped) return;
    // The others wait in an agreement, which ends with this rank's reason. Then the call is open again.
    const Launching joins(*this);  // the agreement belongs to this call, not to the next one
    try {
      agree(world_, [&]() -> Terms { throw Error(ErrorCode::invalid_input, std::string(reason)); });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
    }
  }
}

void Calls::stand_in() {
  ControlBlock& block = control_.block();
  // Some rank that has come to where it makes the call, or had: this one, too, where it took the call back. Where ranks
  // make different calls, the first one's is made.
  CallNote note;
  std::uint32_t state = taken_only;
  int taker = -1;
  const auto look = [&] {
    const std::optional<std::uint64_t> first = first_call();
    bool some = false;
    taker = -1;
    for (int r = 0; r < control_.size(); ++r) {
      const std::optional<CallNote> taken = taken_by(r);
      if (!taken || (first && digest_of(*taken) != *first)) continue;
      state = word(block.taken[r][number_ % remembered_calls].state).load(std::memory_order_acquire);
      if (state == given_back && taken->object == 0) continue;  // it never took it
      note = *taken;
      taker = r;
      if (state != taken_only) return true;
      some = true;
    }
    return !some;
  };
  const auto await_takers = [&] {
    control_.wait(world_.options().wait_limit, look, [&](double limit) {
      return fmt::format("{} waited {:.3g} s for ranks that have taken call {}", control_.name(rank_), limit, number_);
    });
  };
  await_takers();
  // Who took it may not have said so yet, and another one may say so first.
  if (taker >= 0 && note.object != 0 && first_call(digest_of(note)) != digest_of(note)) await_takers();
  if (state == captured && taker >= 0) return;  // no rank has run it
  const auto member = std::find_if(members_.begin(), members_.end(),
                                   [&](const CallMember* one) { return one->number() == note.object; });
  if (taker < 0 || note.object == 0 || member == members_.end())
    return record_refusal(control_, rank_, std::max(taker, 0), reason_of(control_, rank_, number_));
  const Launching launching(*this);
  try {
    run_prelude();
    (*member)->stand_in_(note);
  } catch (const Error& error) {
    // What the others refuse alike, in the same place, is no failure.
    if (error.code() != ErrorCode::invalid_input) throw;
  }
}

void Calls::skip(std::string_view given) {
  expect_own_process();
  const std::string reason = asked_.hash == 0 ? std::string(given) : fmt::format("{}: {}", asked_.text(), given);
  const AskedOnce asked(*this);
  if (checked_) {
    try {
      compare([] { return Terms("a call of an operator").add("rows", 0); });
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_input) refuse(error.what());
      throw;
    }
  }
  ++number_;
  refused_ = refused_ << 1 | 1;
  write_down({}, given_back);
  word(control_.block().ranks[rank_].skipped).store(number_, std::memory_order_seq_cst);
  publish_refusal(reason);
  settle(reason);
  if (!all_empty()) throw Error(ErrorCode::invalid_input, reason);
}

bool Calls::all_empty() {
  ControlBlock& block = control_.block();
  if (fate(number_) != CallFate::skipped) return false;
  await([&](int r) { return number_of(r) >= number_; }, "at a call without rows");
  auto decided = word(block.decisions[number_ % remembered_decisions].empty);
  std::uint64_t seen = decided.load(std::memory_order_seq_cst);
  while (seen / 4 != number_) {
    std::uint64_t proposed = 1;
    for (int r = 0; r < control_.size(); ++r)
      if (word(block.ranks[r].skipped).load(std::memory_order_seq_cst) != number_) proposed = 2;
    if (decided.compare_exchange_strong(seen, number_ * 4 + proposed, std::memory_order_seq_cst)) return proposed == 1;
  }
  return seen % 4 == 1;
}

// An agreement outside of a call comes before the next one. A rank that makes that call already, or has refused it,
// would not come: all decide together.
void Calls::begin_agreement() {
  expect_own_process();
  ControlBlock& block = control_.block();
  if (!launching_ && !control_.far()) {
    raise(block.last_prepared, number_ + 1);
    const CallFate decided = fate(number_ + 1, true);
    if (decided == CallFate::skipped) throw_refused(number_ + 1);
    IMBREX_EXPECTS(decided != CallFate::made,
                   "{} prepares an object{}, and other ranks make a call of one that is there: the ranks' calls differ",
                   control_.name(rank_), asked_.hash == 0 ? "" : " for " + asked_.text());
  }
  word(block.ranks[rank_].agreements).store(++agreements_, std::memory_order_seq_cst);
}

void note_refusal(Control& control, int rank, std::uint64_t number, std::uint64_t calls,
                  std::string_view reason) noexcept {
  ControlBlock& block = control.home(rank);
  write_text(block.refusals[rank], number, reason);
  word(block.ranks[rank].calls).store(calls, std::memory_order_seq_cst);
  raise(block.last_refused, number);
  if (fate_of(control, control.rank(), number) == Fate::taken) record_refusal(control, rank, control.rank(), reason);
}

}  // namespace imbrex::runtime
