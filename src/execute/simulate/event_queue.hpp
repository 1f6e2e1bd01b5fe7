// Virtual time: events in order of time, ties in order of scheduling, so that a run is the same every time.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace imbrex::simulate {

enum class EventKind : std::uint8_t {
  dispatch,         ///< a: queue that may take tasks
  step,             ///< a: task whose timer ended
  wake,             ///< a: task whose waits are met
  memory,           ///< a: rank whose memory may have served a load; b: generation of the forecast
  egress_free,      ///< a: server of Links
  chunk_done,       ///< a: flow
  flow_arrived,     ///< a: flow
  post,             ///< a: rank, b: signal
  collective_done,  ///< a: group
};

struct Event {
  double time = 0;
  std::uint64_t sequence = 0;
  EventKind kind = EventKind::dispatch;
  std::uint32_t a = 0;
  std::uint64_t b = 0;
};

class EventQueue {
 public:
  double now() const { return now_; }
  bool empty() const { return heap_.empty(); }

  void at(double time, EventKind kind, std::uint32_t a, std::uint64_t b = 0) {
    heap_.push({time < now_ ? now_ : time, sequence_++, kind, a, b});
  }
  void after(double delay, EventKind kind, std::uint32_t a, std::uint64_t b = 0) { at(now_ + delay, kind, a, b); }

  Event pop() {
    const Event event = heap_.top();
    heap_.pop();
    now_ = event.time;
    return event;
  }

 private:
  struct Later {
    bool operator()(const Event& x, const Event& y) const {
      return x.time != y.time ? x.time > y.time : x.sequence > y.sequence;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> heap_;
  double now_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace imbrex::simulate
