#include "runtime/calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/environment.hpp"
#include "base/narrow.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::uint32_t remembered = 32;

// What a rank's records say of a call.
enum class Fate { to_come, taken, refused };

std::uint64_t packed(std::uint64_t number, std::uint32_t refused) { return number << 32 | refused; }

Fate fate_of(const Control& control, int rank, std::uint64_t number) {
  ControlBlock& block = control.home(rank);
  const std::uint64_t record = word(block.ranks[rank].calls).load(std::memory_order_seq_cst);
  // Numbers wrap; ranks are never 2^31 calls apart.
  const std::uint32_t ahead = base::wrapped<std::uint32_t>(record >> 32) - base::wrapped<std::uint32_t>(number);
  if (ahead >= std::uint32_t{1} << 31) return Fate::to_come;
  // A rank that is far ahead remembers its last refusal only.
  const bool refused = ahead < remembered ? (record >> ahead & 1) != 0
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

// The rank may refuse another call meanwhile: then its words are not this call's.
std::string text_of(RefusalRecord& record, std::uint64_t number) {
  std::array<std::uint64_t, text_words> words{};
  const bool begun = word(record.number).load(std::memory_order_acquire) == number;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(record.text[i]).load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!begun || word(record.number).load(std::memory_order_relaxed) != number) return "its error says why";
  const auto* text = reinterpret_cast<const char*>(words.data());
  return {text, strnlen(text, sizeof words)};
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

Calls::Calls(World& world, Control& control, int rank)
    : world_(world), control_(control), rank_(rank), checked_(base::environment().check_calls()) {}

void Calls::compare(const std::function<Terms()>& ask) { agree(world_, ask); }

void Calls::refuse(const Error& error) {
  make([&]() -> int { throw error; }, [](int) { return Terms("a call"); }, [](int) {});
}

// A rank that takes a call writes that down, then looks for refusals. One that refuses it writes that down, then looks
// for ranks that took it. All four are sequentially consistent, so one of the two sees the other.
void Calls::take() {
  refused_ <<= 1;
  ControlBlock& block = control_.block();
  word(block.ranks[rank_].calls).store(packed(++number_, refused_), std::memory_order_seq_cst);
  const bool refused_far =
      control_.far() && word(control_.far()->block().last_refused).load(std::memory_order_seq_cst) >= number_;
  if (word(block.last_refused).load(std::memory_order_seq_cst) < number_ && !refused_far) [[likely]]
    return;
  for (int r = 0; r < control_.size(); ++r)
    if (fate_of(control_, r, number_) == Fate::refused)
      control_.record_and_throw(fmt::format("{} refused a call that {} takes: {}", control_.name(r),
                                            control_.name(rank_), text_of(control_.home(r).refusals[r], number_)));
}

void Calls::refuse(std::string_view reason) noexcept {
  ++number_;
  refused_ = refused_ << 1 | 1;
  publish_refusal(reason);
}

void Calls::take_back(std::string_view reason) noexcept {
  refused_ |= 1;
  publish_refusal(reason);
}

void Calls::publish_refusal(std::string_view reason) noexcept {
  ControlBlock& block = control_.block();
  write_text(block.refusals[rank_], number_, reason);
  word(block.ranks[rank_].calls).store(packed(number_, refused_), std::memory_order_seq_cst);
  raise(block.last_refused, number_);
  // Far ranks look whether they have taken it.
  if (control_.far()) control_.far()->refused(number_, packed(number_, refused_), reason);
  for (int r = 0; r < control_.size(); ++r)
    if (r != rank_ && fate_of(control_, r, number_) == Fate::taken) return record_refusal(control_, rank_, r, reason);
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
