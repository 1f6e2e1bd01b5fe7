// What tasks use: timers, memory, links and library collectives.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.hpp"
#include "execute/simulate/engine.hpp"
#include "execute/simulate/hosts.hpp"
#include "execute/simulate/levels.hpp"
#include "machine/rates.hpp"
#include "plan/problem.hpp"

namespace imbrex::simulate {

void Simulation::timer(std::uint32_t task, double seconds) {
  ++states_[task].pending;
  events_.after(seconds, EventKind::step, task);
}

void Simulation::load(std::uint32_t task, double bytes, double weight) {
  if (bytes <= 0) return;
  const std::uint32_t rank = program_.tasks[task].rank;
  ++states_[task].pending;
  memory_[rank].start(now(), task, bytes, weight);
  forecast_memory(rank);
}

void Simulation::forecast_memory(std::uint32_t rank) {
  const double time = memory_[rank].next(now());
  if (std::isfinite(time)) events_.at(time, EventKind::memory, rank, memory_[rank].generation());
}

// `beside`: flows among which an SM shares its rate, this one counted.
void Simulation::send(std::uint32_t task, int from, int to, double bytes, bool read, int beside) {
  const bool engine = program_.queues[program_.tasks[task].queue].engine != Engine::compute;
  State& state = states_[task];
  Flow flow;
  flow.source = static_cast<std::uint32_t>(from);
  flow.target = static_cast<std::uint32_t>(to);
  flow.task = task;
  flow.bytes = bytes;
  // What is fetched must first be asked for.
  const bool fetched = static_cast<int>(program_.tasks[task].rank) == to;
  const bool pulls = fetched && machine_.copy_pull_bandwidth > 0;
  const double copies = pulls ? machine_.copy_pull_bandwidth : machine_.copy_bandwidth;
  flow.rate = engine ? copies : machine_.store_sm_bandwidth / beside;
  if (!engine) flow.device_rate = machine_.store_bandwidth;
  flow.across = host_of(machine_, from) != host_of(machine_, to);
  const double latency =
      flow.across ? machine_.host_latency.value : machine_.link_latency + way_latency(machine_, from, to);
  flow.latency = latency * (fetched ? 2 : 1) + (engine ? machine_.copy_latency.value : 0.0);
  if (flow.across) flow.bytes += machine_.host_message * machine_.host_bandwidth;
  flow.read = read;
  flow.stores = !engine && !read;
  if (read) {
    ++state.pending;
  } else {
    ++state.sending;
    ++state.arriving;
    state.remote = true;
  }
  links_.start(flow);
}

// Local stores go through the L2 to memory and no task waits for them; remote ones hold the SM until they have left.
void Simulation::store(std::uint32_t task, const std::vector<Region>& regions, double share) {
  const std::uint32_t rank = program_.tasks[task].rank;
  states_[task].stage = Stage::send;
  states_[task].sending = 1;  // this call, until every flow has been started
  const auto remote = static_cast<int>(std::count_if(regions.begin(), regions.end(), [&](const Region& region) {
    return region.rank != static_cast<int>(rank) && !region.empty();
  }));
  for (const Region& region : regions) {
    const double bytes = share * bytes_of(region);
    if (region.rank != static_cast<int>(rank)) {
      if (bytes > 0) send(task, static_cast<int>(rank), region.rank, bytes, false, remote);
    } else {
      memory_[rank].charge(now(), bytes);
    }
  }
  forecast_memory(rank);
  if (--states_[task].sending == 0) sent(task);
}

void Simulation::read(std::uint32_t task, const std::vector<Region>& regions) {
  const int own = static_cast<int>(program_.tasks[task].rank);
  double local = 0;
  for (const Region& region : regions) {
    if (region.rank == own)
      local += bytes_of(region);
    else if (!region.empty())
      send(task, region.rank, own, bytes_of(region), true);
  }
  // A kernel of its own takes all SMs.
  const bool alone = program_.queues[program_.tasks[task].queue].engine == Engine::library &&
                     !std::holds_alternative<Tile>(program_.tasks[task].task->work);
  load(task, local, alone ? machine_.sms.value : 1.0);
}

void Simulation::flow_sent(std::uint32_t id) {
  const Flow& flow = links_.flow(id);
  if (!flow.read && --states_[flow.task].sending == 0) sent(flow.task);
}

void Simulation::flow_arrived(std::uint32_t id) {
  const Flow flow = links_.flow(id);
  State& state = states_[flow.task];
  if (flow.read) {
    if (--state.pending == 0) advance(flow.task);
    return;
  }
  if (--state.arriving == 0) settle(flow.task);
}

void Simulation::chunk_moved(std::uint32_t id, double bytes, double begin, double egress_end, double ingress_begin,
                             double ingress_end) {
  const Flow& flow = links_.flow(id);
  if (!flow.stores) memory_[flow.source].charge(now(), bytes);
  memory_[flow.target].charge(now(), bytes);
  forecast_memory(flow.source);
  forecast_memory(flow.target);
  const std::uint64_t key = std::uint64_t{flow.task} << 8 | flow.target;
  recorder_.add_link(flow.source, true, key, begin, egress_end,
                     [&] { return fmt::format("to rank {}: {}", flow.target, place(flow.task)); });
  recorder_.add_link(flow.target, false, key, ingress_begin, ingress_end,
                     [&] { return fmt::format("from rank {}: {}", flow.source, place(flow.task)); });
}

// ----------------------------------------------------------------------------------------------------- collectives

void Simulation::join(std::uint32_t task, const Collective& collective) {
  const FlatTask& flat = program_.tasks[task];
  const auto [found, added] = group_ids_.try_emplace(collective.group, static_cast<std::uint32_t>(groups_.size()));
  if (added)
    groups_.push_back({{},
                       ranks_of(collective, plan_),
                       collective.kind,
                       collective.backend,
                       collective.codec,
                       shortening(collective)});
  Group& group = groups_[found->second];
  IMBREX_EXPECTS(group.kind == collective.kind, "{} is a {}, but group {} began as a {}", place(task),
                 imbrex::name_of(collective.kind), collective.group, imbrex::name_of(group.kind));
  IMBREX_EXPECTS(group.ranks == ranks_of(collective, plan_), "{} joins other ranks than the rest of group {}",
                 place(task), collective.group);
  for (const std::uint32_t other : group.members)
    IMBREX_EXPECTS(program_.tasks[other].rank != flat.rank, "{} joins collective group {} a second time", place(task),
                   collective.group);
  group.members.push_back(task);
  const double ranks = static_cast<double>(group.ranks.size());
  const double whole = std::max(bytes_of(collective.from), bytes_of(collective.to));
  const double passes = collective.kind == CollectiveKind::all_reduce ? 2 : 1;
  group.whole_bytes = std::max(group.whole_bytes, whole * group.shortening);
  // What a rank sends in an exchange is all for one peer; of other kinds, its own part stays.
  const double leaving = collective.kind == CollectiveKind::send_receive ? 1 : (ranks - 1) / ranks;
  group.wire_bytes = std::max(group.wire_bytes, passes * whole * group.shortening * leaving);
  if (!(collective.from == collective.to)) group.local_bytes = std::max(group.local_bytes, 2 * whole);
  // From now on, also while it waits for the others, its kernel holds SMs.
  ++collecting_[flat.rank];
  if (group.members.size() < group.ranks.size()) return;

  double seconds = machine_.launch_gap + group.local_bytes / machine_.memory_bandwidth;
  CollectiveWire wire{group.wire_bytes, 0, 0};
  if (group.wire_bytes > 0) {
    if (host_of(machine_, group.ranks.front()) != host_of(machine_, group.ranks.back()))
      wire = wire_of(machine_, group.kind, group.ranks, group.whole_bytes);
    seconds = std::max(wire.inside > 0 ? collective_seconds(group, wire.inside) : 0.0,
                       across_seconds(machine_, wire, collective_seconds(group, 1)));
    for (const Level& level : machine_.levels) {
      group.crossing.push_back(crossing_bytes(level, group.kind, group.ranks, group.whole_bytes, wire.inside));
      seconds = std::max(seconds, machine_.launch_gap + group.crossing.back() / level.bandwidth);
    }
  }
  group.begin = now();
  if (seconds > 0) {
    // What goes out is read and what comes in is written.
    group.link_rate = wire.inside / seconds;
    group.across_rate = wire.across / seconds;
    group.memory_rate = 2 * (group.link_rate + group.across_rate);
  }
  if (seconds > 0)
    for (double& bytes : group.crossing) bytes /= seconds;
  reserve_ways(group, 1);
  for (const std::uint32_t member : group.members) {
    const std::uint32_t rank = program_.tasks[member].rank;
    memory_[rank].reserve(now(), group.memory_rate);
    links_.reserve(rank, group.link_rate, group.across_rate);
    forecast_memory(rank);
  }
  events_.after(seconds, EventKind::collective_done, found->second);
}

// What a collective takes of the ways between groups, `sign` times.
void Simulation::reserve_ways(const Group& group, double sign) {
  for (std::size_t level = 0; level < group.crossing.size(); ++level) {
    if (group.crossing[level] <= 0) continue;
    std::set<int> groups;
    for (const int rank : group.ranks) groups.insert(group_of(machine_.levels[level], rank));
    for (const int one : groups) links_.reserve_ways(level, one, sign * group.crossing[level]);
  }
}

double Simulation::shortening(const Collective& collective) const {
  if (!collective.codec) return 1;
  return plan::shortening(*collective.codec, plan_.buffers[static_cast<std::size_t>(collective.from.buffer)].type);
}

double Simulation::collective_seconds(const Group& group, double wire_bytes) const {
  if (group.codec)
    return machine::quantized_seconds(machine_, group.kind == CollectiveKind::reduce_scatter,
                                      wire_bytes / group.shortening, wire_bytes);
  // An exchange with one peer each way is what an all-to-all of two ranks is.
  constexpr Curve Machine::*curves[] = {&Machine::all_gather, &Machine::reduce_scatter, &Machine::all_reduce,
                                        &Machine::all_to_all, &Machine::all_to_all};
  return machine::collective_seconds(machine_, curves[static_cast<std::size_t>(group.kind)],
                                     group.backend == Backend::imbrex, static_cast<double>(group.ranks.size()),
                                     wire_bytes);
}

void Simulation::finish_group(std::uint32_t id) {
  const Group group = groups_[id];
  reserve_ways(group, -1);
  for (const std::uint32_t member : group.members) {
    const std::uint32_t rank = program_.tasks[member].rank;
    memory_[rank].reserve(now(), -group.memory_rate);
    links_.reserve(rank, -group.link_rate, -group.across_rate);
    forecast_memory(rank);
    --collecting_[rank];
    if (group.link_rate + group.across_rate > 0)
      for (const bool out : {true, false})
        recorder_.add_link(rank, out, ~std::uint64_t{id} - 1, group.begin, now(),
                           [&] { return std::string(imbrex::name_of(group.kind)); });
  }
  for (const std::uint32_t task : group.members) advance(task);
  for (std::uint32_t p = 0; p < pools_.size(); ++p) free_pool(p);
}

}  // namespace imbrex::simulate
