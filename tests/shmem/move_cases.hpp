// Cases of moves.hpp.
#pragma once

#include <cstring>
#include <vector>

#include "shmem/moves.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

/// What PE `pe` has in a buffer before a case.
inline std::vector<std::byte> bytes_of(int pe, std::uint32_t salt, std::size_t bytes) {
  std::vector<std::byte> all((bytes + 7) / 8 * 8);
  std::uint64_t x = (static_cast<std::uint64_t>(pe) << 32) + salt;
  for (std::size_t i = 0; i < bytes; i += 8) {
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    std::memcpy(&all[i], &x, 8);
  }
  all.resize(bytes);
  return all;
}

inline std::string first_difference(const char* what, const std::vector<std::byte>& got,
                                    const std::vector<std::byte>& wanted) {
  if (got == wanted) return "";
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (got[i] != wanted[i])
      return std::string(what) + "'s byte " + std::to_string(i) + " of " + std::to_string(wanted.size()) + " is " +
             std::to_string(static_cast<int>(got[i])) + ", not " + std::to_string(static_cast<int>(wanted[i]));
  return "";
}

struct Shape {
  std::uint64_t count, to_offset, from_offset;  ///< elements
};

/// Counts that are odd, starts that are misaligned in their lines, in the same way and differently.
inline constexpr Shape shapes[] = {{0, 1, 2}, {1, 3, 1}, {33, 1, 2}, {100, 9, 9}, {257, 0, 3}};
inline constexpr Shape large_shapes[] = {{20001, 5, 5}, {24001, 2, 1}};

template <typename Transport, typename T, typename G>
std::string run_move(Bench& bench, Way way, Shape shape, std::uint32_t salt) {
  constexpr std::uint64_t guard = 16;
  const bool strided = way == Way::iput || way == Way::iget;
  const bool packets = way == Way::packets;
  const std::uint64_t to_stride = strided ? 3 : 1, from_stride = strided ? 2 : 1;
  const std::uint32_t all = groups<G>(blocks);
  Move m{};
  m.way = way;
  m.count = shape.count;
  m.from_stride = from_stride, m.to_stride = to_stride;
  m.from_part = shape.from_offset + shape.count * from_stride + guard;
  m.to_part = shape.to_offset + shape.count * to_stride + guard;
  if (packets) m.to_part = shape.count + 1;  // packets lie where they must
  m.from = reinterpret_cast<T*>(bench.source) + shape.from_offset;
  m.to = packets ? static_cast<void*>(bench.target) : reinterpret_cast<T*>(bench.target) + shape.to_offset;
  m.seen = packets ? static_cast<void*>(bench.seen) : reinterpret_cast<T*>(bench.seen) + shape.to_offset;
  m.signals = bench.signals;
  m.distance = salt % 3 == 2 ? 0 : salt % 3 + 1;  // to oneself, too
  const std::size_t to_bytes = all * m.to_part * (packets ? sizeof(Packet<T>) : sizeof(T));
  const std::size_t from_bytes = all * m.from_part * sizeof(T), seen_bytes = all * m.to_part * sizeof(T);
  if (to_bytes > room || from_bytes > room || all > cells) return "does not fit";

  const int me = bench.pe(), pes = bench.pes(), distance = static_cast<int>(m.distance) % pes;
  const auto own_source = bytes_of(me, salt, from_bytes);
  // Where the bytes come from; what lies between them stays.
  const auto source = bytes_of(is_get(way) ? (me + distance) % pes : (me + pes - distance) % pes, salt, from_bytes);
  auto target = packets ? std::vector<std::byte>(to_bytes) : bytes_of(me, salt + 77, to_bytes);
  auto seen = bytes_of(me, salt + 99, seen_bytes);
  const std::vector<Signal> none_yet(all);
  Heap& heap = bench.heap;
  heap.write(bench.source, own_source.data(), from_bytes, me);
  heap.write(bench.target, target.data(), to_bytes, me);
  heap.write(bench.seen, seen.data(), seen_bytes, me);
  heap.write(bench.signals, none_yet.data(), all * sizeof(Signal), me);
  bench.meet();
  const Grid grid{.blocks = blocks, .threads = block_threads, .stream = bench.stream};
  launch(heap, grid, packets ? send_packets<Transport, T, G> : move<Transport, T, G>, heap.handle(), m);
  heap.finish(bench.stream);
  bench.meet();

  std::vector<std::byte> got(to_bytes), got_seen(seen_bytes);
  heap.read(got.data(), bench.target, to_bytes, me);
  heap.read(got_seen.data(), bench.seen, seen_bytes, me);
  const std::uint64_t to_offset = packets ? 0 : shape.to_offset;
  for (std::uint32_t group = 0; group < all; ++group)
    for (std::uint64_t i = 0; i < shape.count; ++i) {
      const std::byte* from = source.data() + (group * m.from_part + shape.from_offset + i * from_stride) * sizeof(T);
      const std::uint64_t place = group * m.to_part + to_offset + i * to_stride;
      if (!packets) std::memcpy(target.data() + place * sizeof(T), from, sizeof(T));
      if (is_signaled(way)) std::memcpy(seen.data() + place * sizeof(T), from, sizeof(T));
    }
  std::string wrong = packets ? "" : first_difference("the target", got, target);
  if (wrong.empty()) wrong = first_difference("what was seen", got_seen, seen);
  if (!wrong.empty() || !is_signaled(way) || packets || (way == Way::p_signal && shape.count == 0)) return wrong;
  std::vector<Signal> signals(all);
  heap.read(signals.data(), bench.signals, all * sizeof(Signal), me);
  for (const Signal signal : signals)
    if (signal != signal_of_move) return "a signal is " + std::to_string(signal);
  return "";
}

struct Duo {
  std::uint16_t first, second;
};

template <typename Transport, typename T, typename G>
void add_moves(std::vector<Case>& cases, const char* type) {
  for (int w = 0; w < ways; ++w)
    for (const bool large : {false, true}) {
      // The largest by few threads would take long, and by many not fit.
      const auto way = static_cast<Way>(w);
      const bool in_bulk =
          way <= Way::get_nbi || (way >= Way::put_signal_set && way != Way::p_signal && way != Way::packets);
      if (large && (Scope<G>::width != block_threads || !in_bulk || std::is_floating_point_v<T>)) continue;
      const auto add = [&](Shape shape) {
        const auto salt = static_cast<std::uint32_t>(cases.size());
        std::string name = std::string(way_names[w]) + " " + type + " " + Scope<G>::name + " " +
                           std::to_string(shape.count) + " from " + std::to_string(shape.from_offset) + " to " +
                           std::to_string(shape.to_offset);
        cases.push_back(
            {std::move(name), [=](Bench& bench) { return run_move<Transport, T, G>(bench, way, shape, salt); }});
      };
      if (large)
        for (const Shape& shape : large_shapes) add(shape);
      else
        for (const Shape& shape : shapes) add(shape);
    }
}

template <typename Transport, typename G>
void add_moves_of(std::vector<Case>& cases) {
  add_moves<Transport, std::uint8_t, G>(cases, "1 byte");
  add_moves<Transport, std::int16_t, G>(cases, "2 bytes");
  add_moves<Transport, float, G>(cases, "float");
  add_moves<Transport, Duo, G>(cases, "2 x 2 bytes");
  add_moves<Transport, double, G>(cases, "double");
}

template <typename Transport, typename... Groups>
std::vector<Case> moves() {
  std::vector<Case> cases;
  (add_moves_of<Transport, Groups>(cases), ...);
  return cases;
}

}  // namespace imbrex::shmem::test
