// Links between devices: an egress and an ingress server per device.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <vector>

#include "execute/simulate/event_queue.hpp"
#include "imbrex/machine.hpp"

namespace imbrex::simulate {

/// Bytes on their way from one device to another.
struct Flow {
  std::uint32_t source = 0, target = 0;
  std::uint32_t task = 0;
  double bytes = 0;
  double rate = std::numeric_limits<double>::infinity();         ///< of its own engine or SM
  double device_rate = std::numeric_limits<double>::infinity();  ///< of all such flows of a device
  double latency = 0;                                            ///< from the last byte's departure to its arrival
  bool read = false;    ///< fetched for a task that waits for it; else sent by a task on its way out
  bool stores = false;  ///< comes from registers, so the source's memory is not read
  bool across = false;  ///< between hosts
};

/// Each server is FIFO over chunks, and a flow has one chunk in service: flows that share a server therefore take turns
/// (fair share at the grain of a chunk), at the cost of two events a chunk. A chunk begins to enter the target as it
/// begins to leave the source (cut-through), and a flow held up at its target does not hold up other flows of its
/// source. What leaves a group of a level takes that group's way out and the other's way in as well, each of which all
/// flows of its group share.
class Links {
 public:
  struct Listener {
    virtual ~Listener() = default;
    virtual void flow_sent(std::uint32_t flow) = 0;     ///< its engine or SM is free
    virtual void flow_arrived(std::uint32_t flow) = 0;  ///< all bytes are in the target's memory
    virtual void chunk_moved(std::uint32_t flow, double bytes, double begin, double egress_end, double ingress_begin,
                             double ingress_end) = 0;
  };

  Links(const Machine& machine, std::size_t ranks, EventQueue& events, Listener& listener);

  void start(const Flow& flow);

  /// Bandwidth taken on both sides of every link of `rank` by a running collective, inside its host and between hosts;
  /// negative gives it back.
  void reserve(std::size_t rank, double inside, double across);

  /// The same on the ways, out and in, of that group of a level.
  void reserve_ways(std::size_t level, int group, double rate);

  void handle(const Event& event);

  const Flow& flow(std::uint32_t id) const { return states_[id].flow; }

 private:
  struct State {
    Flow flow;
    double left = 0, chunk = 0;
    double next = 0;  ///< bytes of the chunk in service
  };
  struct Server {
    double bandwidth = 0, reserved = 0;
    double rate() const { return std::max(bandwidth - reserved, 0.05 * bandwidth); }
  };
  struct Egress : Server {
    bool busy = false;
    std::deque<std::uint32_t> waiting;
  };
  struct Ingress : Server {
    double free = 0;
  };

  // Each device has a server for links inside its host and, on a machine with several, one for those between them.
  std::uint32_t server(std::uint32_t rank, bool across) const { return across ? ranks_ + rank : rank; }
  // The ways between groups that a flow takes, in turn.
  std::vector<Ingress*>& ways_of(const Flow& flow);
  void queue_chunk(std::uint32_t id);
  void serve(std::uint32_t id);

  std::uint32_t ranks_;
  EventQueue& events_;
  Listener& listener_;
  std::vector<Egress> egress_;
  std::vector<Ingress> ingress_;
  /// A group's ways.
  struct Ways {
    Ingress out, in;
  };
  const Machine& machine_;
  std::vector<std::vector<Ways>> ways_;  ///< by level and group
  std::vector<Ingress*> taken_;
  std::vector<State> states_;
  std::vector<std::uint32_t> unused_;
};

}  // namespace imbrex::simulate
