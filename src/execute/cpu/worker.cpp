#include "execute/cpu/worker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "base/narrow.hpp"
#include "execute/circumstances.hpp"
#include "imbrex/error.hpp"
#include "plan/product_blocks.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::execute {
namespace {

// Rounds without progress before a worker yields, and before it sleeps: a machine may have far more ranks than cores.
constexpr int rounds_before_yield = 64, rounds_before_sleep = 256;
constexpr auto sleep_time = std::chrono::microseconds(50);

}  // namespace

Worker::Worker(RankEpoch& shared, int index) : shared_(shared), index_(index), kernels_(shared.memory) {
  const auto& queues = shared.plan.ranks[static_cast<std::size_t>(shared.world.rank())].queues;
  for (int q = 0; q < std::ssize(queues); ++q) {
    const Engine engine = queues[static_cast<std::size_t>(q)].engine;
    if (index > 0 && engine == Engine::copy) continue;
    Lane lane;
    lane.queue = q;
    lane.helps = index > 0 && engine == Engine::library;
    lanes_.push_back(std::move(lane));
  }
  std::seed_seq seed{shared.options.testing.delays, shared.epoch, static_cast<std::uint64_t>(shared.world.rank()),
                     static_cast<std::uint64_t>(index)};
  random_.seed(seed);
}

const Queue& Worker::queue_of(const Lane& lane) const {
  return shared_.plan.ranks[static_cast<std::size_t>(shared_.world.rank())]
      .queues[static_cast<std::size_t>(lane.queue)];
}

const Task& Worker::task_of(const Lane& lane) const { return queue_of(lane).tasks[lane.task]; }

void Worker::run() {
  const runtime::WaitLimits limits = runtime::limits_of(shared_.world.options());
  runtime::BoundedWait wait(limits, base::monotonic_seconds());
  int rounds = 0;
  for (;;) {
    bool progress = false, left = false;
    for (Lane& lane : lanes_) {
      if (!lane.exhausted) progress |= step(lane);
      left |= !lane.exhausted;
    }
    if (!left) return;
    if (progress) {
      rounds = 0;
      wait = runtime::BoundedWait(limits, base::monotonic_seconds());
      // A long queue must still notice a lost peer.
      shared_.world.throw_if_failed();
      throw_if_stopped();
    } else {
      idle(wait, rounds);
    }
  }
}

void Worker::throw_if_stopped() const {
  if (shared_.stop.load(std::memory_order_relaxed))
    throw Error(ErrorCode::runtime_failure, "another worker of this rank failed");
}

void Worker::idle(runtime::BoundedWait& wait, int& rounds) {
  shared_.world.throw_if_failed();
  throw_if_stopped();
  ++rounds;
  if (rounds < rounds_before_yield) return;
  if (rounds < rounds_before_sleep) return std::this_thread::yield();
  std::this_thread::sleep_for(sleep_time);
  // Who only helps waits for worker 0, whose waits have the limit.
  if (std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.helps || lane.exhausted; })) return;
  std::vector<int> late;
  const auto look = [&] { return !(late = runtime::late_ranks(shared_.world, runtime::Counted::cpu)).empty(); };
  const WorldOptions& limits = shared_.world.options();
  using enum runtime::BoundedWait::Verdict;
  switch (wait.judge(base::monotonic_seconds(), look)) {
    case going_on: break;
    case tell_of_late:
      runtime::tell_late(shared_.world, late, execute::call_text(shared_.world, shared_.plan.problem));
      break;
    case late_rank: fail(diagnose(limits.entry_limit));
    case lost: fail(diagnose(limits.wait_limit));
  }
}

void Worker::fail(const std::string& diagnosis) const {
  const std::string message = diagnosis + execute::circumstances(shared_.world, shared_.plan.problem, "this call");
  shared_.world.fail(message);
  throw Error(ErrorCode::runtime_failure, message);
}

std::string Worker::diagnose(double limit) const {
  for (const Lane& lane : lanes_) {
    if (!lane.taken) continue;
    const Task& task = task_of(lane);
    const std::string where = task_name(shared_.plan, shared_.world.rank(), lane.queue, lane.task);
    for (const Wait& wait : task.waits) {
      const std::uint32_t seen = shared_.memory.seen(wait.signal),
                          expected = shared_.memory.expected(wait.signal, wait.count);
      if (!reached(seen, expected))
        return fmt::format("{} waited longer than {} s for signal {} in epoch {}: expected {} posts, saw {}", where,
                           limit, wait.signal, shared_.epoch, wait.count,
                           base::wrapped<std::int32_t>(seen - (expected - wait.count)));
    }
    return fmt::format("{} waited longer than {} s for the other ranks in epoch {}", where, limit, shared_.epoch);
  }
  return fmt::format("rank {} made no progress for {} s in epoch {}", shared_.world.rank(), limit, shared_.epoch);
}

void Worker::pause() {
  if (shared_.options.testing.delays == 0 || !std::bernoulli_distribution(0.15)(random_)) return;
  std::this_thread::sleep_for(std::chrono::duration<double>(
      std::uniform_real_distribution<double>(0, shared_.options.testing.max_delay)(random_)));
}

bool Worker::take(Lane& lane) {
  const auto queue = static_cast<std::size_t>(lane.queue);
  lane.task = shared_.heads[queue].fetch_add(1, std::memory_order_relaxed);
  if (lane.task >= queue_of(lane).tasks.size()) {
    lane.exhausted = true;
    if (queue_of(lane).engine == Engine::library) shared_.products[queue].end();
    return false;
  }
  lane.taken = true;
  lane.phase = 0;
  lane.k = 0;
  pause();
  return true;
}

bool Worker::step(Lane& lane) {
  if (lane.helps) {
    lane.exhausted = shared_.products[static_cast<std::size_t>(lane.queue)].ended();
    return !lane.exhausted && take_block(lane);
  }
  if (!lane.taken && !take(lane)) return false;
  const Task& task = task_of(lane);
  if (const auto* tile = std::get_if<Tile>(&task.work)) return step_tile(lane, task, *tile);
  if (const auto* collective = std::get_if<Collective>(&task.work)) return step_collective(lane, task, *collective);
  if (const auto* product = std::get_if<Product>(&task.work)) return step_product(lane, task, *product);
  return step_simple(lane, task);
}

template <typename Needed>
bool Worker::met(Lane& lane, const Task& task, Needed&& needed) {
  for (const Wait& wait : task.waits) {
    if (!needed(wait) || reached(shared_.memory.seen(wait.signal), shared_.memory.expected(wait.signal, wait.count)))
      continue;
    if (shared_.options.timeline && lane.blocked_since < 0) lane.blocked_since = base::monotonic_seconds();
    return false;
  }
  if (lane.blocked_since >= 0) {
    const double since = lane.blocked_since;
    lane.blocked_since = -1;
    timed(lane, Span::Kind::wait, [] {});
    spans.back().begin = since;
    spans.back().name = "wait: " + spans.back().name;
  }
  return true;
}

template <typename F>
void Worker::timed(const Lane& lane, Span::Kind kind, F&& work) {
  if (!shared_.options.timeline) return work();
  const double begin = base::monotonic_seconds();
  work();
  const Engine engine = queue_of(lane).engine;
  const std::string row = engine == Engine::copy                                     ? "copy queue"
                          : engine == Engine::library && kind != Span::Kind::compute ? "library"
                                                                                     : fmt::format("worker {}", index_);
  spans.push_back({shared_.world.rank(), row, label(task_of(lane)), kind, begin, base::monotonic_seconds()});
}

void Worker::done(Lane& lane, const Task& task) {
  pause();
  for (const Post& post : task.posts) shared_.memory.post(post.rank, post.signal);
  lane.taken = false;
}

bool Worker::step_tile(Lane& lane, const Task& task, const Tile& tile) {
  const std::int64_t depth = tile.a.cols;
  if (lane.k < depth) {
    // The cut along K is the plan's, not the arrival's: sums come out the same every time.
    std::int64_t end = depth;
    for (const Wait& wait : task.waits)
      if (wait.point == WaitPoint::load && wait.k_begin > lane.k) end = std::min(end, wait.k_begin);
    if (!met(lane, task, [&](const Wait& w) { return w.point == WaitPoint::load && w.k_begin <= lane.k; }))
      return false;
    pause();
    timed(lane, Span::Kind::compute, [&] { kernels_.multiply(tile, lane.k, end, lane.product); });
    lane.k = end;
    return true;
  }
  if (!met(lane, task, [](const Wait&) { return true; })) return false;
  pause();
  kernels_.finish(tile, lane.product);
  done(lane, task);
  return true;
}

// Blocks are the plan's, so sums do not depend on which worker takes them.
bool Worker::take_block(Lane& lane) {
  OpenProduct& open = shared_.products[static_cast<std::size_t>(lane.queue)];
  const auto blocks_of = [&](std::size_t task) {
    return plan::ProductBlocks(std::get<Product>(queue_of(lane).tasks[task].work), queue_of(lane).tile,
                               shared_.plan.problem.scales);
  };
  const auto left = [&](const std::optional<OpenProduct::Place>& place) {
    return place && place->block < blocks_of(place->task).count();
  };
  if (!left(open.look())) return false;
  const auto place = open.take();
  if (!left(place)) return false;
  lane.task = place->task;
  pause();
  const Tile tile = blocks_of(place->task).at(place->block);
  timed(lane, Span::Kind::compute, [&] {
    kernels_.multiply(tile, 0, tile.a.cols, lane.product);
    kernels_.finish(tile, lane.product);
  });
  open.finish_block();
  return true;
}

bool Worker::step_product(Lane& lane, const Task& task, const Product& product) {
  OpenProduct& open = shared_.products[static_cast<std::size_t>(lane.queue)];
  if (lane.phase == 0) {
    if (!met(lane, task, [](const Wait&) { return true; })) return false;
    open.open(lane.task);
    lane.phase = 1;
  }
  if (take_block(lane)) return true;
  if (open.done() < plan::ProductBlocks(product, queue_of(lane).tile, shared_.plan.problem.scales).count()) {
    std::this_thread::yield();  // others multiply the last blocks, which has no limit
    return true;
  }
  done(lane, task);
  return true;
}

bool Worker::step_simple(Lane& lane, const Task& task) {
  if (!met(lane, task, [](const Wait&) { return true; })) return false;
  pause();
  if (const auto* block = std::get_if<Block>(&task.work))
    timed(lane, Span::Kind::compute, [&] {
      kernels_.block({shared_.plan, *block, shared_.world.rank()}, lane.product);
    });
  else if (const auto* transfer = std::get_if<Transfer>(&task.work))
    timed(lane, transfer->from.empty() ? Span::Kind::signal : Span::Kind::copy, [&] { kernels_.transfer(*transfer); });
  else
    timed(lane, Span::Kind::reduction, [&] { kernels_.reduce(std::get<Reduction>(task.work)); });
  done(lane, task);
  return true;
}

// Every rank that the collective joins announces itself to all of them, takes what it needs from their memory once all
// are there, says so, and leaves when all have taken what they need from it. In a send_receive, it announces itself to
// the rank that it sends to, and tells the one that it receives from.
bool Worker::step_collective(Lane& lane, const Task& task, const Collective& collective) {
  const auto place = shared_.collectives.find(collective.group);
  const auto& parts = place->second;
  const int group = base::narrow<int>(std::distance(shared_.collectives.begin(), place), "collectives"),
            rank = shared_.world.rank();
  const auto post = [&](int to, int stage) {
    shared_.memory.post(to, shared_.layout.collective_signal(to, group, stage));
  };
  const auto post_all = [&](int stage) {
    if (collective.kind == CollectiveKind::send_receive)
      return post(stage == 0 ? collective.send_to : collective.receive_from, stage);
    for (const Collective* part : parts) post(part->to.rank, stage);
  };
  const auto all_posted = [&](int stage) {
    const int signal = shared_.layout.collective_signal(rank, group, stage);
    return reached(shared_.memory.seen(signal), shared_.memory.expected(signal, shared_.layout.posts(rank, signal)));
  };
  switch (lane.phase) {
    case 0:
      if (!met(lane, task, [](const Wait&) { return true; })) return false;
      pause();
      post_all(0);
      break;
    case 1:
      if (!all_posted(0)) return false;
      timed(lane, Span::Kind::collective, [&] { kernels_.collective(collective, parts); });
      post_all(1);
      break;
    default:
      if (!all_posted(1)) return false;
      done(lane, task);
      return true;
  }
  ++lane.phase;
  return true;
}

}  // namespace imbrex::execute
