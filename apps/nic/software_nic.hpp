// The other side of a PE's queues, in software: a host thread that reads work requests as an mlx5 NIC would, moves the
// bytes between PEs of this host, and writes completions. It trusts nothing that it reads. For tests, by seed, it waits
// now and then, takes its queues in any order (a queue's own requests never), takes a doorbell twice, holds completions
// back, refuses a request, or stops.
#pragma once

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "apps/nic/queues.hpp"

namespace imbrex::shmem::mlx5 {

struct NicOptions {
  std::uint64_t seed = 1;
  double max_delay = 0;            ///< the longest random pause, seconds; with one, completions are held back, too
  bool any_order = false;          ///< queues by chance, and some of a queue's requests at a time
  bool double_doorbells = false;   ///< now and then a doorbell counts that did not ring again
  std::uint64_t refuse_at = none;  ///< this request, counted over all queues, gets `syndrome`
  std::uint32_t syndrome = 0x13;
  std::uint64_t stop_at = none;  ///< behind so many requests it does nothing more
  std::uint64_t lose_at = none;  ///< the first write of several words from this one on it does not do, and says it did
  std::uint64_t repeat_at = none;  ///< the first addition from this one on it does twice
};

/// What it did so far.
struct NicCounts {
  std::uint64_t requests = 0;  ///< done
  std::uint64_t refused = 0;   ///< with an error of their own
  std::uint64_t flushed = 0;   ///< behind such a one
  std::uint64_t doubled = 0;   ///< doorbells that counted twice
  std::uint64_t laps = 0;      ///< of rings
};

class SoftwareNic {
 public:
  /// Serves the queues, which outlive it, until it is destroyed; then all that doorbells told of is done.
  explicit SoftwareNic(const Queues& queues, const NicOptions& options = {});
  /// Serves these queues, which reach memory here by local keys and each PE's by remote ones.
  SoftwareNic(std::vector<Port> ports, MemoryKeys here, std::vector<MemoryKeys> there, const NicOptions& options = {});
  ~SoftwareNic();
  SoftwareNic(const SoftwareNic&) = delete;
  SoftwareNic& operator=(const SoftwareNic&) = delete;

  NicCounts counts() const;

 private:
  // A queue, as far as it has come.
  struct Lane {
    const Port* port;
    std::uint64_t bell = 0;      // the doorbell as it was last
    std::uint32_t consumed = 0;  // requests
    std::uint32_t told = 0;      // of so many
    bool failed = false;
    bool held = false;  // a completion that is to be written
    std::uint32_t held_index = 0, held_syndrome = 0;
  };
  struct Live {
    std::atomic<std::uint64_t> requests{0}, refused{0}, flushed{0}, doubled{0}, laps{0};
  };

  void run();
  bool serve(Lane& lane);
  bool listen(Lane& lane);
  void step(Lane& lane);
  std::uint32_t execute(const Port& port, const Request& request, std::uint32_t index);
  static void complete(Lane& lane);
  bool chance(std::uint32_t one_in) { return random_() % one_in == 0; }

  std::vector<Port> ports_;
  MemoryKeys here_;
  std::vector<MemoryKeys> there_;
  NicOptions options_;
  std::mt19937_64 random_;
  std::vector<Lane> lanes_;
  Live live_;
  std::atomic<bool> ending_{false};
  std::thread thread_;  // the last: it uses the others
};

}  // namespace imbrex::shmem::mlx5
