// 100,000 random operations of 1 to 4 PEs, each through two contexts, over NICs that are late, look twice, and take
// queues in any order. Each context has cells of its own on every PE and knows exactly what must be in them; tickets
// that all draw from one word are each drawn once; and a NIC has done as many requests as were posted.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "shmem/mlx5/fixture.hpp"
#include "support/random_plan.hpp"

namespace imbrex::shmem::mlx5::test {
namespace {

constexpr std::uint32_t blocks = 2, cells = 512, most_pes = 4, tickets = 1 << 14;
constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 60};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{8} << 20};
// Rings of four go round hundreds of times; 5 cells and more are several requests.
constexpr QueueOptions queue_options{.contexts = blocks, .slots = 4, .largest = 64, .stage_bytes = 64};

// What a context has in the heap: its cells at every PE, sources, places for gets.
struct alignas(64) Area {
  std::array<std::uint64_t, cells> cell, source, landing;
  Signal signal;
};
// At PE 0.
struct Office {
  std::uint64_t next;
  std::array<std::uint64_t, tickets> drawn;
};

// A context and what it knows.
class Driver {
 public:
  Driver(const Handle& handle, Area* areas, Office* office, std::uint64_t seed)
      : context_(handle), areas_(areas), office_(office), random_(seed * 1000 + handle.pe() * blocks + block_index()) {
    for (auto& each : known_) each.fill(0);
  }

  // How many differ from what must be there.
  std::uint64_t run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations && !given_up(); ++i) {
      one();
      if (used_ + 20 > cells || draw(60) == 0) settle();
    }
    settle();
    return wrong_;
  }

 private:
  bool given_up() const { return device::load_relaxed(&context_.handle().group.own->abort) != 0; }
  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }
  Area& own() { return areas_[context_.pe() * blocks + block_index()]; }

  // So many cells that nothing is under way to.
  std::uint32_t untouched(std::uint32_t pe, std::uint32_t count, std::uint32_t alignment = 1) {
    for (;;) {
      const std::uint32_t first = draw((cells - count) / alignment) * alignment;
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
      const Area& there = *device::at_rank(context_.handle().group, &own(), pe);
      for (std::uint32_t i = 0; i < cells; ++i)
        if (touched_[pe][i]) expect(words::load(&there.cell[i]), known_[pe][i]);
      expect(words::load(&there.signal), signals_[pe]);
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
    std::array<std::uint64_t, cells>& cell = own().cell;
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
        if (landed_ + count > cells) settle();
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

  Context<Mlx5> context_;
  Area* areas_;
  Office* office_;
  std::mt19937_64 random_;
  std::array<std::array<std::uint64_t, cells>, most_pes> known_;
  std::array<std::array<bool, cells>, most_pes> touched_{};
  std::array<std::uint64_t, most_pes> signals_{};
  std::array<std::uint64_t, cells> landing_{};
  std::array<std::uint64_t, 16> outside_{};
  std::uint32_t used_ = 0, landed_ = 0, misses_ = 0;
  std::uint64_t wrong_ = 0;
};

IMBREX_KERNEL drive(Handle handle, Area* areas, Office* office, std::uint64_t seed, std::uint64_t operations,
                    std::uint64_t* wrong) {
  wrong[block_index()] = Driver(handle, areas, office, seed).run(operations);
}

// 0: all is as it must be. What is not, is said.
int run(World& world, std::uint64_t seed, std::uint64_t operations, const NicOptions& options) {
  return at_site(world, heap_options, queue_options, options, [&](Site& site) {
    Heap& heap = site.heap;
    auto* areas = static_cast<Area*>(heap.allocate(sizeof(Area) * blocks * static_cast<std::size_t>(world.size())));
    auto* office = static_cast<Office*>(heap.allocate(sizeof(Office)));
    std::array<std::uint64_t, blocks> wrong{};
    launch(heap, {.blocks = blocks}, drive, heap.handle(), areas, office, seed, operations, wrong.data());
    heap.finish();
    world.barrier();
    int faults = 0;
    const auto expect = [&](const char* what, std::uint64_t got, std::uint64_t wanted) {
      if (got == wanted) return;
      ++faults;
      std::fprintf(stderr, "PE %d of %d: %s: %llu, not %llu\n", world.rank(), world.size(), what,
                   static_cast<unsigned long long>(got), static_cast<unsigned long long>(wanted));
    };
    for (const std::uint64_t count : wrong) expect("cells that differ", count, 0);
    std::uint64_t posted = 0;
    for (const Port& port : site.queues.ports()) posted += port.queue->posted;
    const NicCounts counts = site.nic.counts();
    expect("requests that were done", counts.requests, posted);
    expect("requests that were refused or flushed", counts.refused + counts.flushed, 0);
    expect("whether rings went round a hundred times", counts.laps > 100, 1);
    expect("whether doorbells were doubled", counts.doubled > 10, options.double_doorbells);
    if (world.rank() == 0)
      for (std::uint64_t ticket = 0; ticket < tickets; ++ticket)
        if ((office->drawn[ticket] == 1) != (ticket < office->next)) expect("a ticket", office->drawn[ticket], 1);
    return faults == 0 ? 0 : 1;
  });
}

TEST(Mlx5Random, OperationsAreNeitherLostNorDoubled) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  for (int pes = 1; pes <= 4; ++pes)  // 10,000 a PE
    EXPECT_EQ(run_processes(pes, world_options, [&](World& world) { return run(world, seed, 5000, unkind(seed)); }), 0);
}

// What is lost or doubled is seen.
TEST(Mlx5Random, FindsWhatANicDoesWrong) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  for (int i = 0; i < 4; ++i) {
    NicOptions options = unkind(seed);
    (i % 2 == 0 ? options.lose_at : options.repeat_at) = 200 + static_cast<std::uint64_t>(i) * 150;
    EXPECT_EQ(run_processes(2, world_options, [&](World& world) { return run(world, seed, 1500, options); }), 1);
  }
}

TEST(Mlx5Random, RefusedRequestsEndEveryPE) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 10; ++i) {
    NicOptions options = unkind(random());
    options.refuse_at = random() % 3000;
    options.syndrome = 0x15;
    const int pes = 1 + i % 4;
    const int code = run_processes(pes, world_options, [&](World& world) {
      try {
        run(world, seed, 2000, options);
      } catch (const Error& error) {
        const std::string said = error.what();
        const bool named = said.find("the NIC refused request") != std::string::npos;
        if (!named) std::fprintf(stderr, "PE %d said: %s\n", world.rank(), said.c_str());
        return named ? 7 : 8;
      }
      return 9;
    });
    EXPECT_EQ(code, 7) << "refused at " << options.refuse_at << " of " << pes << " PEs";
  }
}

// 150,000 requests of one queue: the 16 bits of their index wrap twice.
IMBREX_KERNEL wrap(Handle handle, std::uint64_t* cell, std::uint64_t* wrong) {
  Context<Mlx5> context(handle);
  for (std::uint64_t i = 1; i <= 150000; ++i) {
    context.atomic_add(cell, 1, 0);
    if (i % 5000 != 0) continue;
    context.quiet();
    if (words::load(cell) != i) ++*wrong;
  }
}

TEST(Mlx5Random, IndicesWrap) {
  const int code = run_threads(1, world_options, [&](World& world) {
    return at_site(world, heap_options, {.contexts = 1, .slots = 32}, {}, [&](Site& site) {
      const auto cell = site.heap.array<std::uint64_t>(1);
      std::uint64_t wrong = 0;
      launch(site.heap, {}, wrap, site.heap.handle(), cell.data(), &wrong);
      return wrong == 0 && site.nic.counts().requests == 150000 ? 0 : 1;
    });
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex::shmem::mlx5::test
