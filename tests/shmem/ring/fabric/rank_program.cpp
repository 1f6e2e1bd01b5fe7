// What a PE of the wire's tests runs: fabric_rank verbs | random N | words N | stop HOW | work SECONDS. The world comes
// from the environment. Exits with 0, or with an Error's code and its text.
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <future>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "imbrex/shmem.hpp"
#include "runtime/host_world.hpp"
#include "shmem/ring/wire.hpp"

namespace imbrex::shmem::ring {
namespace {

using runtime::run_rank;
using Clock = std::chrono::steady_clock;

struct Wrong : Error {
  explicit Wrong(const std::string& what) : Error(ErrorCode::unsound, what) {}
};
template <typename T>
void expect_equal(const T& got, const T& wanted, const std::string& what) {
  if (got != wanted) throw Wrong(fmt::format("{}: {} instead of {}", what, got, wanted));
}

/// A wire and what is under way.
class Driver {
 public:
  explicit Driver(Heap& heap)
      : heap_(heap), wire_(fabric_wire(heap, {.near_by_memory = false, .reads_back = heap.pe() == 1})) {}

  void poll() {
    std::array<std::uint64_t, 16> tokens;
    const std::size_t count = wire_->poll(tokens);
    for (std::size_t i = 0; i < count; ++i) done_[tokens[i] % done_.size()] = true;
    flying_ -= count;
    heap_.world().throw_if_failed();
    if (count == 0) std::this_thread::yield();
  }
  std::uint64_t begin(WireTransfer transfer) {
    transfer.token = next_++;
    done_[transfer.token % done_.size()] = false;
    while (!wire_->begin(transfer)) poll();
    ++flying_;
    return transfer.token;
  }
  void await(std::uint64_t token) {
    while (!done_[token % done_.size()]) poll();
  }
  void finish() {
    while (flying_ != 0) poll();
  }
  void one(const WireTransfer& transfer) { await(begin(transfer)); }
  // Serves the others meanwhile.
  void meet() {
    finish();
    auto met = std::async(std::launch::async, [this] { heap_.world().barrier(); });
    while (met.wait_for(std::chrono::seconds(0)) != std::future_status::ready) poll();
    met.get();
  }
  std::size_t flying() const { return flying_; }

  std::uint64_t offset(const void* own) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(own) -
                                      reinterpret_cast<std::byte*>(heap_.handle().group.own));
  }
  static std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

 private:
  Heap& heap_;
  std::unique_ptr<Wire> wire_;
  std::uint64_t next_ = 0;
  std::size_t flying_ = 0;
  std::array<bool, 4096> done_{};
};

std::byte pattern(std::size_t i, std::uint64_t seed) {
  return static_cast<std::byte>((i * 2654435761u + seed * 40503u + (i >> 8)) >> 3);
}

// Every verb and size, from every PE to every other, and to itself.
int verbs(Heap& heap) {
  Driver driver(heap);
  const auto me = static_cast<std::uint32_t>(heap.pe()), pes = static_cast<std::uint32_t>(heap.pes());
  constexpr std::size_t room = (std::size_t{9} << 20);
  auto* const target = static_cast<std::byte*>(heap.allocate(room));
  auto* const source = static_cast<std::byte*>(heap.allocate(room));
  auto* const landing = static_cast<std::byte*>(heap.allocate(room));
  auto* const words = static_cast<std::uint64_t*>(heap.allocate(64 * 8 * 64));
  for (std::uint32_t turn = 0; turn < pes; ++turn) {
    // One PE works, the others serve.
    for (std::uint32_t pe = 0; pe < pes && turn == me; ++pe) {
      for (const std::size_t size : {1ul, 2ul, 3ul, 7ul, 8ul, 9ul, 64ul, 4095ul, 4096ul, 16383ul, 16385ul, 65536ul,
                                     (1ul << 20) + 13, 8ul << 20}) {
        const std::size_t at = size % 5;
        for (std::size_t i = 0; i < size; ++i) source[at + i] = pattern(i, size + pe);
        driver.one(
            {.verb = Verb::put, .pe = pe, .there = driver.offset(target + 3), .here = source + at, .bytes = size});
        std::memset(landing, 0, size + 2);
        driver.one(
            {.verb = Verb::get, .pe = pe, .there = driver.offset(target + 3), .here = landing + 1, .bytes = size});
        for (std::size_t i = 0; i < size; ++i)
          if (landing[1 + i] != pattern(i, size + pe)) throw Wrong(fmt::format("byte {} of {} to PE {}", i, size, pe));
        expect_equal(landing[0] == std::byte{} && landing[size + 1] == std::byte{}, true, "bytes beside");
      }
      auto* const place = reinterpret_cast<std::uint64_t*>(landing);
      const std::uint64_t there = driver.offset(words + me * 64);
      const auto read = [&] {
        driver.one({.verb = Verb::get, .pe = pe, .there = there, .here = landing + 64, .bytes = 8});
        std::uint64_t value;
        std::memcpy(&value, landing + 64, 8);
        return value;
      };
      // Words of each size.
      driver.one({.verb = Verb::put_word, .pe = pe, .there = there, .bytes = 8, .operand = 0x1111111111111111});
      driver.one({.verb = Verb::put_word, .pe = pe, .there = there + 4, .bytes = 4, .operand = 0x22222222});
      driver.one({.verb = Verb::put_word, .pe = pe, .there = there + 2, .bytes = 2, .operand = 0x3333});
      driver.one({.verb = Verb::put_word, .pe = pe, .there = there + 1, .bytes = 1, .operand = 0x44});
      expect_equal(read(), std::uint64_t{0x2222222233334411}, "words");
      struct Step {
        Verb verb;
        std::uint64_t operand, compare, after;
      };
      for (const std::uint64_t bytes : {std::uint64_t{8}, std::uint64_t{4}}) {
        const std::uint64_t mask = bytes == 8 ? ~std::uint64_t{0} : 0xffffffffu;
        std::uint64_t value = 0x0123456789abcdef;
        driver.one({.verb = Verb::put_word, .pe = pe, .there = there, .bytes = 8, .operand = value});
        for (const Step& step :
             {Step{Verb::swap, ~value, 0, ~value}, Step{Verb::compare_swap, 77, 5, ~value},
              Step{Verb::compare_swap, 78, ~value, 78}, Step{Verb::fetch_add, ~0ull - 9, 0, 68},
              Step{Verb::fetch_xor, 0xff00ff00ff00ff, 0, 68 ^ 0xff00ff00ff00ff},
              Step{Verb::fetch_and, 0xf0f0f0f0f0f0f0f0, 0, (68 ^ 0xff00ff00ff00ff) & 0xf0f0f0f0f0f0f0f0},
              Step{Verb::fetch_or, 3, 0, ((68 ^ 0xff00ff00ff00ff) & 0xf0f0f0f0f0f0f0f0) | 3}}) {
          *place = 0;
          driver.one({.verb = step.verb,
                      .pe = pe,
                      .there = there,
                      .here = landing,
                      .bytes = bytes,
                      .operand = step.operand,
                      .compare = bytes == 8 ? step.compare : step.compare & mask});
          expect_equal(*place, value & mask,
                       fmt::format("result of verb {} of {}", static_cast<int>(step.verb), bytes));
          value = step.after;
          expect_equal(read() & mask, value & mask, fmt::format("verb {} of {}", static_cast<int>(step.verb), bytes));
        }
      }
      // What keeps no result.
      driver.one({.verb = Verb::put_word, .pe = pe, .there = there, .bytes = 8, .operand = 0});
      driver.one({.verb = Verb::fetch_add, .pe = pe, .there = there, .bytes = 8, .operand = 5});
      expect_equal(read(), std::uint64_t{5}, "an addition without a result");
      const auto add = [&]<typename T>(T first, T second) {
        T word = first;
        std::uint64_t operand = 0;
        std::memcpy(&operand, &word, sizeof word);
        driver.one({.verb = Verb::swap, .pe = pe, .there = there, .bytes = sizeof(T), .operand = operand});
        word = second, operand = 0;
        std::memcpy(&operand, &word, sizeof word);
        driver.one({.verb = Verb::fetch_add,
                    .type = WordType::floating_point,
                    .pe = pe,
                    .there = there,
                    .here = landing,
                    .bytes = sizeof(T),
                    .operand = operand});
        T before;
        std::memcpy(&before, landing, sizeof before);
        expect_equal(before, first, "a sum's beginning");
        const std::uint64_t sum = read();
        std::memcpy(&word, &sum, sizeof word);
        expect_equal(word, static_cast<T>(first + second), "a sum");
      };
      add(1.5f, 2.25f);
      add(1.5, -1e300);
    }
    driver.meet();
  }
  driver.meet();
  return 0;
}

// Each PE has cells of its own on every PE, and knows what must be in them. All draw tickets from one word, to which
// its owner adds by itself, too.
int random_work(Heap& heap, std::uint64_t operations) {
  constexpr std::uint32_t cells = 1024;
  struct Area {
    std::uint64_t cell[cells];
  };
  Driver driver(heap);
  const auto me = static_cast<std::uint32_t>(heap.pe()), pes = static_cast<std::uint32_t>(heap.pes());
  auto* const areas = static_cast<Area*>(heap.allocate(pes * sizeof(Area)));
  auto* const sources = static_cast<std::uint64_t*>(heap.allocate(cells * 8));
  auto* const results = static_cast<std::uint64_t*>(heap.allocate(cells * 8));
  auto* const tickets = static_cast<std::uint64_t*>(heap.allocate(8));
  std::mt19937_64 random(1234 + me);
  std::vector<std::vector<std::uint64_t>> known(pes, std::vector<std::uint64_t>(cells));
  std::vector<std::vector<bool>> touched(pes, std::vector<bool>(cells));
  std::vector<std::uint64_t> expected;  // of `results`, as far as they are used
  std::uint64_t drawn = 0, last = 0;
  std::uint32_t sourced = 0;
  const auto settle = [&] {
    driver.finish();
    for (std::size_t i = 0; i < expected.size(); ++i) expect_equal(results[i], expected[i], "a result");
    expected.clear();
    sourced = 0;
    for (auto& each : touched) each.assign(cells, false);
  };
  const auto whole_area = [&](std::uint32_t pe) {
    settle();
    driver.one({.verb = Verb::get,
                .pe = pe,
                .there = driver.offset(&areas[me]),
                .here = Driver::bytes(results),
                .bytes = sizeof(Area)});
    for (std::uint32_t i = 0; i < cells; ++i)
      if (results[i] != known[pe][i]) throw Wrong(fmt::format("cell {} of PE {}", i, pe));
  };
  for (std::uint64_t n = 0; n < operations; ++n) {
    const auto pe = static_cast<std::uint32_t>(random() % pes);
    const auto count = static_cast<std::uint32_t>(1 + random() % 16);
    const auto first = static_cast<std::uint32_t>(random() % (cells - count));
    bool busy = expected.size() + count >= cells || sourced + count >= cells;
    for (std::uint32_t i = 0; i < count; ++i) busy = busy || touched[pe][first + i];
    if (busy) settle();
    const std::uint64_t there = driver.offset(&areas[me].cell[first]);
    std::uint64_t& cell = known[pe][first];
    const std::uint64_t value = random();
    switch (random() % 8) {
      case 0:
      case 1: {
        for (std::uint32_t i = 0; i < count; ++i) {
          known[pe][first + i] = sources[sourced + i] = random();
          touched[pe][first + i] = true;
        }
        driver.begin({.verb = Verb::put,
                      .pe = pe,
                      .there = there,
                      .here = Driver::bytes(sources + sourced),
                      .bytes = count * 8});
        sourced += count;
        break;
      }
      case 2: {
        for (std::uint32_t i = 0; i < count; ++i) touched[pe][first + i] = true;
        driver.begin({.verb = Verb::get,
                      .pe = pe,
                      .there = there,
                      .here = Driver::bytes(results + expected.size()),
                      .bytes = count * 8});
        expected.insert(expected.end(), &known[pe][first], &known[pe][first] + count);
        break;
      }
      case 3:
        touched[pe][first] = true;
        driver.begin({.verb = Verb::put_word, .pe = pe, .there = there, .bytes = 8, .operand = cell = value});
        break;
      case 4: {
        touched[pe][first] = true;
        const std::uint64_t guess = random() % 2 == 0 ? cell : value;
        driver.begin({.verb = Verb::compare_swap,
                      .pe = pe,
                      .there = there,
                      .here = Driver::bytes(results + expected.size()),
                      .bytes = 8,
                      .operand = value,
                      .compare = guess});
        expected.push_back(cell);
        if (guess == cell) cell = value;
        break;
      }
      case 5:
      case 6: {
        touched[pe][first] = true;
        const bool add = random() % 2 == 0;
        driver.begin({.verb = add ? Verb::fetch_add : Verb::fetch_xor,
                      .pe = pe,
                      .there = there,
                      .here = Driver::bytes(results + expected.size()),
                      .bytes = 8,
                      .operand = value});
        expected.push_back(cell);
        cell = add ? cell + value : cell ^ value;
        break;
      }
      default: {
        // A ticket: more than the last one.
        settle();
        driver.one({.verb = Verb::fetch_add,
                    .pe = 0,
                    .there = driver.offset(tickets),
                    .here = Driver::bytes(results),
                    .bytes = 8,
                    .operand = 1});
        expect_equal(drawn == 0 || results[0] > last, true, "a ticket that comes later is larger");
        last = results[0];
        ++drawn;
        if (me == 0) std::atomic_ref(*tickets).fetch_add(1), ++drawn;
      }
    }
    if (n % 10000 == 0) whole_area(static_cast<std::uint32_t>(random() % pes));
  }
  for (std::uint32_t pe = 0; pe < pes; ++pe) whole_area(pe);
  driver.meet();
  std::vector<std::uint64_t> all(pes);
  auto sum = std::async(std::launch::async, [&] { heap.world().all_gather(&drawn, all.data(), sizeof drawn); });
  while (sum.wait_for(std::chrono::seconds(0)) != std::future_status::ready) driver.poll();
  sum.get();
  if (me == 0) expect_equal(*tickets, std::accumulate(all.begin(), all.end(), std::uint64_t{0}), "tickets");
  driver.meet();
  return 0;
}

// PE 0 puts data and then a word, to each of the others, which look at the word and then at the data. Words are never
// seen in parts; and while they come, additions of two PEs and of the owner to one word all count.
int words_work(Heap& heap, std::uint64_t rounds) {
  Driver driver(heap);
  const bool first = heap.pe() == 0;
  constexpr std::uint64_t size = 512;
  auto* const data = static_cast<std::uint64_t*>(heap.allocate(size * 8));
  auto* const word = static_cast<std::uint64_t*>(heap.allocate(8));
  auto* const sum = static_cast<std::uint64_t*>(heap.allocate(8));
  auto* const back = static_cast<std::uint64_t*>(heap.allocate(8 * 64));
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::uint64_t value = round * 0x100000001;
    if (first) {
      for (std::uint64_t i = 0; i < size; ++i) data[i] = round + i;
      for (std::uint32_t pe = 1; pe < static_cast<std::uint32_t>(heap.pes()); ++pe)
        driver.begin({.verb = Verb::put,
                      .pe = pe,
                      .there = driver.offset(data),
                      .here = Driver::bytes(data),
                      .bytes = size * 8});
      driver.finish();
      for (std::uint32_t pe = 1; pe < static_cast<std::uint32_t>(heap.pes()); ++pe) {
        driver.begin({.verb = Verb::put_word, .pe = pe, .there = driver.offset(word), .bytes = 8, .operand = value});
        driver.begin({.verb = Verb::fetch_add, .pe = pe, .there = driver.offset(sum), .bytes = 8, .operand = 1});
      }
      driver.finish();
      for (int pe = 1; pe < heap.pes(); ++pe)
        while (std::atomic_ref(back[pe]).load(std::memory_order_acquire) < round) driver.poll();
      continue;
    }
    for (;;) {
      const std::uint64_t seen = std::atomic_ref(*word).load(std::memory_order_acquire);
      expect_equal(seen >> 32, seen & 0xffffffffu, "halves of a word");
      if (seen == value) break;
      std::atomic_ref(*sum).fetch_add(1 << 20);
      std::atomic_ref(*sum).fetch_sub(1 << 20);
      driver.poll();
    }
    for (std::uint64_t i = 0; i < size; ++i)
      if (std::atomic_ref(data[i]).load(std::memory_order_relaxed) != round + i)
        throw Wrong(fmt::format("round {}, word {} of the data", round, i));
    driver.one(
        {.verb = Verb::put_word, .pe = 0, .there = driver.offset(back + heap.pe()), .bytes = 8, .operand = round});
  }
  driver.meet();
  if (!first) expect_equal(*sum, rounds, "additions");
  driver.meet();
  return 0;
}

// Puts and words to all others until something fails, or for so many seconds.
int work(Heap& heap, double seconds, const std::string& stop) {
  Driver driver(heap);
  const auto me = static_cast<std::uint32_t>(heap.pe()), pes = static_cast<std::uint32_t>(heap.pes());
  constexpr std::uint64_t size = 64 << 10;
  auto* const data = static_cast<std::byte*>(heap.allocate(pes * size));
  auto* const source = static_cast<std::byte*>(heap.allocate(size));
  auto* const words = static_cast<std::uint64_t*>(heap.allocate(8));
  const auto begin = Clock::now();
  std::uint64_t rounds = 0;
  while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
    for (std::uint32_t pe = 0; pe < pes; ++pe) {
      if (pe == me) continue;
      driver.begin(
          {.verb = Verb::put, .pe = pe, .there = driver.offset(data + me * size), .here = source, .bytes = size});
      driver.begin({.verb = Verb::fetch_add, .pe = pe, .there = driver.offset(words), .bytes = 8, .operand = 1});
    }
    while (driver.flying() > 64) driver.poll();
    if (++rounds == 50 && me == pes - 1) {
      if (stop == "killed") raise(SIGKILL);
      if (stop == "stopped") raise(SIGSTOP);
      if (stop == "failed") throw Error(ErrorCode::runtime_failure, "this PE has had enough");
      if (stop == "idle") std::this_thread::sleep_for(std::chrono::seconds(8));  // its thread serves no PE
    }
  }
  driver.meet();
  return 0;
}

int run(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "", more = count > 2 ? arguments[2] : "";
  const auto world = World::from_environment({.heap_bytes = std::size_t{64} << 20});
  return run_rank(*world, [&](World& its) {
    Heap heap(its, {.device = Device::cpu, .bytes = std::size_t{32} << 20});
    if (what == "verbs") return verbs(heap);
    if (what == "random") return random_work(heap, std::stoull(more));
    if (what == "words") return words_work(heap, std::stoull(more));
    if (what == "work") return work(heap, std::stod(more), "");
    if (what == "stop") return work(heap, 1000, more);
    return 2;
  });
}

}  // namespace
}  // namespace imbrex::shmem::ring

int main(int count, char** arguments) { return imbrex::shmem::ring::run(count, arguments); }
