// The control block: how the ranks of one host tell each other where they are, and that one has failed.
// docs/dev/runtime.md describes the protocol: who writes, which word commits, in what order.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/late.hpp"

namespace imbrex::runtime {

inline constexpr int max_world_size = 64;
inline constexpr std::size_t max_gather_bytes = 4096;
inline constexpr std::uint64_t control_magic = 0x316b6c6278726269;  // "ibrxblk1"
inline constexpr std::uint32_t protocol_version = 11;

/// What ranks count that they have come to, each kind in one order: epochs and collectives of the CPU, and epochs of
/// libraries on GPUs, which hosts look after. Kernels count in device::State.
enum class Counted : std::uint32_t { cpu = 0, libraries = 1 };

enum RankState : std::uint32_t { joining = 0, running = 1, finished = 2, failed = 3 };

// Plain words in shared memory; every access to a word that two ranks may touch at once goes through word().
// All zero is the valid initial state, so a fresh memory file needs only magic, version and size.

/// Written by rank r alone (pid: by the first process to know it, always the same value).
struct alignas(64) RankRecord {
  std::uint32_t state;        // RankState
  std::int32_t pid;           // 0: not known yet; threads of one process share it
  std::uint64_t arrived;      // barriers that this rank has entered
  std::uint32_t gathered[2];  // bytes in gather slot 0 and 1, or no_gather
  std::uint64_t calls;        // number of its last collective call, and which of the last ones it refused: see Calls
  std::uint64_t process;      // a number that its process took at random: threads of one process share it
  std::uint64_t agreements;   // that it has begun
  std::uint64_t skipped;      // number of the last call for which it had no rows: see Calls
  std::uint32_t entered[2];   // what it has come to, modulo 2^32: see Counted
};

inline constexpr std::uint32_t no_gather = 0xffffffff;  // the rank's last use of the slot was a barrier

/// Written by the one writer that moved `phase` from clear to writing; readers look only after it says committed.
struct alignas(64) FailureRecord {
  std::uint32_t phase;  // clear, committed, or writing | writer's rank << 8
  std::uint32_t length;
  char message[2040];
};

/// Why a rank refused a call, or what it is asked for. Written by that rank alone; `number` is 0 while it writes.
struct alignas(64) RefusalRecord {
  std::uint64_t number;    // of the call
  std::uint64_t text[63];  // ends with a zero byte
};

/// What a rank has written down of a call that it took, or refused. Written by that rank alone; `number` is 0 while it
/// writes.
struct alignas(64) TakenRecord {
  std::uint64_t number;  // of the call
  std::uint64_t object;  // CallNote
  std::int64_t size;
  std::uint64_t asked;
  std::uint32_t kind;
  std::uint32_t state;  // TakenState
};
enum TakenState : std::uint32_t { taken_only = 0, begun = 1, captured = 2, given_back = 3 };  // given_back: refused
inline constexpr std::size_t remembered_calls = 1024;

/// What the ranks have decided together of a call that some of them refused: number of the call, and the decision. Each
/// is made once, by compare-exchange.
struct alignas(64) Decision {
  std::uint64_t fate;   // lower half of the number << 32 | agreement << 2 | CallFate
  std::uint64_t empty;  // number * 4 + 1: every rank skipped it; + 2: some did not
};
inline constexpr std::size_t remembered_decisions = 64;
inline constexpr std::size_t remembered_places = 4096;

struct ControlBlock {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t size;
  std::uint64_t heap_stride;
  std::uint32_t use_locks;             // process ids do not mean the same everywhere: notice losses by record locks
  alignas(64) std::uint64_t arrivals;  // barrier entries of all ranks together
  FailureRecord failure;
  RankRecord ranks[max_world_size];
  alignas(64) std::uint64_t last_refused;  // the latest call that a rank refused; 0: none was
  std::uint64_t refusals_made;             // by all ranks
  std::uint64_t last_prepared;             // the latest call before which a rank began an agreement
  alignas(4096) RefusalRecord refusals[max_world_size];
  alignas(4096) std::byte gather[2][max_world_size][max_gather_bytes];        // slot, rank
  alignas(4096) Decision decisions[remembered_decisions];                     // of call n at n modulo their number
  alignas(4096) std::uint64_t places[remembered_places];                      // of call n: see Calls::expect_place
  alignas(4096) TakenRecord taken[max_world_size][remembered_calls];          // rank, call n at n modulo their number
  alignas(4096) RefusalRecord reasons[max_world_size][remembered_decisions];  // rank, call n: why it refused it
  alignas(4096) std::uint64_t said_calls[remembered_places];                  // of call n: see Calls::expect_same
  alignas(4096) RefusalRecord asked[max_world_size][remembered_decisions];    // rank, call n: see Calls::ask
};

static_assert(sizeof(RankRecord) == 64 && sizeof(FailureRecord) == 2048 && sizeof(RefusalRecord) == 512);
static_assert(offsetof(ControlBlock, arrivals) == 64 && offsetof(ControlBlock, failure) == 128);
static_assert(offsetof(ControlBlock, refusals_made) == 6280);
static_assert(offsetof(ControlBlock, ranks) == 2176 && offsetof(ControlBlock, last_refused) == 6272);
static_assert(offsetof(ControlBlock, refusals) == 8192 && offsetof(ControlBlock, gather) == 40960);
static_assert(offsetof(ControlBlock, decisions) == 565248 && offsetof(ControlBlock, places) == 569344);
static_assert(offsetof(ControlBlock, taken) == 602112 && offsetof(ControlBlock, reasons) == 4796416);
static_assert(offsetof(ControlBlock, said_calls) == 6893568 && offsetof(ControlBlock, asked) == 6926336);
static_assert(sizeof(ControlBlock) == 6926336 + 64 * 64 * 512);
static_assert(std::atomic_ref<std::uint32_t>::is_always_lock_free &&
                  std::atomic_ref<std::uint64_t>::is_always_lock_free,
              "atomics that take a lock do not work between processes");

template <typename T>
std::atomic_ref<T> word(T& value) {
  return std::atomic_ref<T>(value);
}

/// Pauses between polls: spins a little, yields, then sleeps up to 200 microseconds, because there may be many more
/// ranks than cores.
class Backoff {
 public:
  void pause();
  bool sleeping() const { return round_ >= first_sleep; }

 private:
  static constexpr int first_yield = 64, first_sleep = 96;
  int round_ = 0;
};

/// What a rank knows of the ranks on other hosts, which have a control block of their own, and how it tells them what
/// it does.
class FarRanks {
 public:
  virtual ~FarRanks() = default;

  virtual bool is_far(int rank) const = 0;
  /// What far ranks have said of themselves, in the places of a control block.
  virtual ControlBlock& block() const = 0;
  virtual std::string host_name(int rank) const = 0;

  /// This rank enters a barrier; `bytes`: what it gathers there.
  virtual void enter(std::uint64_t number, std::uint32_t gathered, const std::byte* bytes) noexcept = 0;
  /// It has refused a call; `calls`: its record.
  virtual void refused(std::uint64_t number, std::uint64_t calls, std::string_view reason) noexcept = 0;
  /// It has recorded a failure. Any thread.
  virtual void failed() noexcept = 0;
};

/// One rank's view of the control block, which the caller keeps mapped, and of far ranks, where there are any.
/// `outsider` may record failures but is no rank.
class Control {
 public:
  static constexpr int outsider = 0xff;

  Control(ControlBlock& block, int rank, FarRanks* far = nullptr) : block_(&block), rank_(rank), far_(far) {}

  ControlBlock& block() const { return *block_; }
  FarRanks* far() const { return far_; }
  int rank() const { return rank_; }
  bool is_far(int rank) const { return far_ && far_->is_far(rank); }
  /// The block that has what the rank says of itself.
  ControlBlock& home(int rank) const { return is_far(rank) ? far_->block() : *block_; }
  int size() const { return static_cast<int>(block_->size); }
  RankState state(int rank) const {
    return static_cast<RankState>(word(home(rank).ranks[rank].state).load(std::memory_order_acquire));
  }
  /// Everything that this rank did before is visible to readers of the state.
  void set_state(RankState state) noexcept { word(block_->ranks[rank_].state).store(state, std::memory_order_release); }
  int pid(int rank) const { return word(home(rank).ranks[rank].pid).load(std::memory_order_acquire); }
  void set_pid(int rank, int pid) noexcept { word(block_->ranks[rank].pid).store(pid, std::memory_order_release); }

  /// Known where `state` is running or later; 0 of a far rank.
  std::uint64_t process(int rank) const { return word(home(rank).ranks[rank].process).load(std::memory_order_relaxed); }
  void set_process(std::uint64_t process) noexcept {
    word(block_->ranks[rank_].process).store(process, std::memory_order_relaxed);
  }

  /// This rank has come to `count` more.
  void enter(Counted counted, std::uint32_t count = 1) noexcept {
    word(block_->ranks[rank_].entered[static_cast<std::uint32_t>(counted)]).fetch_add(count, std::memory_order_relaxed);
  }
  /// The ranks that have not come to what this rank came to last. Ranks of other hosts say how far they are with each
  /// sign of life.
  std::vector<int> late(Counted counted) const;

  /// Throw Error(runtime_failure) past the limits, or as soon as it cannot succeed any more.
  void barrier(const WaitLimits& limits);
  void all_gather(const void* mine, void* all, std::size_t bytes, const WaitLimits& limits);

  /// What a wait is for that ranks come to: which have not, and its name behind "has not come to".
  struct Meeting {
    std::function<std::vector<int>()> late;
    std::string name;
  };

  /// Polls until `done`. Past its limits (see BoundedWait) records and throws what `diagnosis` says, and the seconds of
  /// which; throws the failure once one is recorded. `hopeless` is asked now and then: text that is not empty ends the
  /// wait at once.
  void wait(const WaitLimits& limits, const std::function<bool()>& done,
            const std::function<std::string(double)>& diagnosis, const std::function<std::string()>& hopeless = {},
            const Meeting& meeting = {});

  /// Records the first failure of the world; later ones are dropped.
  void record(std::string_view message) noexcept;
  /// Records that `rank` is lost: "rank 2 (pid 4711) was lost: " and why.
  void record_lost(int rank, std::string_view why = "it ended without leaving the world") noexcept;
  [[noreturn]] void record_and_throw(const std::string& message);

  bool has_failed() const { return word(block_->failure.phase).load(std::memory_order_acquire) == phase_committed; }
  std::string failure() const;

  /// "rank 3", with its host where the world has several: "rank 3 (host b)".
  std::string name(int rank) const;
  /// Names of several ranks: "ranks 0 (host a), 1 (host a) and 3 (host b)".
  std::string list(const std::vector<int>& ranks) const;

  void throw_if_failed() const {
    if (has_failed()) [[unlikely]]
      throw_failure();
  }

 private:
  /// One barrier. What a gather of this number finds in `gathered` says what this rank has come for.
  void enter_barrier(std::uint32_t gathered, const WaitLimits& limits);

  static constexpr std::uint32_t phase_clear = 0, phase_committed = 1, phase_writing = 2;

  [[noreturn]] void throw_failure() const;
  void write_failure(std::string_view message) noexcept;
  std::uint32_t writing_phase(int rank) const { return phase_writing | static_cast<std::uint32_t>(rank) << 8; }

  /// Whether every far rank has entered that barrier.
  bool far_arrived(std::uint64_t number) const;
  std::uint64_t near_ranks() const;

  ControlBlock* block_;
  int rank_;
  FarRanks* far_;
};

/// "rank 3" or "ranks 0, 1 and 3". `place`: what follows each number.
std::string list_ranks(const std::vector<int>& ranks, const std::function<std::string(int)>& place = {});

}  // namespace imbrex::runtime
