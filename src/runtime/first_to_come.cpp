// What the first rank that comes to a call says of it, and all others must say, too. docs/dev/runtime.md has the words.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <span>
#include <string>

#include "base/check.hpp"
#include "base/hash.hpp"
#include "runtime/calls.hpp"

namespace imbrex::runtime {
namespace {

// A place or a size. What is as old as 2^24 calls has been overwritten long since.
constexpr int bits = 40;

// `said` holds the call's number above what was said. Returns what the first rank said: `value`, if this is the first
// one.
std::uint64_t first_to_say(std::uint64_t& said, std::uint64_t number, std::uint64_t value) {
  const auto first = word(said);
  const std::uint64_t tag = number << bits;
  std::uint64_t seen = first.load(std::memory_order_seq_cst);
  while (seen >> bits != tag >> bits)
    if (first.compare_exchange_strong(seen, tag | value, std::memory_order_seq_cst)) return value;
  return seen ^ tag;
}

}  // namespace

std::uint64_t Calls::said_first(std::uint64_t place) {
  return first_to_say(control_.block().places[number_ % remembered_places], number_, place);
}

void Calls::expect_place(std::uint64_t place) {
  if (!launching_) return;
  const std::uint64_t first = said_first(place);
  const auto text_of = [](std::uint64_t at) {
    return at == 0 ? std::string("in memory of its own") : fmt::format("at byte {} of its heap", at - 1);
  };
  IMBREX_EXPECTS(first == place,
                 "operand out of rank {} lies {}, that of another rank {}: memory of allocate_output is given by all "
                 "ranks, of one call of it, or by none",
                 rank_, text_of(place), text_of(first));
}

std::uint64_t Calls::place() { return said_first(0); }

// What tells calls from each other, in as many bits.
std::uint64_t Calls::digest_of(const CallNote& note) {
  const std::array words{note.object, static_cast<std::uint64_t>(note.size), std::uint64_t{note.kind}, note.asked};
  return base::hash_of(std::as_bytes(std::span(words))) >> (64 - bits);
}

std::uint64_t Calls::first_call(std::uint64_t digest) {
  return first_to_say(control_.block().said_calls[number_ % remembered_places], number_, digest);
}

std::optional<std::uint64_t> Calls::first_call() {
  const std::uint64_t seen = word(control_.block().said_calls[number_ % remembered_places]).load();
  const std::uint64_t tag = number_ << bits;
  if (seen >> bits != tag >> bits) return std::nullopt;
  return seen ^ tag;
}

void Calls::ask(std::string_view field, std::string_view value) {
  asked_ = {std::string(field), std::string(value)};
  const std::string text = asked_.field + '\0' + asked_.value;
  asked_.hash = base::hash_of(std::as_bytes(std::span(text))) | 1;
}

// What the rank wrote down of its call of this number.
std::optional<CallNote> Calls::taken_by(int rank) const {
  TakenRecord& taken = control_.block().taken[rank][number_ % remembered_calls];
  if (word(taken.number).load(std::memory_order_acquire) != number_) return std::nullopt;
  const CallNote note{.object = word(taken.object).load(std::memory_order_relaxed),
                      .size = word(taken.size).load(std::memory_order_relaxed),
                      .kind = word(taken.kind).load(std::memory_order_relaxed),
                      .asked = word(taken.asked).load(std::memory_order_relaxed)};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (word(taken.number).load(std::memory_order_relaxed) != number_) return std::nullopt;
  return note;
}

void Calls::expect_same(const CallNote& note) {
  const std::uint64_t digest = digest_of(note), first = first_call(digest);
  if (first == digest) [[likely]]
    return;
  const std::string own = note.with_size();
  for (int r = 0; r < control_.size(); ++r) {
    const std::optional<CallNote> other = taken_by(r);
    if (!other || digest_of(*other) != first) continue;
    IMBREX_EXPECTS(other->asked == note.asked,
                   "rank {} calls with {}, another rank with {}: it must be the same on every rank", rank_,
                   asked_.text(), other->asked == 0 ? Asked().text() : asked_by(r));
    IMBREX_EXPECTS(other->object != note.object || other->kind != note.kind,
                   "rank {} calls{}, another rank with {}: it must be the same on every rank", rank_, own, other->size);
    throw Error(ErrorCode::invalid_input,
                fmt::format("rank {} calls one object{}, another rank another one with a size of {}: the ranks' calls "
                            "differ",
                            rank_, own, other->size));
  }
  throw Error(ErrorCode::invalid_input,
              fmt::format("rank {} makes a call{}, another rank another one: the ranks' calls differ", rank_, own));
}

}  // namespace imbrex::runtime
