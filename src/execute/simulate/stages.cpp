// What each kind of task does, stage by stage.
#include <algorithm>
#include <cmath>

#include "execute/simulate/engine.hpp"
#include "machine/rates.hpp"
#include "plan/work.hpp"
#include "problem/embedding.hpp"

namespace imbrex::simulate {
namespace {

std::vector<Region> targets_of(const Tile& tile) {
  std::vector<Region> targets;
  for (const Store& store : tile.stores) targets.push_back(store.to);
  return targets;
}

}  // namespace

// Called when nothing of the task's present stage is pending any more.
void Simulation::advance(std::uint32_t task) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  if (state.stage == Stage::gate) {
    // The stream has met the kernel's waits; the launch gap is what is left.
    QueueState& queue = queues_[flat.queue];
    if (state.waited) record(task, Span::Kind::wait);
    queue.opening = false;
    queue.kernel = flat.kernel;
    queue.unfinished = 0;
    const std::uint32_t end = program_.queues[flat.queue].end;
    for (std::uint32_t t = task; t < end && program_.tasks[t].kernel == flat.kernel; ++t) ++queue.unfinished;
    split(task, queue.unfinished);
    if (std::holds_alternative<Collective>(flat.task->work)) return dispatch(flat.queue);
    events_.after(machine_.launch_gap, EventKind::dispatch, flat.queue);
    queue.started = false;
    return;
  }
  if (advance_tail(task)) return;
  if (const auto* tile = std::get_if<Tile>(&flat.task->work)) return advance_tile(task, *tile);
  if (const auto* transfer = std::get_if<Transfer>(&flat.task->work)) return advance_transfer(task, *transfer);
  if (const auto* reduction = std::get_if<Reduction>(&flat.task->work)) return advance_reduction(task, *reduction);
  if (const auto* block = std::get_if<Block>(&flat.task->work)) return advance_block(task, *block);
  advance_collective(task, std::get<Collective>(flat.task->work));
}

// --------------------------------------------------------------------------------------------------------- tiles

// How many SMs share the depth of each block of a product's kernel, which begins at `first`: of its queue's part of
// those that no collective holds now, as many as end soonest. Each takes its part of the time, and then its turn to
// add.
void Simulation::split(std::uint32_t first, std::uint32_t count) {
  const FlatTask& flat = program_.tasks[first];
  const FlatQueue& queue = program_.queues[flat.queue];
  const auto* block = std::get_if<Tile>(&flat.task->work);
  if (block == nullptr) return;
  const std::uint32_t sms = workers_of(queue.pool) / std::max(program_.pools[queue.pool].products, 1u) / count;
  const TileModel model(machine_, plan_, plan_.ranks[queue.rank].queues[queue.index].tile, 0);
  for (std::uint32_t t = first; t < first + count; ++t) {
    const auto& tile = std::get<Tile>(program_.tasks[t].task->work);
    const double products = model.compute_seconds(tile.a.rows, tile.b.cols, tile.a.cols), load = load_seconds(tile),
                 parts = std::sqrt(std::max(products, load) / std::max(model.epilogue(), 1e-9));
    states_[t].split =
        static_cast<std::uint32_t>(std::clamp(std::round(parts), 1.0, static_cast<double>(std::max(1u, sms))));
  }
}

void Simulation::advance_tile(std::uint32_t task, const Tile& tile) {
  State& state = states_[task];
  switch (state.stage) {
    case Stage::load:
      if (state.waited) record(task, Span::Kind::wait);
      if (state.depth > 0) return multiply(task, tile);
      state.stage = Stage::fixed;
      return timer(task, tiles_[program_.tasks[task].queue].prologue());
    case Stage::fixed: load_operands(task, tile); return multiply(task, tile);
    case Stage::work:
      if (state.depth < tile.a.cols) {
        state.stage = Stage::load;
        if (!blocked(task, WaitPoint::load, state.depth)) return multiply(task, tile);
        return record(task, Span::Kind::compute);
      }
      state.stage = Stage::epilogue;
      if (!blocked(task, WaitPoint::epilogue, 0)) return advance_tile(task, tile);
      return record(task, Span::Kind::compute);
    case Stage::epilogue:
      if (state.waited) record(task, Span::Kind::wait);
      state.stage = Stage::finish;
      // What several SMs have computed is added part by part.
      timer(task, tiles_[program_.tasks[task].queue].epilogue() * states_[task].split);
      return read(task, tile.adds);
    default:  // finish
      caches_[program_.tasks[task].rank].release(tile.a);
      caches_[program_.tasks[task].rank].release(tile.b);
      record(task, Span::Kind::compute);
      return store(task, targets_of(tile));
  }
}

void Simulation::load_operands(std::uint32_t task, const Tile& tile) {
  PanelCache& cache = caches_[program_.tasks[task].rank];
  const int own = static_cast<int>(program_.tasks[task].rank);
  State& state = states_[task];
  state.missing = 0;
  state.streams = 0;
  const auto miss = [&](const Region& panel) {
    state.missing += bytes_of(panel);
    ++state.streams;
  };
  // A peer's panel comes over the link each time: peers' data is not kept in the reader's L2.
  if (!cache.acquire(tile.a, bytes_of(tile.a)) && tile.a.rank == own) miss(tile.a);
  if (!cache.acquire(tile.b, bytes_of(tile.b))) miss(tile.b);
}

// Products of the columns that may be read now: up to the next slice that has a wait of its own.
void Simulation::multiply(std::uint32_t task, const Tile& tile) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  state.stage = Stage::work;
  std::int64_t end = tile.a.cols;
  for (const Wait& wait : flat.task->waits)
    if (wait.point == WaitPoint::load && wait.k_begin > state.depth) end = std::min(end, wait.k_begin);
  const double share = tile.a.cols > 0 ? static_cast<double>(end - state.depth) / static_cast<double>(tile.a.cols) : 0;
  const double products = tiles_[flat.queue].compute_seconds(tile.a.rows, tile.b.cols, end - state.depth);
  state.depth = end;
  timer(task, std::max(products, load_seconds(tile) * share) / state.split);
  // The tiles that share a panel all read it; whichever of them it is charged to takes no longer than they do.
  load(task, state.missing * share, state.split * state.streams);
  if (tile.a.rank != static_cast<int>(flat.rank))
    send(task, tile.a.rank, static_cast<int>(flat.rank), bytes_of(tile.a) * share, true);
}

// ------------------------------------------------------------------------------------ transfers and reductions

void Simulation::advance_transfer(std::uint32_t task, const Transfer& transfer) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  const bool engine = program_.queues[flat.queue].engine == Engine::copy,
             alone = program_.queues[flat.queue].engine != Engine::compute;
  const double bytes = bytes_of(transfer.from);
  switch (state.stage) {
    case Stage::load:
      if (state.waited) record(task, Span::Kind::wait);
      if (transfer.from.empty() || transfer.to.empty()) return sent(task);
      state.stage = Stage::fixed;
      return timer(task, engine ? machine_.copy_fixed.value : 0.0);
    case Stage::fixed:
      if (transfer.from.rank != transfer.to.rank) {
        state.stage = Stage::send;
        return send(task, transfer.from.rank, transfer.to.rank, bytes, false);
      }
      state.stage = Stage::work;
      // A copy within a device competes with tiles as a kernel of its own would: with the weight of all SMs.
      return load(task, 2 * bytes, alone ? machine_.sms.value : 1.0);
    default: return sent(task);
  }
}

void Simulation::advance_reduction(std::uint32_t task, const Reduction& reduction) {
  State& state = states_[task];
  if (state.stage == Stage::load) {
    if (state.waited) record(task, Span::Kind::wait);
    state.stage = Stage::work;
    timer(task, 0);
    return read(task, reduction.from);
  }
  record(task, Span::Kind::reduction);
  store(task, reduction.to);
}

// A share takes its part of the block's time; rows here and there take longer than their bytes one after the other.
void Simulation::advance_block(std::uint32_t task, const Block& block) {
  State& state = states_[task];
  const FlatTask& flat = program_.tasks[task];
  if (state.stage == Stage::load) {
    if (state.waited) record(task, Span::Kind::wait);
    state.stage = Stage::work;
    if (shards_.empty()) shards_ = problem::shards_of_ranks(plan_.problem);
    const plan::WorkCost cost =
        plan::descriptor_of(block.kind).cost({plan_, block, static_cast<int>(flat.rank), &shards_});
    const double share = 1.0 / block.shares;
    const bool alone = program_.queues[flat.queue].engine == Engine::library;
    const double workers = alone ? machine_.sms.value : 1.0;
    const auto rate = machine_.sm_rate.find(Type::fp32);
    timer(task, rate == machine_.sm_rate.end() ? 0.0 : share * cost.flops / (rate->second * workers));
    double bytes = cost.bytes;
    if (cost.random_rows > 0)
      bytes += cost.random_rows * machine::random_row_seconds(machine_, cost.row_bytes) * machine_.memory_bandwidth;
    load(task, share * bytes, workers);
    return read(task, block.reads);
  }
  record(task, Span::Kind::compute);
  std::vector<Region> targets;
  for (const Store& s : block.stores) targets.push_back(s.to);
  store(task, targets, 1.0 / block.shares);
}

void Simulation::advance_collective(std::uint32_t task, const Collective& collective) {
  if (states_[task].stage != Stage::load) return sent(task);
  if (states_[task].waited) record(task, Span::Kind::wait);
  states_[task].stage = Stage::work;
  join(task, collective);
}

// ---------------------------------------------------------------------------------------------------------- tails

// All bytes have left: the SM or engine is free, unless the engine has a flag to write.
void Simulation::sent(std::uint32_t task) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  if (state.stage != Stage::flag && program_.queues[flat.queue].engine == Engine::copy && !flat.task->posts.empty()) {
    state.stage = Stage::flag;
    return timer(task, machine_.copy_flag);
  }
  // What is not recorded yet is the time in which the SM or engine was held by its bytes.
  record(task, std::holds_alternative<Collective>(flat.task->work) ? Span::Kind::collective : Span::Kind::copy);
  state.stage = Stage::settle;
  leave(task);
  settle(task);
}

// Once all bytes have arrived: the fence where a peer must see them, then the posts.
void Simulation::settle(std::uint32_t task) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  if (state.stage != Stage::settle || state.arriving > 0) return;
  bool remote = state.remote && !flat.task->posts.empty();
  for (const Post& post : flat.task->posts) remote = remote || post.rank != static_cast<int>(flat.rank);
  if (!remote || program_.queues[flat.queue].engine != Engine::compute) return complete(task);
  state.stage = Stage::fence;
  timer(task, machine_.fence);
}

bool Simulation::advance_tail(std::uint32_t task) {
  switch (states_[task].stage) {
    case Stage::flag: sent(task); return true;
    case Stage::fence: complete(task); return true;
    default: return false;
  }
}

}  // namespace imbrex::simulate
