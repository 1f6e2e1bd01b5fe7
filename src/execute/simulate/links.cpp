#include "execute/simulate/links.hpp"

#include <algorithm>
#include <utility>

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
      ingress_(egress_.size()) {
  for (std::size_t i = 0; i < egress_.size(); ++i) {
    egress_[i].bandwidth = i < ranks ? machine.egress_bandwidth : machine.host_bandwidth;
    ingress_[i].bandwidth = i < ranks ? machine.ingress_bandwidth : machine.host_bandwidth;
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
  const double ingress_begin = std::max(begin, ingress.free);
  ingress.free = ingress_begin + bytes / std::min(ingress.rate(), state.flow.device_rate);
  const double ingress_end = std::max(ingress.free, egress_end);
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

void Links::reserve(std::size_t rank, double inside, double across) {
  for (const auto& [index, rate] : {std::pair{rank, inside}, {ranks_ + rank, across}}) {
    if (index >= egress_.size()) continue;
    egress_[index].reserved = std::max(0.0, egress_[index].reserved + rate);
    ingress_[index].reserved = std::max(0.0, ingress_[index].reserved + rate);
  }
}

}  // namespace imbrex::simulate
