// How litmus tests are run.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "shmem/litmus.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

/// Reads of two words, in order of time; `first` was read first.
struct Reads {
  std::uint64_t first, second;
};

/// How often two readers disagree about the order of two writers: one has seen its first word's write, but
/// not yet the second's, which the other has seen before it did not see the first's.
inline std::uint64_t disagreements(const std::vector<Reads>& a, const std::vector<Reads>& b) {
  std::uint64_t count = 0;
  for (const Reads& one : a) {
    // The first of b's that saw more of the second writer than `one` did; later ones saw no less of the first writer.
    const auto other = std::find_if(b.begin(), b.end(), [&](const Reads& reads) { return reads.first > one.second; });
    if (other != b.end() && other->second < one.first) ++count;
  }
  return count;
}

/// Collective. How often this PE saw what must not be; `none` where a wait gave up.
template <typename Transport>
std::uint64_t run_litmus(Bench& bench, Litmus what, std::uint64_t rounds, bool ordered) {
  Heap& heap = bench.heap;
  const int me = bench.pe();
  auto* channels = reinterpret_cast<Channel*>(bench.source);
  const std::vector<std::byte> zeros(room);
  heap.write(bench.source, zeros.data(), room, me);
  heap.write(bench.target, zeros.data(), room, me);
  bench.meet();
  const Grid grid{.blocks = litmus_blocks, .threads = 1, .stream = bench.stream};
  const auto run = [&](auto* kernel, auto... arguments) {
    launch(heap, grid, kernel, heap.handle(), arguments...);
    heap.finish(bench.stream);
    bench.meet();
  };
  const auto channel = [&](std::uint32_t block) {
    Channel copy{};
    heap.read(&copy, channels + block, sizeof copy, me);
    return copy;
  };
  switch (what) {
    case Litmus::store_buffering: {
      auto* log = reinterpret_cast<std::uint8_t*>(bench.target);
      run(buffer_stores<Transport>, heap.world_team(), channels, log, rounds, ordered);
      if (channel(0).wrong != 0) return none;
      std::vector<std::uint8_t> own(rounds), peers(rounds);
      heap.read(own.data(), log, rounds, me);
      if ((me ^ 1) < bench.pes()) heap.read(peers.data(), log, rounds, me ^ 1);
      std::uint64_t both = 0;
      for (std::uint64_t i = 0; i < rounds; ++i) both += own[i] & peers[i];
      bench.meet();
      return both;
    }
    case Litmus::contention: {
      auto* drawn = reinterpret_cast<std::uint32_t*>(bench.target);
      run(draw_tickets<Transport>, channels, drawn, rounds, ordered);
      if (me != 0) return 0;
      const std::uint64_t all = rounds * litmus_blocks * static_cast<std::uint64_t>(bench.pes());
      std::vector<std::uint32_t> counts(all);
      heap.read(counts.data(), drawn, all * sizeof(std::uint32_t), me);
      const Channel shared = channel(0);
      std::uint64_t wrong = (all - shared.data[0]) + (all - shared.data[spread]);
      for (const std::uint32_t count : counts) wrong += count != 1 ? 1u : 0u;
      return wrong;
    }
    case Litmus::independent_reads: {
      auto* log = reinterpret_cast<std::uint64_t*>(bench.target);
      run(read_independently<Transport>, channels, log, rounds, ordered);
      if (me != 0 || bench.pes() < 2) return bench.meet(), 0;
      std::vector<Reads> a(rounds), b(rounds);
      heap.read(a.data(), log, rounds * sizeof(Reads), 0);
      heap.read(b.data(), log, rounds * sizeof(Reads), 1);
      bench.meet();
      return disagreements(a, b);
    }
    default: {
      run(pass_messages<Transport>, what, channels, rounds, ordered);
      std::uint64_t wrong = 0;
      for (std::uint32_t block = 0; block < litmus_blocks; ++block) {
        const std::uint64_t one = channel(block).wrong;
        wrong = one == none || wrong == none ? none : wrong + one;
      }
      return wrong;
    }
  }
}

}  // namespace imbrex::shmem::test
