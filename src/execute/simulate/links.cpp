#include "execute/simulate/links.hpp"

#include <algorithm>

namespace imbrex::simulate {
namespace {

// Small enough that sharing flows differ by under a microsecond, large enough that a gigabyte is 4,096 chunks.
constexpr double chunk_bytes = 256.0 * 1024;
constexpr double max_chunks = 4096;

}  // namespace

Links::Links(const Machine& machine, std::size_t ranks, EventQueue& events, Listener& listener)
    : events_(events), listener_(listener), egress_(ranks), ingress_(ranks) {
  for (Egress& server : egress_) server.bandwidth = machine.egress_bandwidth;
  for (Ingress& server : ingress_) server.bandwidth = machine.ingress_bandwidth;
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
  Egress& egress = egress_[state.flow.source];
  if (egress.busy)
    egress.waiting.push_back(id);
  else
    serve(id);
}

void Links::serve(std::uint32_t id) {
  State& state = states_[id];
  Egress& egress = egress_[state.flow.source];
  Ingress& ingress = ingress_[state.flow.target];
  const double begin = events_.now();
  const double bytes = state.next;
  const double egress_end = begin + bytes / std::min(egress.rate(), state.flow.device_rate);
  const double ingress_begin = std::max(begin, ingress.free);
  ingress.free = ingress_begin + bytes / std::min(ingress.rate(), state.flow.device_rate);
  const double ingress_end = std::max(ingress.free, egress_end);
  egress.busy = true;
  state.left -= bytes;
  listener_.chunk_moved(id, bytes, begin, egress_end, ingress_begin, ingress_end);
  events_.at(egress_end, EventKind::egress_free, state.flow.source);
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

void Links::reserve(std::size_t rank, double rate) {
  egress_[rank].reserved = std::max(0.0, egress_[rank].reserved + rate);
  ingress_[rank].reserved = std::max(0.0, ingress_[rank].reserved + rate);
}

}  // namespace imbrex::simulate
