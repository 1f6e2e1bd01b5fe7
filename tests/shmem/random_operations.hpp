// Random operations of PEs on the CPU, each through two contexts, for transports that are late and take things in any
// order. Each context has cells of its own on every PE and knows exactly what must be in them; and tickets that all
// draw from one word are each drawn once.
#pragma once

#include <array>
#include <cstdio>
#include <cstring>
#include <random>

#include "imbrex/shmem.hpp"

namespace imbrex::shmem::test {

inline constexpr std::uint32_t random_blocks = 2, cells_each = 512, most_random_pes = 4, tickets = 1 << 14;

// What a context has in the heap: its cells at every PE, sources, places for gets.
struct alignas(64) Area {
  std::array<std::uint64_t, cells_each> cell, source, landing;
  Signal signal;
};
// At PE 0.
struct Office {
  std::uint64_t next;
  std::array<std::uint64_t, tickets> drawn;
};

// A context and what it knows.
template <typename Transport>
class RandomDriver {
 public:
  RandomDriver(const Handle& handle, Area* areas, Office* office, std::uint64_t seed)
      : context_(handle),
        areas_(areas),
        office_(office),
        random_(seed * 1000 + handle.pe() * random_blocks + block_index()) {
    for (auto& each : known_) each.fill(0);
  }

  // How many differ from what must be there.
  std::uint64_t run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations && !given_up(); ++i) {
      one();
      if (used_ + 20 > cells_each || draw(60) == 0) settle();
    }
    settle();
    return wrong_;
  }

 private:
  bool given_up() const { return device::load_relaxed(&context_.handle().group.own->abort) != 0; }
  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }
  Area& own() { return areas_[context_.pe() * random_blocks + block_index()]; }
  const Area& there(std::uint32_t pe) { return *device::at_rank(context_.handle().group, &own(), pe); }

  // So many cells_each that nothing is under way to.
  std::uint32_t untouched(std::uint32_t pe, std::uint32_t count, std::uint32_t alignment = 1) {
    for (;;) {
      const std::uint32_t first = draw((cells_each - count) / alignment) * alignment;
      bool free = true;
      for (std::uint32_t i = 0; i < count; ++i) free = free && !touched_[pe][first + i];
      if (free) return first;
      if (++misses_ % 64 == 0) settle();
    }
  }
  void set(std::uint32_t pe, std::uint32_t cell, std::uint64_t value) {
    known_[pe][cell] = value;
    touched_[pe][cell] = true;
  }
  void expect(std::uint64_t got, std::uint64_t wanted) {
    if (got != wanted && !given_up()) ++wrong_;
  }

  // All is complete: what is there is what must be.
  void settle() {
    context_.quiet();
    if (given_up()) return;
    for (std::uint32_t pe = 0; pe < context_.pes(); ++pe) {
      for (std::uint32_t i = 0; i < cells_each; ++i)
        if (touched_[pe][i]) expect(words::load(&there(pe).cell[i]), known_[pe][i]);
      expect(words::load(&there(pe).signal), signals_[pe]);
      touched_[pe].fill(false);
    }
    for (std::uint32_t i = 0; i < landed_; ++i) expect(words::load(&own().landing[i]), landing_[i]);
    used_ = landed_ = 0;
  }

  // Random words, in the heap or not, on their way to untouched cells.
  const std::uint64_t* fresh(std::uint32_t pe, std::uint32_t first, std::uint32_t count, bool in_heap) {
    std::uint64_t* from = in_heap ? &own().source[used_] : outside_.data();
    if (in_heap) used_ += count;
    for (std::uint32_t i = 0; i < count; ++i) set(pe, first + i, from[i] = random_());
    return from;
  }

  template <typename T>
  void part(std::uint32_t pe) {
    const std::uint32_t cell = untouched(pe, 1), at = draw(8 / sizeof(T));
    const auto value = static_cast<T>(random_());
    context_.p(reinterpret_cast<T*>(&own().cell[cell]) + at, value, pe);
    std::uint64_t whole = known_[pe][cell];
    std::memcpy(reinterpret_cast<std::byte*>(&whole) + at * sizeof(T), &value, sizeof value);
    set(pe, cell, whole);
  }

  // An operation on half a cell; returns what was there.
  template <typename Operation>
  void half(std::uint32_t pe, Operation&& operation) {
    const std::uint32_t cell = untouched(pe, 1), at = draw(2);
    std::array<std::uint32_t, 2> halves;
    std::memcpy(halves.data(), &known_[pe][cell], 8);
    const std::uint32_t before = halves[at];
    expect(operation(reinterpret_cast<std::uint32_t*>(&own().cell[cell]) + at, halves[at]), before);
    std::memcpy(&known_[pe][cell], halves.data(), 8);
  }

  void one() {
    const std::uint32_t pe = draw(context_.pes()), count = 1 + draw(16);
    std::array<std::uint64_t, cells_each>& cell = own().cell;
    switch (draw(17)) {
      case 0:
      case 1: {
        const std::uint32_t first = untouched(pe, count);
        context_.put_nbi(&cell[first], fresh(pe, first, count, true), count, pe);
        break;
      }
      case 2: {
        const std::uint32_t first = untouched(pe, count);
        const bool in_heap = draw(2) == 0;
        context_.put(&cell[first], fresh(pe, first, count, in_heap), count, pe);
        break;
      }
      case 3: part<std::uint64_t>(pe); break;
      case 4:
        draw(2) == 0 ? part<std::uint8_t>(pe) : draw(2) == 0 ? part<std::uint16_t>(pe) : part<std::uint32_t>(pe);
        break;
      case 5:
      case 6: {
        const std::uint32_t first = untouched(pe, count);
        const bool in_heap = draw(4) != 0;
        context_.put_signal_nbi(&cell[first], fresh(pe, first, count, in_heap), count, &own().signal, count,
                                SignalOperation::add, pe);
        signals_[pe] += count;
        break;
      }
      case 7: {
        // Two signals' order is that of calls only where a quiet lies between.
        context_.pe_quiet(pe);
        expect(words::load(&there(pe).signal), signals_[pe]);  // what was added is seen before it is overwritten
        const std::uint32_t first = untouched(pe, count);
        context_.put_signal(&cell[first], fresh(pe, first, count, true), count, &own().signal, signals_[pe] = random_(),
                            SignalOperation::set, pe);
        context_.pe_quiet(pe);
        break;
      }
      case 8: {
        const std::uint32_t first = untouched(pe, count);
        context_.get(outside_.data(), &cell[first], count, pe);
        for (std::uint32_t i = 0; i < count; ++i) expect(outside_[i], known_[pe][first + i]);
        break;
      }
      case 9: {
        if (landed_ + count > cells_each) settle();
        const std::uint32_t first = untouched(pe, count);
        for (std::uint32_t i = 0; i < count; ++i) {
          landing_[landed_ + i] = known_[pe][first + i];
          touched_[pe][first + i] = true;  // nothing is written to it meanwhile
        }
        context_.get_nbi(&own().landing[landed_], &cell[first], count, pe);
        landed_ += count;
        break;
      }
      case 10: {
        const std::uint32_t first = untouched(pe, 1);
        expect(context_.g(&cell[first], pe), known_[pe][first]);
        break;
      }
      case 11: {
        const std::uint32_t first = untouched(pe, 1);
        const std::uint64_t value = random_();
        expect(context_.atomic_fetch_add(&cell[first], value, pe), known_[pe][first]);
        known_[pe][first] += value;
        break;
      }
      case 12: {
        const std::uint32_t first = untouched(pe, 1);
        const std::uint64_t value = random_(), guess = draw(2) == 0 ? known_[pe][first] : value;
        const std::uint64_t before = known_[pe][first];
        expect(context_.atomic_compare_swap(&cell[first], guess, value, pe), before);
        if (guess == before) known_[pe][first] = value;
        break;
      }
      case 13: {
        const auto value = static_cast<std::uint32_t>(random_());
        if (draw(2) == 0)
          half(pe, [&](std::uint32_t* word, std::uint32_t& known) {
            known ^= value;
            return context_.atomic_fetch_xor(word, value, pe);
          });
        else
          half(pe, [&](std::uint32_t* word, std::uint32_t& known) {
            known += value;
            return context_.atomic_fetch_add(word, value, pe);
          });
        break;
      }
      case 14: {
        const std::uint32_t first = untouched(pe, 1);
        const std::uint64_t value = random_();
        context_.atomic_add(&cell[first], value, pe);
        set(pe, first, known_[pe][first] + value);
        break;
      }
      case 15: {
        const std::uint64_t ticket = context_.atomic_fetch_inc(&office_->next, 0);
        if (!given_up()) context_.atomic_inc(&office_->drawn[ticket % tickets], 0);
        break;
      }
      case 16: {
        const std::uint32_t first = untouched(pe, 2, 2);
        const std::uint64_t value = random_(), signal = random_();
        context_.put_packet(reinterpret_cast<Packet<std::uint64_t>*>(&cell[first]), value, signal, pe);
        set(pe, first, value), set(pe, first + 1, signal);
        break;
      }
    }
  }

  Context<Transport> context_;
  Area* areas_;
  Office* office_;
  std::mt19937_64 random_;
  std::array<std::array<std::uint64_t, cells_each>, most_random_pes> known_;
  std::array<std::array<bool, cells_each>, most_random_pes> touched_{};
  std::array<std::uint64_t, most_random_pes> signals_{};
  std::array<std::uint64_t, cells_each> landing_{};
  std::array<std::uint64_t, 16> outside_{};
  std::uint32_t used_ = 0, landed_ = 0, misses_ = 0;
  std::uint64_t wrong_ = 0;
};

template <typename Transport>
IMBREX_KERNEL drive(Handle handle, Area* areas, Office* office, std::uint64_t seed, std::uint64_t operations,
                    std::uint64_t* wrong) {
  wrong[block_index()] = RandomDriver<Transport>(handle, areas, office, seed).run(operations);
}

/// 1, and says so, where they differ.
inline int said_as_fault(const World& world, const char* what, std::uint64_t got, std::uint64_t wanted) {
  if (got == wanted) return 0;
  std::fprintf(stderr, "PE %d of %d: %s: %llu, not %llu\n", world.rank(), world.size(), what,
               static_cast<unsigned long long>(got), static_cast<unsigned long long>(wanted));
  return 1;
}

/// Collective. How much is not as it must be, which is said.
template <typename Transport>
int count_random_faults(Heap& heap, std::uint64_t seed, std::uint64_t operations) {
  World& world = heap.world();
  auto* areas =
      static_cast<Area*>(heap.allocate(sizeof(Area) * random_blocks * static_cast<std::size_t>(world.size())));
  auto* office = static_cast<Office*>(heap.allocate(sizeof(Office)));
  std::array<std::uint64_t, random_blocks> wrong{};
  launch(heap, {.blocks = random_blocks}, drive<Transport>, heap.handle(), areas, office, seed, operations,
         wrong.data());
  heap.finish();
  world.barrier();
  int faults = 0;
  for (const std::uint64_t count : wrong) faults += said_as_fault(world, "cells that differ", count, 0);
  if (world.rank() == 0)
    for (std::uint64_t ticket = 0; ticket < tickets; ++ticket)
      if ((office->drawn[ticket] == 1) != (ticket < office->next))
        faults += said_as_fault(world, "a ticket", office->drawn[ticket], 1);
  return faults;
}

}  // namespace imbrex::shmem::test
