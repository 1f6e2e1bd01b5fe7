// Scheduling: queues, kernels, workers, waits and posts.
#include "execute/simulate/engine.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "execute/simulate/hosts.hpp"
#include "execute/simulate/levels.hpp"
#include "machine/rates.hpp"
#include "problem/products.hpp"

namespace imbrex::simulate {

Simulation::Simulation(const Plan& plan, const Program& program, const Machine& machine,
                       const std::vector<double>& starts, bool timeline)
    : plan_(plan),
      program_(program),
      machine_(machine),
      starts_(starts),
      recorder_(timeline, plan.ranks.size()),
      links_(machine, plan.ranks.size(), events_, *this),
      states_(program.tasks.size()),
      queues_(program.queues.size()),
      pools_(program.pools.size()),
      signals_(program.first_signal.back()),
      collecting_(plan.ranks.size()),
      ends_(starts) {
  const RankShapes shapes = shapes_of(plan.problem);
  rate_of_a_ = machine::load_rate(machine, problem::pitch_of_a(plan.problem, shapes));
  rate_of_b_ = machine::load_rate(machine, problem::pitch_of_b(plan.problem, shapes));
  const auto block_of = [&](const FlatQueue& queue) { return plan.ranks[queue.rank].queues[queue.index].tile; };
  std::vector<double> flops(plan.ranks.size());
  for (const FlatTask& task : program.tasks)
    if (const Tile* tile = std::get_if<Tile>(&task.task->work))
      flops[task.rank] += TileModel::flops(block_of(program.queues[task.queue]), *tile);
  for (const FlatQueue& queue : program.queues) tiles_.emplace_back(machine, plan, block_of(queue), flops[queue.rank]);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    caches_.emplace_back(machine.l2_bytes);
    memory_.emplace_back(machine.memory_bandwidth, machine.sm_memory_bandwidth);
  }
  for (std::uint32_t p = 0; p < pools_.size(); ++p)
    for (std::uint32_t w = 0; w < program.pools[p].workers; ++w) pools_[p].free.insert(program.pools[p].first + w);
  for (std::uint32_t q = 0; q < queues_.size(); ++q) {
    const FlatQueue& queue = program.queues[q];
    if (queue.pool != none) pools_[queue.pool].queues.push_back(q);
    queues_[q].next = queue.begin;
    // A collective's curve has its launch in it; streams pay the gap kernel by kernel.
    const bool pays = queue.engine != Engine::library;
    events_.at(starts[queue.rank] + (pays ? machine.launch_gap.value : 0.0), EventKind::dispatch, q);
  }
}

Report Simulation::run() {
  while (!events_.empty()) handle(events_.pop());
  if (completed_ < program_.tasks.size()) throw_stuck();
  Report report;
  for (std::size_t rank = 0; rank < ends_.size(); ++rank)
    report.seconds = std::max(report.seconds, ends_[rank] - starts_[rank]);
  IMBREX_EXPECTS(std::isfinite(report.seconds), "the simulated time is not finite; a rate of machine '{}' is too small",
                 machine_.name);
  report.timeline.spans = recorder_.take();
  return report;
}

void Simulation::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::dispatch:
      queues_[event.a].started = true;
      dispatch(event.a);
      break;
    case EventKind::step:
      if (--states_[event.a].pending == 0) advance(event.a);
      break;
    case EventKind::wake: advance(event.a); break;
    case EventKind::memory: {
      if (event.b != memory_[event.a].generation()) break;
      ended_.clear();
      memory_[event.a].collect(now(), ended_);
      forecast_memory(event.a);
      for (const std::uint32_t task : std::vector<std::uint32_t>(ended_))
        if (--states_[task].pending == 0) advance(task);
      break;
    }
    case EventKind::egress_free:
    case EventKind::chunk_done:
    case EventKind::flow_arrived: links_.handle(event); break;
    case EventKind::post: post(event.a, event.b); break;
    case EventKind::collective_done: finish_group(event.a); break;
  }
}

// ------------------------------------------------------------------------------------------------ taking tasks

void Simulation::dispatch(std::uint32_t q) {
  QueueState& queue = queues_[q];
  const FlatQueue& flat = program_.queues[q];
  while (queue.started && queue.next < flat.end) {
    if (flat.engine == Engine::copy && queue.running > 0) return;
    if (flat.engine == Engine::library && !kernel_open(q)) return;
    // A collective's SMs are not those of any one task.
    const bool on_worker =
        flat.pool != none && !std::holds_alternative<Collective>(program_.tasks[queue.next].task->work);
    const std::uint32_t worker = on_worker ? find_worker(q) : none;
    if (on_worker && worker == none) return;
    const std::uint32_t task = queue.next++;
    ++queue.running;
    states_[task].worker = worker;
    states_[task].stage = Stage::load;
    states_[task].begin = now();
    if (flat.engine == Engine::compute) states_[task].split = program_.tasks[task].split;
    if (!blocked(task, WaitPoint::load, 0)) advance(task);
  }
}

// Library queues: a kernel is launched once its waits (events of other streams) are met and its predecessor has
// completed.
bool Simulation::kernel_open(std::uint32_t q) {
  QueueState& queue = queues_[q];
  const std::uint32_t task = queue.next;
  const FlatTask& flat = program_.tasks[task];
  if (queue.kernel == flat.kernel) return true;
  if (queue.opening || queue.unfinished > 0) return false;
  const bool collective = std::holds_alternative<Collective>(flat.task->work);
  // A collective's curve has its launch in it.
  if (collective && !blocked(task, WaitPoint::load, 0)) {
    queue.kernel = flat.kernel;
    queue.unfinished = 1;
    return true;
  }
  queue.opening = true;
  states_[task].stage = Stage::gate;
  states_[task].begin = now();
  if (!collective && !blocked(task, WaitPoint::load, std::numeric_limits<std::int64_t>::max()))
    events_.after(0, EventKind::wake, task);
  return false;
}

// A free worker of the queue's pool, or none. A queue that runs nothing gets one even if its pool is exhausted: queues
// that share workers must not starve each other into a deadlock that the plan does not have.
std::uint32_t Simulation::find_worker(std::uint32_t q) {
  const std::uint32_t p = program_.queues[q].pool;
  const Pool& flat = program_.pools[p];
  PoolState& pool = pools_[p];
  if (pool.held >= workers_of(p) && queues_[q].running > 0) return none;
  ++pool.held;
  if (pool.free.empty()) return flat.first + flat.workers + program_.queues[q].index;
  const std::uint32_t worker = *pool.free.begin();
  pool.free.erase(pool.free.begin());
  return worker;
}

// Workers of the pool that no collective holds now.
std::uint32_t Simulation::workers_of(std::uint32_t p) const {
  const Pool& pool = program_.pools[p];
  const auto sms = static_cast<std::uint32_t>(machine_.collective_sms.value);
  const std::uint32_t taken = pool.shared && collecting_[pool.rank] > 0 && sms > pool.kept ? sms - pool.kept : 0;
  return pool.workers > taken ? pool.workers - taken : 1;
}

void Simulation::free_pool(std::uint32_t p) {
  for (const std::uint32_t q : pools_[p].queues) dispatch(q);
}

// The task gives its worker or engine back; its bytes may still be on their way.
void Simulation::leave(std::uint32_t task) {
  const std::uint32_t q = program_.tasks[task].queue;
  const std::uint32_t p = program_.queues[q].pool, worker = states_[task].worker;
  --queues_[q].running;
  if (worker == none) {
    dispatch(q);
    return;
  }
  --pools_[p].held;
  if (worker < program_.pools[p].first + program_.pools[p].workers) pools_[p].free.insert(worker);
  free_pool(p);
}

void Simulation::complete(std::uint32_t task) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  state.stage = Stage::done;
  ++completed_;
  ends_[flat.rank] = std::max(ends_[flat.rank], now());
  const bool kernel = program_.queues[flat.queue].engine == Engine::library;
  const bool ends = !kernel || --queues_[flat.queue].unfinished == 0;
  if (!ends) return;
  for (const Post& post : flat.whole->posts) {
    const bool local = post.rank == static_cast<int>(flat.rank);
    // In streams a rank's own signals stand for stream order, which the launch gap already pays.
    const bool across = host_of(machine_, static_cast<int>(flat.rank)) != host_of(machine_, post.rank);
    const double latency = across ? machine_.host_latency
                           : !local
                               ? machine_.flag_latency + way_latency(machine_, static_cast<int>(flat.rank), post.rank)
                           : program_.streams ? 0.0
                                              : machine_.flag_latency_local.value;
    events_.after(latency, EventKind::post, static_cast<std::uint32_t>(post.rank),
                  static_cast<std::uint64_t>(post.signal));
  }
  if (kernel) dispatch(flat.queue);
}

// ------------------------------------------------------------------------------------------------------ signals

std::uint32_t Simulation::signal_of(std::uint32_t rank, int signal) const {
  return program_.first_signal[rank] + static_cast<std::uint32_t>(signal);
}

// Registers the task at every unmet wait of that point up to column `depth`; true if there is one.
bool Simulation::blocked(std::uint32_t task, WaitPoint point, std::int64_t depth) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  for (const Wait& wait : flat.task->waits) {
    if (wait.point != point || (point == WaitPoint::load && wait.k_begin > depth)) continue;
    Signal& signal = signals_[signal_of(flat.rank, wait.signal)];
    if (signal.posts >= wait.count) continue;
    signal.waiting.push_back({wait.count, task});
    std::push_heap(signal.waiting.begin(), signal.waiting.end());
    ++state.waits_left;
    if (state.waits_left == 1) state.waits_for = static_cast<std::uint32_t>(&wait - flat.task->waits.data());
  }
  state.waited = state.waits_left > 0;
  return state.waited;
}

void Simulation::post(std::uint32_t rank, std::uint64_t index) {
  Signal& signal = signals_[program_.first_signal[rank] + index];
  ++signal.posts;
  while (!signal.waiting.empty() && signal.waiting.front().count <= signal.posts) {
    const std::uint32_t task = signal.waiting.front().task;
    std::pop_heap(signal.waiting.begin(), signal.waiting.end());
    signal.waiting.pop_back();
    if (--states_[task].waits_left == 0)
      events_.after(program_.streams ? 0.0 : machine_.poll.value, EventKind::wake, task);
  }
}

// ------------------------------------------------------------------------------------------------------- messages

std::string Simulation::place(std::uint32_t task) const {
  const FlatTask& flat = program_.tasks[task];
  return task_name(plan_, static_cast<int>(flat.rank), static_cast<int>(program_.queues[flat.queue].index), flat.index);
}

void Simulation::throw_stuck() const {
  // A task that waits for a signal says more than one that waits for its turn or for a collective's other ranks.
  for (std::uint32_t task = 0; task < states_.size(); ++task) {
    const State& state = states_[task];
    if (state.stage == Stage::done || state.waits_left == 0) continue;
    const FlatTask& flat = program_.tasks[task];
    const Wait& wait = flat.task->waits[state.waits_for];
    throw Error(ErrorCode::unsound,
                fmt::format("the plan deadlocks: {} waits for signal {} to reach {}, which has {}", place(task),
                            wait.signal, wait.count, signals_[signal_of(flat.rank, wait.signal)].posts));
  }
  for (const Group& group : groups_)
    if (!group.members.empty() && group.members.size() < group.ranks.size())
      throw Error(ErrorCode::unsound,
                  fmt::format("the plan deadlocks: {} waits for the other ranks of its collective; {} of {} came",
                              place(group.members.front()), group.members.size(), group.ranks.size()));
  throw Error(ErrorCode::unsound, "the plan deadlocks");
}

std::string Simulation::row(std::uint32_t task) const {
  const FlatQueue& queue = program_.queues[program_.tasks[task].queue];
  if (queue.engine == Engine::compute || states_[task].worker != none)
    return fmt::format("sm {}", states_[task].worker == none ? 0 : states_[task].worker);
  const std::string_view name = queue.engine == Engine::copy ? "copy engine" : "collectives";
  int before = 0;
  for (const FlatQueue& other : program_.queues)
    before += other.rank == queue.rank && other.engine == queue.engine && other.index < queue.index;
  return before == 0 ? std::string(name) : fmt::format("{} {}", name, before);
}

void Simulation::record(std::uint32_t task, Span::Kind kind) {
  const FlatTask& flat = program_.tasks[task];
  State& state = states_[task];
  const double begin = state.begin;
  state.begin = now();
  if (!recorder_.enabled()) return;
  recorder_.add(flat.rank, row(task), kind, begin, now(), [&] {
    if (kind == Span::Kind::wait) {
      const Wait& wait = flat.task->waits.at(state.waits_for);
      return fmt::format("wait signal {} for {}", wait.signal, wait.count);
    }
    const auto block = [&](std::string_view what, const Region& r) {
      return fmt::format("{} rows {}+{} cols {}+{}", what, r.row, r.rows, r.col, r.cols);
    };
    const std::string_view prefix = kind == Span::Kind::copy ? "store " : "";
    if (std::holds_alternative<Tile>(flat.task->work)) return std::string(prefix) + label(*flat.task);
    if (const Transfer* transfer = std::get_if<Transfer>(&flat.task->work))
      return transfer->from.empty()
                 ? std::string("signal")
                 : block(fmt::format("copy rank {} to {}", transfer->from.rank, transfer->to.rank), transfer->from);
    if (const Reduction* reduction = std::get_if<Reduction>(&flat.task->work))
      return reduction->to.empty() ? std::string("reduce") : block("reduce", reduction->to.front());
    if (std::holds_alternative<Block>(flat.task->work)) return std::string(prefix) + label(*flat.task);
    return std::string(imbrex::name_of(std::get<Collective>(flat.task->work).kind));
  });
}

}  // namespace imbrex::simulate
