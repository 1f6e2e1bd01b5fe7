// The thread that serves a PE's rings.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "shmem/ring/rings.hpp"
#include "shmem/ring/words.hpp"

namespace imbrex::shmem::ring {

/// What a descriptor's number stands for.
struct Template {
  enum class Shape : std::uint8_t {
    none,   ///< it is not registered
    fence,  ///< to a PE
    fence_all,
    move,         ///< offset here and bytes
    move_signal,  ///< the same; the extension is the signal
    pair,         ///< a word of 8 bytes, then the extension's
    word,         ///< an operand
    compared,     ///< the same; the extension is what is compared
    registered    ///< all but the signal's value lies in the template
  };
  Shape shape = Shape::none;
  Verb verb = Verb::put;
  WordType type = WordType::unsigned_integer;
  std::uint8_t word_bytes = 0;
  bool fetches = false;  ///< what was there goes to the context's stage
  // Registered.
  SignalOperation operation = SignalOperation::set;
  std::uint64_t there = 0, here = 0, bytes = 0, signal = 0;
};

/// A context's ring as its reader knows it.
struct Port {
  const words::Pair* ring;
  Progress* progress;
  std::uint64_t stage;  ///< offset
  std::uint32_t log_slots;
};

class Proxy {
 public:
  /// Serves the ports until it is destroyed. `table` is written behind its back: a number is known to kernels only when
  /// its entry is whole.
  Proxy(Heap& heap, const RingTrial& options, std::unique_ptr<Wire> wire, std::vector<Port> ports,
        const std::vector<Template>& table);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  RingCounts counts() const { return {descriptors_.load(), laps_.load()}; }
  bool ordered() const { return ordered_; }

 private:
  /// What a descriptor comes to: up to two transfers, the second behind the first.
  struct Work {
    WireTransfer transfer[2];
    bool behind[2] = {false, false};  ///< all that came before from this context to the PE
    int count = 0, begun = 0;
    std::uint32_t end = 0;  ///< the slot after it
    bool fenced = false;    ///< nothing follows before what came before to this PE, or by all_pes to all, is done
    std::uint32_t fence = 0;
  };
  /// A descriptor that is under way.
  struct Flight {
    std::uint32_t lane, pe, end;
    int left;
  };
  struct Lane {
    Port port;
    std::uint32_t taken = 0, complete = 0;
    bool has_work = false;
    Work work;                             // at the ring's head
    std::uint64_t flight = 0;              // its number
    std::deque<std::uint64_t> flights;     // not complete, or behind such; first to last
    std::vector<std::uint32_t> under_way;  // transfers, by PE
  };

  void run();
  bool serve(std::uint32_t number);
  bool take(std::uint32_t number);
  bool begin(std::uint32_t number);
  bool may_begin(const Lane& lane, std::uint32_t pe) const;
  void collect();
  static void tell(const Lane& lane);
  void complete(Lane& lane);
  bool decode(std::uint32_t number, const Template& entry, const Descriptor& descriptor, const Extension& extension);
  bool refuse(std::uint32_t number, Refusal why, const Descriptor& descriptor);
  bool ended() const;
  bool chance(std::uint32_t one_in) { return random_() % one_in == 0; }
  void pause();

  Heap& heap_;
  RingTrial options_;
  std::unique_ptr<Wire> wire_;
  const std::vector<Template>& table_;
  const bool ordered_;
  const std::uint64_t part_bytes_;
  std::byte* const part_;
  std::vector<Lane> lanes_;
  std::vector<Flight> flights_;
  std::vector<std::uint64_t> free_;
  std::size_t flying_ = 0;
  std::mt19937_64 random_;
  bool failed_ = false;
  std::atomic<std::uint64_t> descriptors_{0}, laps_{0};
  std::atomic<bool> ending_{false};
  std::thread thread_;  // the last: it uses the others
};

/// Memory of the host that the heap's kernels reach, zeroed: pinned and mapped where they run on a GPU.
std::shared_ptr<std::byte> memory_for(const Heap& heap, std::size_t bytes);

}  // namespace imbrex::shmem::ring
