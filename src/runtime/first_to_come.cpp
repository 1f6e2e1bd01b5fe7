// What the first rank that comes to a call says of it, and all others must say, too. docs/dev/runtime.md has the words.
#include <fmt/format.h>

#include "base/check.hpp"
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

std::int64_t Calls::first_size(std::int64_t size) {
  std::uint64_t& said = control_.block().sizes[number_ % remembered_places];
  return static_cast<std::int64_t>(first_to_say(said, number_, static_cast<std::uint64_t>(size)));
}

void Calls::expect_size(const CallNote& note) {
  const std::int64_t first = first_size(note.size);
  IMBREX_EXPECTS(first == note.size,
                 "rank {} calls with {} = {}, another rank with {}: it must be the same on every rank", rank_,
                 note.size_is, note.size, first);
}

}  // namespace imbrex::runtime
