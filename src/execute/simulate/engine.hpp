// The discrete-event engine: one epoch of a plan in virtual time.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "execute/simulate/event_queue.hpp"
#include "execute/simulate/links.hpp"
#include "execute/simulate/memory_server.hpp"
#include "execute/simulate/program.hpp"
#include "execute/simulate/recorder.hpp"
#include "execute/simulate/tile_model.hpp"
#include "imbrex/advanced/execute.hpp"
#include "problem/embedding.hpp"

namespace imbrex::simulate {

/// Runs one epoch; used once. Throws Error(unsound) naming a stuck task if the plan deadlocks.
class Simulation final : private Links::Listener {
 public:
  /// `starts`: when each rank enters, seconds.
  Simulation(const Plan& plan, const Program& program, const Machine& machine, const std::vector<double>& starts,
             bool timeline);
  Report run();

 private:
  // Where a task stands. `pending` things are under way; when none is left, the task moves to the next stage.
  enum class Stage : std::uint8_t {
    gate,      ///< library queues: first task of a kernel whose waits are not met
    load,      ///< waits before reading
    fixed,     ///< fixed time before the work: tile prologue, a copy's set-up
    work,      ///< products, loads, a collective
    epilogue,  ///< tile: waits before its epilogue
    finish,    ///< tile: adds slots, rounds
    send,      ///< its stores or copies are under way, the SM or engine is held
    flag,      ///< copy engine: writes the flag after the copy
    settle,    ///< the SM or engine is free, the bytes have not all arrived
    fence,     ///< orders stores before posts
    done
  };
  struct State {
    Stage stage = Stage::load;
    int pending = 0;
    std::uint32_t worker = none;    ///< SM that it holds
    std::uint32_t split = 1;        ///< tile: SMs that share the depth
    std::uint32_t waits_left = 0;   ///< unmet waits that it is blocked on
    std::uint32_t waits_for = 0;    ///< the first of them, index into its waits
    bool waited = false;            ///< it was blocked in this stage
    std::int64_t depth = 0;         ///< tile: columns of A done, or under way
    double begin = 0;               ///< of the span being recorded
    double missing = 0;             ///< tile: operand bytes that come from memory
    int streams = 0;                ///< tile: operands that do
    int sending = 0, arriving = 0;  ///< flows not yet sent, not yet arrived
    bool remote = false;            ///< it stored to a peer
  };
  struct QueueState {
    std::uint32_t next = 0;                       ///< task to take next
    std::uint32_t running = 0;                    ///< tasks that hold a worker or the engine
    std::uint32_t kernel = none, unfinished = 0;  ///< library queues: the kernel under way, its tasks not yet complete
    bool opening = false;                         ///< library queues: the next kernel waits or is being launched
    bool started = false;                         ///< its launch gap has passed
  };
  struct PoolState {
    std::set<std::uint32_t> free;
    std::uint32_t held = 0;
    std::vector<std::uint32_t> queues;
  };
  struct Waiter {
    std::uint32_t count = 0, task = 0;
    bool operator<(const Waiter& other) const { return count != other.count ? count > other.count : task > other.task; }
  };
  struct Signal {
    std::uint32_t posts = 0;
    std::vector<Waiter> waiting;
  };
  struct Group {
    std::vector<std::uint32_t> members;  ///< tasks that have arrived, at most one a rank
    std::vector<int> ranks;              ///< that it joins
    CollectiveKind kind = CollectiveKind::all_gather;
    Backend backend = Backend::nccl;
    std::optional<CodecPair> codec;
    double shortening = 1;                   ///< bytes of codes, as a ratio to those of elements
    double wire_bytes = 0, local_bytes = 0;  ///< the largest of any rank
    double whole_bytes = 0;                  ///< the largest matrix of any rank, as it travels
    std::vector<double> crossing = {};            ///< of each level: bytes that leave its busiest group; then bytes/s
    double begin = 0, memory_rate = 0, link_rate = 0, across_rate = 0;
  };

  // scheduling (engine.cpp)
  void handle(const Event& event);
  void dispatch(std::uint32_t queue);
  bool kernel_open(std::uint32_t queue);
  std::uint32_t find_worker(std::uint32_t queue);
  std::uint32_t workers_of(std::uint32_t pool) const;
  void free_pool(std::uint32_t pool);
  void take(std::uint32_t task, std::uint32_t worker);
  void leave(std::uint32_t task);
  void complete(std::uint32_t task);
  void post(std::uint32_t rank, std::uint64_t signal);
  [[noreturn]] void throw_stuck() const;

  // waits (engine.cpp)
  bool blocked(std::uint32_t task, WaitPoint point, std::int64_t depth);
  std::uint32_t signal_of(std::uint32_t rank, int signal) const;

  // what tasks do, stage by stage (stages.cpp)
  void advance(std::uint32_t task);
  void split(std::uint32_t first, std::uint32_t count);
  void advance_tile(std::uint32_t task, const Tile& tile);
  void advance_transfer(std::uint32_t task, const Transfer& transfer);
  void advance_reduction(std::uint32_t task, const Reduction& reduction);
  void advance_block(std::uint32_t task, const Block& block);
  void advance_collective(std::uint32_t task, const Collective& collective);
  bool advance_tail(std::uint32_t task);
  void load_operands(std::uint32_t task, const Tile& tile);
  void multiply(std::uint32_t task, const Tile& tile);
  void sent(std::uint32_t task);
  void settle(std::uint32_t task);

  // resources (resources.cpp)
  void timer(std::uint32_t task, double seconds);
  void load(std::uint32_t task, double bytes, double weight = 1);
  void send(std::uint32_t task, int from, int to, double bytes, bool read, int beside = 1);
  void store(std::uint32_t task, const std::vector<Region>& regions, double share = 1);
  void read(std::uint32_t task, const std::vector<Region>& regions);
  void join(std::uint32_t task, const Collective& collective);
  double shortening(const Collective& collective) const;
  double collective_seconds(const Group& group, double wire_bytes) const;
  void finish_group(std::uint32_t group);
  void reserve_ways(const Group& group, double sign);
  void forecast_memory(std::uint32_t rank);

  void flow_sent(std::uint32_t flow) override;
  void flow_arrived(std::uint32_t flow) override;
  void chunk_moved(std::uint32_t flow, double bytes, double begin, double egress_end, double ingress_begin,
                   double ingress_end) override;

  double bytes_of(const Region& region) const { return simulate::bytes_of(plan_, region); }
  // In which an SM loads a tile's operands.
  double load_seconds(const Tile& tile) const { return bytes_of(tile.a) / rate_of_a_ + bytes_of(tile.b) / rate_of_b_; }
  double now() const { return events_.now(); }
  std::string place(std::uint32_t task) const;  ///< "rank 2 queue 0 task 17 (tile)"
  std::string row(std::uint32_t task) const;
  void record(std::uint32_t task, Span::Kind kind);  ///< the span from its `begin` to now, and sets `begin`

  const Plan& plan_;
  std::vector<problem::OwnShards> shards_;  // of each rank, once there is a block
  const Program& program_;
  const Machine& machine_;
  const std::vector<double>& starts_;
  EventQueue events_;
  Recorder recorder_;
  double rate_of_a_ = 0, rate_of_b_ = 0;  ///< bytes/s that an SM loads
  std::vector<TileModel> tiles_;          ///< by queue
  std::vector<PanelCache> caches_;
  std::vector<MemoryServer> memory_;
  Links links_;
  std::vector<State> states_;
  std::vector<QueueState> queues_;
  std::vector<PoolState> pools_;
  std::vector<Signal> signals_;
  std::vector<Group> groups_;
  std::map<int, std::uint32_t> group_ids_;  ///< index into groups_ by the plan's group number
  std::vector<std::uint32_t> collecting_;   ///< by rank: collectives that hold SMs
  std::vector<double> ends_;
  std::vector<std::uint32_t> ended_;
  std::size_t completed_ = 0;
};

}  // namespace imbrex::simulate
