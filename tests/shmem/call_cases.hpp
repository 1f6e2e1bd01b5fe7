// Cases of calls.hpp.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "shmem/calls.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

/// Copies between vectors and this PE's part of the heap.
template <typename T>
void give(Bench& bench, void* own, const std::vector<T>& values) {
  bench.heap.write(own, values.data(), values.size() * sizeof(T), bench.pe());
}
template <typename T>
std::vector<T> take(Bench& bench, const void* own, std::size_t count) {
  std::vector<T> values(count);
  bench.heap.read(values.data(), own, count * sizeof(T), bench.pe());
  return values;
}

template <typename T>
std::string expect_equal(const std::vector<T>& got, const std::vector<T>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (!(got[i] == wanted[i]))
      return "word " + std::to_string(i) + " is " + std::to_string(got[i]) + ", not " + std::to_string(wanted[i]);
  return "";
}

/// Between two meetings of all PEs.
template <typename... Parameters, typename... Arguments>
void run_kernel(Bench& bench, void (*kernel)(Parameters...), Arguments... arguments) {
  bench.meet();
  launch(bench.heap, {.blocks = blocks, .threads = block_threads, .stream = bench.stream}, kernel, bench.heap.handle(),
         arguments...);
  bench.heap.finish(bench.stream);
  bench.meet();
}

template <typename Transport, typename T>
std::string run_change(Bench& bench, Change change, bool shared) {
  constexpr std::uint32_t times = 5;
  const std::uint32_t all = groups<Thread>(blocks);
  const auto me = static_cast<std::uint32_t>(bench.pe()), pes = static_cast<std::uint32_t>(bench.pes());
  std::vector<T> before(all), wanted(all), wanted_back(all);
  for (std::uint32_t i = 0; i < all; ++i) wanted[i] = before[i] = before_of<T>(me, i);
  if (!shared)
    for (std::uint32_t i = 0; i < all; ++i) {
      wanted[i] = changed(change, before[i], operand_of<T>((me + pes - 1) % pes, i));
      wanted_back[i] = returns_before(change) ? before_of<T>((me + 1) % pes, i) : T{};
    }
  else if (me == 0)
    for (std::uint32_t pe = 0; pe < pes; ++pe)
      for (std::uint32_t i = 0; i < all * times; ++i)
        wanted[0] = changed(change, wanted[0], operand_of<T>(pe, i / times));
  auto* words = reinterpret_cast<T*>(bench.words);
  auto* back = reinterpret_cast<T*>(bench.seen);
  give(bench, words, before);
  give(bench, back, std::vector<T>(all));
  run_kernel(bench, change_words<Transport, T>, change, words, back, shared, times);
  const std::string wrong = expect_equal(take<T>(bench, words, all), wanted);
  if (!wrong.empty()) return wrong;
  const std::string wrong_back = expect_equal(take<T>(bench, back, all), wanted_back);
  return wrong_back.empty() ? "" : "returned: " + wrong_back;
}

template <typename Transport, typename T>
void add_changes(std::vector<Case>& cases, const char* type) {
  for (int c = 0; c < (std::is_integral_v<T> ? changes : float_changes); ++c)
    for (const bool shared : {false, true}) {
      const auto change = static_cast<Change>(c);
      const bool is_order_free = change == Change::fetch_add || change == Change::add || change >= Change::fetch_inc;
      if (shared && !is_order_free) continue;
      cases.push_back({std::string("atomic ") + change_names[c] + " " + type + (shared ? ", all PEs on one word" : ""),
                       [=](Bench& bench) { return run_change<Transport, T>(bench, change, shared); }});
    }
}

template <typename Transport, typename T, typename G>
std::string run_wait(Bench& bench, Wait wait, Compare compare) {
  const std::uint32_t all = groups<G>(blocks);
  const bool vector = std::string(wait_names[static_cast<int>(wait)]).find("vector") != std::string::npos;
  std::vector<T> before(std::size_t{all} * variables);
  for (std::uint32_t i = 0; i < before.size(); ++i) before[i] = before_wait<T>(compare, vector ? i % variables : 0);
  give(bench, bench.words, before);
  give(bench, bench.seen, std::vector<std::uint32_t>(all));
  run_kernel(bench, wait_for_words<Transport, T, G>, wait, compare, reinterpret_cast<T*>(bench.words),
             reinterpret_cast<std::uint32_t*>(bench.seen));
  for (const std::uint32_t found : take<std::uint32_t>(bench, bench.seen, all))
    if (found != static_cast<std::uint32_t>(Found::well)) return "a group found " + std::to_string(found);
  return "";
}

template <typename Transport, typename T, typename G>
void add_waits(std::vector<Case>& cases, const char* type) {
  constexpr const char* compare_names[] = {"==", "!=", ">", ">=", "<", "<="};
  for (int w = 0; w < waits; ++w) {
    const auto wait = static_cast<Wait>(w);
    if ((wait == Wait::signal || wait == Wait::signal_and_see) && !std::is_same_v<T, Signal>) continue;
    if (!is_of_group(wait) && !std::is_same_v<G, Thread>) continue;
    for (int c = 0; c < 6; ++c) {
      // Each comparison by the plainest wait, for every type; the others with two of them.
      if (wait != Wait::until && c != (w + static_cast<int>(sizeof(T))) % 6 && c != (w + 3) % 6) continue;
      const auto compare = static_cast<Compare>(c);
      cases.push_back({std::string(wait_names[w]) + " " + compare_names[c] + " " + type + " " + Scope<G>::name,
                       [=](Bench& bench) { return run_wait<Transport, T, G>(bench, wait, compare); }});
    }
  }
}

template <typename T>
T element(int pe, std::uint32_t round, std::uint64_t i) {
  return static_cast<T>((static_cast<std::uint64_t>(pe) * 7 + round * 3 + i * 5) % 11 + 1);
}

/// Which PEs make the team: all, or every other one, the last first.
enum class Who : std::uint8_t { all, every_other };

template <typename Transport, typename T, typename G>
std::string run_together(Bench& bench, Collective what, Reduction reduction, Who who, std::uint64_t count,
                         std::uint32_t salt) {
  Heap& heap = bench.heap;
  std::optional<Team> made;
  const int last = (bench.pes() - 1) / 2 * 2;
  if (who == Who::every_other) made = heap.split_strided(heap.world_team(), last, -2, last / 2 + 1);
  const bool member = who == Who::all || made.has_value();
  const Team team = made.value_or(heap.world_team());
  const std::uint64_t part = count * team.size + 3;
  const auto elements = static_cast<std::size_t>(rounds * part);
  auto* to = reinterpret_cast<T*>(bench.target);
  auto* from = reinterpret_cast<T*>(bench.source);
  auto* failed = reinterpret_cast<std::uint32_t*>(bench.seen);
  std::vector<T> source(elements), target(elements, T{99});
  for (std::size_t i = 0; i < elements; ++i)
    source[i] = element<T>(bench.pe(), static_cast<std::uint32_t>(i / part) + salt, i % part);
  give(bench, from, source);
  give(bench, to, target);
  give(bench, failed, std::vector<std::uint32_t>(1));
  give(bench, bench.words, std::vector<std::uint64_t>(rounds));
  const Together t{what, reduction, team, count, failed};
  if (member)
    run_kernel(bench, together<Transport, T, G>, t, to, from, reinterpret_cast<std::uint64_t*>(bench.words));
  else
    bench.meet(), bench.meet();

  std::string wrong;
  if (member) {
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const auto of = [&](std::uint32_t m, std::uint64_t i) {
        return element<T>(static_cast<int>(team.pe(m)), round + salt, i);
      };
      T* wanted = target.data() + round * part;
      if (what == Collective::broadcast)
        for (std::uint64_t i = 0; i < count; ++i) wanted[i] = of((round + 1) % team.size, i);
      for (std::uint32_t m = 0; m < team.size; ++m)
        for (std::uint64_t i = 0; i < count; ++i) {
          if (what == Collective::all_to_all) wanted[m * count + i] = of(m, team.me * count + i);
          if (what == Collective::all_gather) wanted[m * count + i] = of(m, i);
        }
      if (what == Collective::reduce) {
        T* place = round + 1 == rounds ? source.data() + round * part : wanted;
        for (std::uint64_t i = 0; i < count; ++i) {
          T value = of(0, i);
          for (std::uint32_t m = 1; m < team.size; ++m) value = collectives::combine(reduction, value, of(m, i));
          place[i] = value;
        }
      }
    }
    wrong = expect_equal(take<T>(bench, to, elements), target);
    if (wrong.empty()) wrong = expect_equal(take<T>(bench, from, elements), source);
    if (take<std::uint32_t>(bench, failed, 1)[0] != 0) wrong = "a member did not see what was there, or gave up";
  }
  if (made) heap.release(*made);
  return wrong;
}

template <typename Transport, typename T, typename G>
void add_together(std::vector<Case>& cases, const char* type) {
  const auto add = [&](Collective what, Reduction reduction, const std::string& name, Who who, std::uint64_t count) {
    const auto salt = static_cast<std::uint32_t>(cases.size());
    cases.push_back(
        {name + " " + type + " " + Scope<G>::name + (who == Who::all ? "" : " of a team") + ", " +
             std::to_string(count),
         [=](Bench& bench) { return run_together<Transport, T, G>(bench, what, reduction, who, count, salt); }});
  };
  for (const Who who : {Who::all, Who::every_other}) {
    for (int c = 0; c < 5; ++c) {
      const auto what = static_cast<Collective>(c);
      const bool moves = what >= Collective::broadcast;
      if (!moves && sizeof(T) != 8) continue;
      for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{65}})
        if (moves || count == 1) add(what, Reduction::sum, collective_names[c], who, count);
    }
    constexpr const char* names[] = {"sum", "product", "minimum", "maximum", "and", "or", "xor"};
    for (int r = 0; r < (std::is_integral_v<T> ? 7 : 4); ++r)
      add(Collective::reduce, static_cast<Reduction>(r), std::string("reduce ") + names[r], who,
          who == Who::all ? 65u : 2u);
  }
}

template <typename Transport>
std::string run_contexts(Bench& bench) {
  const std::uint32_t all = groups<Thread>(blocks);
  give(bench, bench.words, std::vector<std::uint64_t>(std::size_t{all} * 2));
  give(bench, bench.seen, std::vector<std::uint32_t>(all, 99));
  run_kernel(bench, use_contexts<Transport>, reinterpret_cast<std::uint64_t*>(bench.words),
             reinterpret_cast<std::uint32_t*>(bench.seen));
  return expect_equal(take<std::uint32_t>(bench, bench.seen, all), std::vector<std::uint32_t>(all));
}

/// What a group does alike whatever the type, one type tests: `every_type` costs a minute of compiling for each group.
template <typename Transport, typename G, bool every_type>
void add_calls_of(std::vector<Case>& cases) {
  add_waits<Transport, std::uint64_t, G>(cases, "uint64");
  add_together<Transport, std::uint64_t, G>(cases, "uint64");
  if constexpr (every_type) {
    add_waits<Transport, std::int32_t, G>(cases, "int32");
    add_waits<Transport, std::uint32_t, G>(cases, "uint32");
    add_waits<Transport, std::int64_t, G>(cases, "int64");
    add_together<Transport, std::int32_t, G>(cases, "int32");
    add_together<Transport, float, G>(cases, "float");
  }
}

template <typename Transport>
std::vector<Case> calls() {
  std::vector<Case> cases;
  add_changes<Transport, std::int32_t>(cases, "int32");
  add_changes<Transport, std::uint32_t>(cases, "uint32");
  add_changes<Transport, std::int64_t>(cases, "int64");
  add_changes<Transport, std::uint64_t>(cases, "uint64");
  add_changes<Transport, long long>(cases, "long long");
  add_changes<Transport, float>(cases, "float");
  add_changes<Transport, double>(cases, "double");
  cases.push_back({"contexts", run_contexts<Transport>});
  add_calls_of<Transport, Thread, true>(cases);
  add_calls_of<Transport, Warp, false>(cases);
  add_calls_of<Transport, Block, true>(cases);
#if defined(__CUDACC__)
  add_calls_of<Transport, Tile, false>(cases);
  add_calls_of<Transport, CudaBlock, false>(cases);
#endif
  return cases;
}

}  // namespace imbrex::shmem::test
