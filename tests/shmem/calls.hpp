// Kernels of what is no move: atomic operations, waits and tests, collectives, contexts.
#pragma once

#include "shmem/scopes.hpp"

namespace imbrex::shmem::test {

// ------------------------------------------------------------------------------------------- atomic operations

enum class Change : std::uint8_t {
  fetch,
  set,
  swap,
  fetch_add,
  add,  // what floating types have
  compare_swap,
  compare_swap_in_vain,
  fetch_inc,
  inc,
  fetch_and,
  fetch_or,
  fetch_xor,
  and_,
  or_,
  xor_,
};
inline constexpr const char* change_names[] = {
    "fetch",     "set", "swap",      "fetch_add", "add",       "compare_swap", "compare_swap in vain",
    "fetch_inc", "inc", "fetch_and", "fetch_or",  "fetch_xor", "and",          "or",
    "xor"};
inline constexpr int float_changes = 5, changes = 15;

/// Integers wrap.
template <typename T>
IMBREX_DEVICE T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<words::BitsOf<T>>(a) + static_cast<words::BitsOf<T>>(b));
  else
    return a + b;
}

/// What an operation makes of a word.
template <typename T>
IMBREX_DEVICE T changed(Change change, T before, T operand) {
  switch (change) {
    case Change::fetch:
    case Change::compare_swap_in_vain: return before;
    case Change::set:
    case Change::swap:
    case Change::compare_swap: return operand;
    case Change::fetch_add:
    case Change::add: return sum<T>(before, operand);
    case Change::fetch_inc:
    case Change::inc: return sum<T>(before, T{1});
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (change == Change::fetch_and || change == Change::and_) return static_cast<T>(before & operand);
    if (change == Change::fetch_or || change == Change::or_) return static_cast<T>(before | operand);
    return static_cast<T>(before ^ operand);
  }
  return before;
}
IMBREX_DEVICE bool returns_before(Change change) {
  return change != Change::set && change != Change::add && change != Change::inc && change < Change::and_;
}

/// Words before and operands: they reach beyond the lower half of 8 bytes, and below 0. `shared` gives operands that
/// add up to small integers.
template <typename T>
IMBREX_DEVICE T before_of(std::uint32_t pe, std::uint32_t i) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(pe) * T(4) + static_cast<T>(i) * T(0.5) - T(3);
  else
    return static_cast<T>((pe * 0x01010101u + i * 0x00f1e2d3u) * std::uint64_t{0x9e3779b97f4a7c15});
}
template <typename T>
IMBREX_DEVICE T operand_of(std::uint32_t pe, std::uint32_t i) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(i) * T(0.25) + static_cast<T>(pe);
  else
    return static_cast<T>((pe + 3) * std::uint64_t{0xbf58476d1ce4e5b9} + i);
}

template <typename Transport, typename T>
IMBREX_DEVICE T change_word(Context<Transport>& context, Change change, T* word, T operand, T expected,
                            std::uint32_t pe) {
  switch (change) {
    case Change::fetch: return context.atomic_fetch(word, pe);
    case Change::set: context.atomic_set(word, operand, pe); return T{};
    case Change::swap: return context.atomic_swap(word, operand, pe);
    case Change::fetch_add: return context.atomic_fetch_add(word, operand, pe);
    case Change::add: context.atomic_add(word, operand, pe); return T{};
    default: break;
  }
  if constexpr (std::is_integral_v<T>) switch (change) {
      case Change::compare_swap: return context.atomic_compare_swap(word, expected, operand, pe);
      case Change::compare_swap_in_vain: return context.atomic_compare_swap(word, sum<T>(expected, T{1}), operand, pe);
      case Change::fetch_inc: return context.atomic_fetch_inc(word, pe);
      case Change::inc: context.atomic_inc(word, pe); return T{};
      case Change::fetch_and: return context.atomic_fetch_and(word, operand, pe);
      case Change::fetch_or: return context.atomic_fetch_or(word, operand, pe);
      case Change::fetch_xor: return context.atomic_fetch_xor(word, operand, pe);
      case Change::and_: context.atomic_and(word, operand, pe); return T{};
      case Change::or_: context.atomic_or(word, operand, pe); return T{};
      case Change::xor_: context.atomic_xor(word, operand, pe); return T{};
      default: break;
    }
  return T{};
}

/// Each thread changes a word of its own on the next PE, or all of all PEs change the first one of PE 0, `times`.
template <typename Transport, typename T>
IMBREX_KERNEL change_words(Handle handle, Change change, T* words, T* returned, bool shared, std::uint32_t times) {
  Context<Transport> context(handle);
  const std::uint32_t i = group_number<Thread>();
  if (shared) {
    for (std::uint32_t time = 0; time < times; ++time)
      change_word(context, change, words, operand_of<T>(context.pe(), i), T{}, 0);
  } else {
    const std::uint32_t pe = (context.pe() + 1) % context.pes();
    returned[i] = change_word(context, change, words + i, operand_of<T>(context.pe(), i), before_of<T>(pe, i), pe);
  }
  context.quiet();
}

// ------------------------------------------------------------------------------------------------- waits, tests

enum class Wait : std::uint8_t {
  until,
  signal,
  signal_and_see,
  all,
  all_vector,
  any,
  any_vector,
  some,
  some_vector,
  test,
  test_all,
  test_all_vector,
  test_any,
  test_any_vector,
  test_some,
  test_some_vector,
};
inline constexpr const char* wait_names[] = {"wait_until",
                                             "signal_wait_until",
                                             "signal_wait_until and see",
                                             "wait_until_all",
                                             "wait_until_all_vector",
                                             "wait_until_any",
                                             "wait_until_any_vector",
                                             "wait_until_some",
                                             "wait_until_some_vector",
                                             "test",
                                             "test_all",
                                             "test_all_vector",
                                             "test_any",
                                             "test_any_vector",
                                             "test_some",
                                             "test_some_vector"};
inline constexpr int waits = 16;
/// By a group; others by one thread.
IMBREX_DEVICE bool is_of_group(Wait wait) { return wait != Wait::signal_and_see && wait <= Wait::all_vector; }

/// Variables of a group, and which of them no PE sets.
inline constexpr std::uint32_t variables = 6, left_out = 4;

/// What variables are before, what they become, and what they are compared with: high halves count, and signs.
template <typename T>
IMBREX_DEVICE T middle(std::uint32_t i) {
  const T far = sizeof(T) == 8 ? static_cast<T>(std::uint64_t{1} << 40) : T{0};
  return static_cast<T>(std::is_signed_v<T> ? T{} - far - static_cast<T>(20) + static_cast<T>(i)
                                            : far + static_cast<T>(20 + i));
}
template <typename T>
IMBREX_DEVICE T before_wait(Compare compare, std::uint32_t i) {
  const bool falls = compare == Compare::less || compare == Compare::less_equal;
  return static_cast<T>(falls ? middle<T>(i) + T{5} : middle<T>(i) - T{5});
}
template <typename T>
IMBREX_DEVICE T compared_with(Compare compare, std::uint32_t i) {
  switch (compare) {
    case Compare::not_equal: return before_wait<T>(compare, i);
    case Compare::greater: return static_cast<T>(middle<T>(i) - T{1});
    case Compare::less: return static_cast<T>(middle<T>(i) + T{1});
    default: return middle<T>(i);
  }
}

/// What a kernel of waits finds.
enum class Found : std::uint32_t { nothing, well, failed, early, wrong_value, wrong_index };

template <typename Transport, typename T>
IMBREX_DEVICE Found wait_by_one(Context<Transport>& context, Wait wait, Compare compare, const T* first,
                                const int* status, const T* values, std::uint64_t* indices) {
  const T value = values[0];
  const bool vector = wait == Wait::any_vector || wait == Wait::some_vector || wait == Wait::test_any_vector ||
                      wait == Wait::test_some_vector || wait == Wait::test_all_vector;
  const auto holds_at = [&](std::uint64_t i) {
    return i < variables && status[i] == 0 && holds(words::load(first + i), compare, vector ? values[i] : value);
  };
  std::uint64_t found = 0;
  for (std::uint32_t poll = 0;; ++poll) {
    bool over = false;
    switch (wait) {
      case Wait::signal_and_see: {
        if constexpr (std::is_same_v<T, Signal>) {
          Signal seen = 0;
          if (!context.signal_wait_until(first, compare, value, seen)) return Found::failed;
          return seen == middle<T>(0) && context.signal_fetch(first) == seen ? Found::well : Found::wrong_value;
        }
        return Found::failed;
      }
      case Wait::any:
        if (!context.wait_until_any(first, variables, status, compare, value, found)) return Found::failed;
        return holds_at(found) ? Found::well : Found::wrong_index;
      case Wait::any_vector:
        if (!context.wait_until_any_vector(first, variables, status, compare, values, found)) return Found::failed;
        return holds_at(found) ? Found::well : Found::wrong_index;
      case Wait::some:
        if (!context.wait_until_some(first, variables, indices, status, compare, value, found)) return Found::failed;
        over = true;
        break;
      case Wait::some_vector:
        if (!context.wait_until_some_vector(first, variables, indices, status, compare, values, found))
          return Found::failed;
        over = true;
        break;
      case Wait::test: over = context.test(first, compare, value); break;
      case Wait::test_all: over = context.test_all(first, variables, status, compare, value); break;
      case Wait::test_all_vector: over = context.test_all_vector(first, variables, status, compare, values); break;
      case Wait::test_any: over = (found = context.test_any(first, variables, status, compare, value)) != none; break;
      case Wait::test_any_vector:
        over = (found = context.test_any_vector(first, variables, status, compare, values)) != none;
        break;
      case Wait::test_some:
        over = (found = context.test_some(first, variables, indices, status, compare, value)) != 0;
        break;
      case Wait::test_some_vector:
        over = (found = context.test_some_vector(first, variables, indices, status, compare, values)) != 0;
        break;
      default: return Found::failed;
    }
    if (over) break;
    if (poll % 64 == 63 && device::given_up(context.handle().group)) return Found::failed;
    device::pause_ns(100);
  }
  switch (wait) {
    case Wait::test: return holds_at(0) ? Found::well : Found::wrong_value;
    case Wait::test_any:
    case Wait::test_any_vector: return holds_at(found) ? Found::well : Found::wrong_index;
    case Wait::test_all:
    case Wait::test_all_vector:
      for (std::uint32_t i = 0; i < variables; ++i)
        if (status[i] == 0 && !holds_at(i)) return Found::wrong_value;
      return Found::well;
    default: break;
  }
  if (found == 0 || found > variables) return Found::wrong_index;
  for (std::uint64_t i = 0; i < found; ++i)
    if (!holds_at(indices[i]) || (i > 0 && indices[i] <= indices[i - 1])) return Found::wrong_index;
  return Found::well;
}

/// Each group sets the variables of the same group on the next PE, one after another, and waits for its own.
template <typename Transport, typename T, typename G>
IMBREX_KERNEL wait_for_words(Handle handle, Wait wait, Compare compare, T* all, std::uint32_t* results) {
  Context<Transport> context(handle);
  const auto group = Scope<G>::group();
  const std::uint32_t number = group_number<G>();
  T* own = all + number * variables;
  const std::uint32_t next = (context.pe() + 1) % context.pes();
  int status[variables];
  T values[variables];
  std::uint64_t indices[variables];
  const bool vector = wait == Wait::all_vector || wait == Wait::any_vector || wait == Wait::some_vector ||
                      wait == Wait::test_all_vector || wait == Wait::test_any_vector || wait == Wait::test_some_vector;
  for (std::uint32_t i = 0; i < variables; ++i) {
    status[i] = i == left_out ? 1 : 0;
    values[i] = compared_with<T>(compare, vector ? i : 0);
  }
  Found found = Found::well;
  // Nothing is there yet: the next PE's word comes after the test.
  if (is_leader(group) && context.pes() == 1 && context.test(own, compare, values[0])) found = Found::early;
  group.sync();
  if (is_leader(group))
    for (std::uint32_t i = 0; i < variables; ++i) {
      const std::uint32_t which = (i * 5 + 2) % variables;
      if (which != left_out) context.atomic_set(own + which, middle<T>(vector ? which : 0), next);
    }
  if (is_of_group(wait)) {
    bool well = true;
    if (wait == Wait::until) well = context.wait_until(own, compare, values[0], group);
    if constexpr (std::is_same_v<T, Signal>)
      if (wait == Wait::signal) well = context.signal_wait_until(own, compare, values[0], group);
    if (wait == Wait::all) well = context.wait_until_all(own, variables, status, compare, values[0], group);
    if (wait == Wait::all_vector) well = context.wait_until_all_vector(own, variables, status, compare, values, group);
    if (!well) found = Found::failed;
    // All threads see what one has waited for.
    for (std::uint32_t i = 0; well && i < (wait >= Wait::all ? variables : 1); ++i)
      if (i != left_out && own[i] != middle<T>(vector ? i : 0)) found = Found::wrong_value;
  } else if (is_leader(group)) {
    found = wait_by_one(context, wait, compare, own, status, values, indices);
  }
  if (any_of(group, found != Found::well) && found == Found::well) found = Found::wrong_value;
  if (is_leader(group)) results[number] = static_cast<std::uint32_t>(found);
}

// -------------------------------------------------------------------------------------------------- collectives

enum class Collective : std::uint8_t { sync, barrier, broadcast, all_to_all, all_gather, reduce };
inline constexpr const char* collective_names[] = {"sync",       "barrier",    "broadcast",
                                                   "all_to_all", "all_gather", "reduce"};
inline constexpr std::uint32_t rounds = 4;

struct Together {
  Collective what;
  Reduction reduction;
  Team team;
  std::uint64_t count;
  std::uint32_t* failed;  ///< of this PE: what was not as it should be
};

/// The first group of the grid, on each member; `to` and `from` of each round lie after each other.
template <typename Transport, typename T, typename G>
IMBREX_KERNEL together(Handle handle, Together t, T* to, T* from, std::uint64_t* marks) {
  if (group_number<G>() != 0) return;
  Context<Transport> context(handle);
  const auto group = Scope<G>::group();
  const Team& team = t.team;
  const std::uint64_t to_part = t.count * team.size + 3, from_part = to_part;
  bool well = true;
  for (std::uint32_t round = 0; well && round < rounds; ++round) {
    T* target = to + round * to_part;
    T* source = from + round * from_part;
    switch (t.what) {
      case Collective::sync:
      case Collective::barrier: {
        // What members wrote before, each to the next one's mark or, before a sync, to its own, is there afterwards.
        const bool own = t.what == Collective::sync;
        const std::uint32_t next = team.pe((team.me + 1) % team.size),
                            before = team.pe((team.me + team.size - 1) % team.size);
        if (is_leader(group)) {
          if (own)
            words::store(marks + round, std::uint64_t{round + 1});
          else
            context.p(marks + round, round + 1, next);
        }
        well = own ? sync(context, team, group) : barrier(context, team, group);
        const std::uint64_t seen = own ? context.g(marks + round, before) : words::load(marks + round);
        if (well && seen != round + 1) *t.failed = 1;
        break;
      }
      case Collective::broadcast:
        well = broadcast(context, team, target, source, t.count, (round + 1) % team.size, group);
        break;
      case Collective::all_to_all: well = all_to_all(context, team, target, source, t.count, group); break;
      case Collective::all_gather: well = all_gather(context, team, target, source, t.count, group); break;
      case Collective::reduce:
        // In place in the last round.
        well = reduce(context, team, t.reduction, round + 1 == rounds ? source : target, source, t.count, group);
        break;
    }
  }
  // No PE leaves while others still read what it has.
  if (!well || !barrier(context, team, group)) *t.failed = 2;
}

// ----------------------------------------------------------------------------------------------------- contexts

/// Two contexts of a block: numbers, places, and that one's fences leave the other's puts alone. `seen` gets 0 where
/// all is well, else what is not.
template <typename Transport>
IMBREX_KERNEL use_contexts(Handle handle, std::uint64_t* box, std::uint32_t* seen) {
  const std::uint32_t number = block_index();
  Context<Transport> first(handle, number), second(handle, number + block_count());
  std::uint32_t wrong = 0;
  if (!first || !second) wrong |= 1;
  if (first.pe() != handle.pe() || first.pes() != handle.pes()) wrong |= 2;
  std::uint64_t* own = box + group_number<Thread>() * 2;
  for (std::uint32_t pe = 0; pe < first.pes(); ++pe) {
    const auto distance = static_cast<std::int64_t>(reinterpret_cast<std::uint64_t>(first.pointer(own, pe)) -
                                                    reinterpret_cast<std::uint64_t>(own));
    const auto stride = static_cast<std::int64_t>(handle.group.stride);
    if (distance != (static_cast<std::int64_t>(pe) - handle.pe()) * stride) wrong |= 4;
  }
  first.p(own, 5, first.pe());
  second.p(own + 1, 6, first.pe());
  second.fence(), second.quiet(), second.pe_fence(first.pe()), second.pe_quiet(first.pe());
  if (words::load(own + 1) != 6) wrong |= 8;
  if constexpr (requires { first.transport().held(); })
    if (first.transport().held() != 1 || second.transport().held() != 0 || words::load(own) != 0) wrong |= 16;
  first.quiet();
  if (words::load(own) != 5) wrong |= 32;
  seen[group_number<Thread>()] = wrong;
}

}  // namespace imbrex::shmem::test
