#include "program/shmem_bench/shmem_bench.hpp"

#include <algorithm>
#include <array>

#include "apps/shmem_bench/place.hpp"
#include "base/check.hpp"
#include "imbrex/problem.hpp"
#include "program/measure/turns.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"

namespace imbrex::program {
namespace {

using namespace apps;

constexpr std::uint64_t kib = 1024, mib = kib * kib;
constexpr std::uint64_t largest = 4 * mib;
constexpr std::uint32_t most_blocks = 32;

// What a scope's threads are, and how many bytes they move in a call at most.
struct Group {
  ShmemScope scope;
  std::uint32_t threads;
  std::uint64_t most;
};
constexpr std::array<Group, 3> groups{
    {{ShmemScope::thread, 1, 4 * kib}, {ShmemScope::warp, 32, 32 * kib}, {ShmemScope::block, 256, largest}}};
// A block that moves as much as it can has these; with more loads under way, 1024 would have too few registers.
constexpr std::uint32_t threads = 1024, wide_threads = 512;

template <typename T>
bool asked(const std::vector<T>& list, T one) {
  return list.empty() || std::find(list.begin(), list.end(), one) != list.end();
}

std::vector<ShmemCase> cases_of(const ShmemBenchRequest& request) {
  using enum ShmemCall;
  using enum ShmemMeasure;
  const std::vector<std::uint64_t> sizes =
      request.quick ? std::vector<std::uint64_t>{8, 4 * kib, largest}
                    : std::vector<std::uint64_t>{8, 64, 512, 4 * kib, 32 * kib, 256 * kib, mib, largest};
  std::vector<ShmemCase> cases;
  const auto add_case = [&](const ShmemCase& one) {
    if (asked(request.measures, one.measure) && asked(request.calls, one.call)) cases.push_back(one);
  };
  const auto by_scope = [&](ShmemMeasure measure, ShmemCall call) {
    for (const Group& group : groups)
      for (const std::uint64_t bytes : sizes)
        if (bytes <= group.most) add_case({measure, call, group.scope, 1, group.threads, bytes});
  };
  for (const ShmemCall call : {packet, p, p_signal, ShmemCall::add})
    add_case({latency, call, ShmemScope::thread, 1, 1, 8});
  by_scope(latency, put_signal);
  for (const ShmemCall call : {packet, p, p_signal, ShmemCall::add, fetch_add, g, fence, quiet})
    add_case({complete, call, ShmemScope::thread, 1, 1, 8});
  for (const ShmemCall call : {put, get, put_signal}) by_scope(complete, call);
  for (const ShmemCall call : {packet, p, p_signal, ShmemCall::add})
    add_case({issue, call, ShmemScope::thread, 1, 1, 8});
  for (const ShmemCall call : {put, put_signal})
    for (const Group& group : groups)
      for (const std::uint64_t bytes : sizes)
        if (bytes <= 4 * kib) add_case({issue, call, group.scope, 1, group.threads, bytes});
  for (const ShmemCall call : {put, get, p, g})
    for (const std::uint32_t blocks : {1u, 8u, most_blocks})
      for (const std::uint64_t bytes : {256 * kib, largest})
        for (const ShmemScope scope : {ShmemScope::block, ShmemScope::wide})
          if (scope == ShmemScope::block || call == put || call == get)
            add_case({bandwidth, call, scope, blocks, scope == ShmemScope::wide ? wide_threads : threads, bytes});
  for (const ShmemCall call : {p, packet, p_signal, ShmemCall::add})
    for (std::uint32_t blocks = 1; blocks <= most_blocks; blocks *= request.quick ? 32 : 2)
      add_case({rate, call, ShmemScope::thread, blocks, 1, 8 * blocks});
  return cases;
}

// So many that a sample takes milliseconds on a GPU, and on a CPU whose cores may be fewer than its threads.
std::uint32_t calls_in_sample(const ShmemCase& one, bool cpu, bool quick) {
  std::uint64_t bytes = (cpu ? 4 : 64) * mib, most = cpu ? 200 : 1000;
  if (one.measure == ShmemMeasure::bandwidth) bytes *= one.blocks;
  if (one.scope == ShmemScope::thread) bytes /= 64;
  if (one.scope == ShmemScope::warp) bytes /= 16;
  if (one.measure == ShmemMeasure::bandwidth || one.measure == ShmemMeasure::rate) most *= 2;
  if (one.measure == ShmemMeasure::issue) most = 256;  // quick: 64. More would fill what lies between, and wait for it
  if (quick) most /= 4;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / one.bytes, 4, most));
}

// The heap's arrays, and the calls so far that signals and counters tell of.
class Bench {
 public:
  Bench(World& world, const ShmemBenchRequest& request)
      : world_(world),
        heap_(world, {.device = request.device, .bytes = 4 * largest, .ranks_per_gpu = request.ranks_per_gpu}),
        quick_(request.quick),
        to_(heap_.array<std::uint64_t>(largest / 8)),
        from_(heap_.array<std::uint64_t>(largest / 8)),
        few_(heap_.array<std::uint64_t>(few)) {
    const int half = world.size() / 2;
    leads_ = world.rank() < half;
    peer_ = leads_ ? world.rank() + half : world.rank() - half;
    const std::vector<std::uint64_t> sent = pattern(world.rank());
    heap_.write(from_.data(), sent.data(), largest, world.rank());
    std::uint64_t* next = few_.data();
    const auto take = [&](std::size_t count) { return std::exchange(next, next + count); };
    constexpr std::size_t each = std::size_t{most_blocks} * ShmemPlace::apart;
    place_ = {.to = to_.data(),
              .from = from_.data(),
              .from_peer = take(ShmemPlace::apart),
              .signals = take(each),
              .packets = reinterpret_cast<shmem::Packet<std::uint64_t>*>(take(2 * each)),
              .echo = take(ShmemPlace::apart),
              .counter = take(ShmemPlace::apart),
              .scratch = take(each),
              .spans = reinterpret_cast<ShmemSpan*>(take(each))};
    heap_.write(place_.from_peer, pattern(peer_).data(), 8, world.rank());
    heap_.barrier(heap_.world_team());
  }

  Device device() const { return heap_.device(); }

  std::uint32_t calls_of(const ShmemCase& one) const { return calls_in_sample(one, device() == Device::cpu, quick_); }

  // The slowest pair's.
  ShmemSample sample(const ShmemCase& one) {
    const bool cpu = device() == Device::cpu, adds = one.call == ShmemCall::add;
    const std::uint32_t calls = calls_of(one), warm = std::max(4u, calls / 8);
    std::uint64_t& before = adds ? additions_ : signals_;
    const ShmemTurn turn{before, calls, warm, static_cast<std::uint32_t>(peer_), leads_};
    if (!adds || one.measure == ShmemMeasure::latency) before += calls + warm;
    world_.barrier();
    const ShmemSample own = (cpu ? sample_on_cpu : sample_on_gpu)(heap_, one, place_, turn);
    std::vector<ShmemSample> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&own, all.data(), sizeof own);
    ShmemSample slowest = own;
    for (const ShmemSample& each : all) {
      slowest.seconds = std::max(slowest.seconds, each.seconds);
      slowest.cycles = std::max(slowest.cycles, each.cycles);
    }
    return slowest;
  }

  // Whether what puts and gets of so many bytes brought is what the peer sent.
  bool right(std::uint64_t puts, std::uint64_t gets) {
    const std::uint64_t bytes = leads_ ? gets : puts;
    std::vector<std::uint64_t> came(bytes / 8);
    heap_.read(came.data(), to_.data(), bytes, world_.rank());
    const std::vector<std::uint64_t> sent = pattern(peer_);
    const bool own = std::equal(came.begin(), came.end(), sent.begin());
    std::vector<char> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&own, all.data(), sizeof own);
    return std::find(all.begin(), all.end(), 0) == all.end();
  }

 private:
  static constexpr std::size_t few = std::size_t{ShmemPlace::apart} * (3 + 5 * most_blocks);

  static std::vector<std::uint64_t> pattern(int pe) {
    std::vector<std::uint64_t> words(largest / 8);
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = (i + 1) * 0x9e3779b97f4a7c15u ^ static_cast<std::uint64_t>(pe + 1);
    return words;
  }

  World& world_;
  shmem::Heap heap_;
  bool quick_, leads_ = false;
  int peer_ = 0;
  shmem::Array<std::uint64_t> to_, from_, few_;
  ShmemPlace place_{};
  std::uint64_t signals_ = 0, additions_ = 0;
};

std::vector<ShmemRow> rows_of(Bench& bench, const std::vector<ShmemCase>& cases, int rounds) {
  std::vector<std::vector<double>> cycles(cases.size());
  const std::vector<double> times = timed_in_turn(cases.size(), rounds, [&](std::size_t i) {
    const ShmemSample sample = bench.sample(cases[i]);
    cycles[i].push_back(sample.cycles);
    return sample.seconds;
  });
  std::vector<ShmemRow> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cycles[i].erase(cycles[i].begin());  // of the round that leads
    rows.push_back({cases[i], bench.calls_of(cases[i]), times[i], median(cycles[i])});
  }
  return rows;
}

// How many of the first bytes of a PE's `to` the cases have filled.
std::uint64_t filled(const std::vector<ShmemCase>& cases, bool leads) {
  using enum ShmemCall;
  std::uint64_t most = 0;
  for (const ShmemCase& one : cases) {
    const bool signals = one.call == put_signal || one.call == p_signal;
    const bool puts = signals || one.call == put || one.call == p || one.call == fence || one.call == quiet;
    const bool gets = one.call == get || one.call == g;
    if (one.measure == ShmemMeasure::latency ? signals : leads ? gets : puts) most = std::max(most, one.bytes);
  }
  return most;
}

}  // namespace

int bench_shmem(const ShmemBenchRequest& request, const std::function<void(const ShmemBench&)>& report) {
  IMBREX_EXPECTS(request.ranks >= 2 && request.ranks <= max_ranks && request.ranks % 2 == 0,
                 "ranks = {}: PEs work in pairs, so it must be even, from 2 to {}", request.ranks, max_ranks);
  IMBREX_EXPECTS(request.rounds >= 1, "rounds = {}: there must be one at least", request.rounds);
  const std::vector<ShmemCase> cases = cases_of(request);
  IMBREX_EXPECTS(!cases.empty(), "none of these measures has one of these calls: nothing is timed");
  ShmemBenchRequest chosen = request;
  choose::GpuKind gpus;
  if (request.device != Device::cpu) {
    const bool own = World::launched() && request.device == Device::cuda;
    const std::string refusal = refusal_of_ranks(request.ranks, false, own, gpus, false, request.ranks_per_gpu);
    IMBREX_EXPECTS(refusal.empty() || request.device == Device::automatic, "device cuda: {}", refusal);
    chosen.device = refusal.empty() ? Device::cuda : Device::cpu;
  }
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.heap_bytes = 8 * largest;
  return run_ranks(request.ranks, false, options, [&](World& world) {
    Bench bench(world, chosen);
    ShmemBench result{bench.device(), bench.device() == Device::cuda ? gpus.name : "", {}};
    result.rows = rows_of(bench, cases, request.rounds);
    if (!bench.right(filled(cases, false), filled(cases, true)))
      throw Error(ErrorCode::unsound, "what was put or got is not what was sent");
    if (world.rank() == 0) report(result);
    return 0;
  });
}

}  // namespace imbrex::program
