// One worker of one rank: takes tasks from the queues it serves and drives them through their waits. It never blocks in
// one task while another of its queues could go on.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "execute/cpu/kernels.hpp"
#include "imbrex/advanced/execute.hpp"
#include "runtime/late.hpp"

namespace imbrex::execute {

/// A library queue's product whose blocks the workers of a rank take one by one: the product's index in its queue in
/// the upper half, the next block in the lower one.
class OpenProduct {
 public:
  struct Place {
    std::size_t task = 0;
    std::int64_t block = 0;
  };

  /// By worker 0, once all blocks of the last one are done.
  void open(std::size_t task) {
    done_.store(0, std::memory_order_relaxed);
    next_.store(std::uint64_t{task} << block_bits, std::memory_order_release);
  }
  /// No product of the queue follows.
  void end() { next_.store(ended_value, std::memory_order_release); }
  bool ended() const { return next_.load(std::memory_order_relaxed) >= ended_value; }

  /// The next block, perhaps one after the last; nothing where none is open.
  std::optional<Place> look() const { return place(next_.load(std::memory_order_acquire)); }
  std::optional<Place> take() { return place(next_.fetch_add(1, std::memory_order_acq_rel)); }

  void finish_block() { done_.fetch_add(1, std::memory_order_release); }
  std::int64_t done() const { return done_.load(std::memory_order_acquire); }

 private:
  static constexpr int block_bits = 40;
  // Who takes a block just then adds a little to these, too.
  static constexpr std::uint64_t none_value = std::uint64_t{1} << 62, ended_value = std::uint64_t{1} << 63;

  static std::optional<Place> place(std::uint64_t value) {
    if (value >= none_value) return std::nullopt;
    return Place{static_cast<std::size_t>(value >> block_bits),
                 static_cast<std::int64_t>(value & ((std::uint64_t{1} << block_bits) - 1))};
  }

  std::atomic<std::uint64_t> next_ = none_value;
  std::atomic<std::int64_t> done_ = 0;
};

/// What the workers of a rank share during one epoch.
struct RankEpoch {
  const Plan& plan;
  const HeapLayout& layout;
  const RankMemory& memory;
  World& world;
  const CpuOptions& options;
  const std::map<int, std::vector<const Collective*>>& collectives;  // see collective_groups
  std::vector<std::atomic<std::size_t>>& heads;                      // by queue: the next task to take
  std::vector<OpenProduct>& products;                                // by queue
  std::atomic<bool>& stop;                                           // another worker failed
  std::uint64_t epoch = 0;
};

class Worker {
 public:
  /// Worker 0 serves every queue; the others serve compute queues, and take blocks of library queues' products.
  Worker(RankEpoch& shared, int index);

  /// Returns when no task is left for it. Throws Error(runtime_failure) past the wait limit or when the world failed.
  void run();

  /// What codecs did, in this worker's collectives.
  const CodecReport& quantized() const { return kernels_.quantized(); }

  std::vector<Span> spans;

 private:
  struct Lane {
    int queue = 0;
    bool helps = false;  // takes blocks of the products that worker 0 opens
    bool taken = false, exhausted = false;
    std::size_t task = 0;
    int phase = 0;
    std::int64_t k = 0;         // columns of A multiplied so far
    Kernels::Product product;   // which may wait at its epilogue while other lanes multiply theirs
    double blocked_since = -1;  // of the current wait, timeline only
  };

  bool step(Lane& lane);
  bool step_tile(Lane& lane, const Task& task, const Tile& tile);
  bool step_collective(Lane& lane, const Task& task, const Collective& collective);
  bool step_product(Lane& lane, const Task& task, const Product& product);
  /// Multiplies the next block of the lane's open product; false where there is none.
  bool take_block(Lane& lane);
  bool step_simple(Lane& lane, const Task& task);
  bool take(Lane& lane);
  void done(Lane& lane, const Task& task);
  /// Whether all waits that `needed` selects are met; notes the time spent blocked.
  template <typename Needed>
  bool met(Lane& lane, const Task& task, Needed&& needed);
  const Task& task_of(const Lane& lane) const;
  void pause();
  void throw_if_stopped() const;
  void idle(runtime::BoundedWait& wait, int& rounds);
  std::string diagnose(double limit) const;
  [[noreturn]] void fail(const std::string& diagnosis) const;
  template <typename F>
  void timed(const Lane& lane, Span::Kind kind, F&& work);
  const Queue& queue_of(const Lane& lane) const;

  RankEpoch& shared_;
  int index_;
  Kernels kernels_;
  std::vector<Lane> lanes_;
  std::mt19937_64 random_;
};

}  // namespace imbrex::execute
