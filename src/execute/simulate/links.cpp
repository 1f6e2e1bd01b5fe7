#include "execute/simulate/links.hpp"

#include <algorithm>
#include <utility>

#include "execute/simulate/levels.hpp"

namespace imbrex::simulate {
namespace {

// Small enough that sharing flows differ by under a microsecond, large enough that a gigabyte is 4,096 chunks.
constexpr double chunk_bytes = 256.0 * 1024;
constexpr double max_chunks = 4096;

}  // namespace

Links::Links(const Machine& machine, std::size_t ranks, EventQueue& events, Listener& listener)
    : ranks_(static_cast<std::uint32_t>(ranks)),
      events_(events),
      listener_(listener),
      egress_(machine.host_devices > 0 ? 2 * ranks : ranks),
      ingress_(egress_.size()),
      machine_(machine) {
  for (std::size_t i = 0; i < egress_.size(); ++i) {
    egress_[i].bandwidth = i < ranks ? machine.egress_bandwidth : machine.host_bandwidth;
    ingress_[i].bandwidth = i < ranks ? machine.ingress_bandwidth : machine.host_bandwidth;
  }
  for (const Level& level : machine.levels) {
    Ways ways;
    ways.out.bandwidth = ways.in.bandwidth = level.bandwidth;
    ways_.emplace_back(static_cast<std::size_t>(group_of(level, static_cast<int>(ranks) - 1)) + 1, ways);
  }
}

void Links::start(const Flow& flow) {
  std::uint32_t id = static_cast<std::uint32_t>(states_.size());
  if (unused_.empty()) {
    states_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  states_[id] = {flow, flow.bytes, std::max(chunk_bytes, flow.bytes / max_chunks), 0};
  queue_chunk(id);
}

// NOTE: one vector for all calls, since this runs once a chunk.
std::vector<Links::Ingress*>& Links::ways_of(const Flow& flow) {
  taken_.clear();
  if (flow.across) return taken_;
  const auto from = static_cast<int>(flow.source), to = static_cast<int>(flow.target);
  const auto group = [&](std::size_t level, int rank) {
    return static_cast<std::size_t>(group_of(machine_.levels[level], rank));
  };
  const auto apart = [&](std::size_t level) { return group(level, from) != group(level, to); };
  for (std::size_t level = 0; level < ways_.size(); ++level)
    if (apart(level)) taken_.push_back(&ways_[level][group(level, from)].out);
  for (std::size_t level = ways_.size(); level-- > 0;)
    if (apart(level)) taken_.push_back(&ways_[level][group(level, to)].in);
  return taken_;
}

void Links::queue_chunk(std::uint32_t id) {
  State& state = states_[id];
  state.next = std::min(state.left, state.chunk);
  // A rest of less than half a chunk travels with the last one.
  if (state.left - state.next < 0.5 * state.chunk) state.next = state.left;
  Egress& egress = egress_[server(state.flow.source, state.flow.across)];
  if (egress.busy)
    egress.waiting.push_back(id);
  else
    serve(id);
}

void Links::serve(std::uint32_t id) {
  State& state = states_[id];
  const std::uint32_t out = server(state.flow.source, state.flow.across);
  Egress& egress = egress_[out];
  Ingress& ingress = ingress_[server(state.flow.target, state.flow.across)];
  const double begin = events_.now();
  const double bytes = state.next;
  const double egress_end = begin + bytes / std::min(egress.rate(), state.flow.device_rate);
  double enters = begin, last = egress_end;
  for (Ingress* way : ways_of(state.flow)) {
    enters = std::max(enters, way->free);
    way->free = enters + bytes / way->rate();
    last = std::max(last, way->free);
  }
  const double ingress_begin = std::max(enters, ingress.free);
  ingress.free = ingress_begin + bytes / std::min(ingress.rate(), state.flow.device_rate);
  const double ingress_end = std::max(ingress.free, last);
  egress.busy = true;
  state.left -= bytes;
  listener_.chunk_moved(id, bytes, begin, egress_end, ingress_begin, ingress_end);
  events_.at(egress_end, EventKind::egress_free, out);
  events_.at(std::max(ingress_end, begin + bytes / state.flow.rate), EventKind::chunk_done, id);
}

void Links::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::egress_free: {
      Egress& egress = egress_[event.a];
      egress.busy = false;
      if (egress.waiting.empty()) break;
      const std::uint32_t id = egress.waiting.front();
      egress.waiting.pop_front();
      serve(id);
      break;
    }
    case EventKind::chunk_done:
      if (states_[event.a].left > 0) {
        queue_chunk(event.a);
      } else {
        events_.after(states_[event.a].flow.latency, EventKind::flow_arrived, event.a);
        listener_.flow_sent(event.a);
      }
      break;
    case EventKind::flow_arrived:
      listener_.flow_arrived(event.a);
      unused_.push_back(event.a);
      break;
    default: break;
  }
}

void Links::reserve_ways(std::size_t level, int group, double rate) {
  Ways& ways = ways_[level][static_cast<std::size_t>(group)];
  for (Server* way : {static_cast<Server*>(&ways.out), static_cast<Server*>(&ways.in)})
    way->reserved = std::max(0.0, way->reserved + rate);
}

void Links::reserve(std::size_t rank, double inside, double across) {
  for (const auto& [index, rate] : {std::pair{rank, inside}, {ranks_ + rank, across}}) {
    if (index >= egress_.size()) continue;
    egress_[index].reserved = std::max(0.0, egress_[index].reserved + rate);
    ingress_[index].reserved = std::max(0.0, ingress_[index].reserved + rate);
  }
}

}  // namespace imbrex::simulate
