// One PE's OpenSHMEM: what lies behind shmem.h's handles, what every call checks, and how a call that cannot be done
// right ends all PEs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/check.hpp"
#include "imbrex/shmem.h"
#include "imbrex/shmem.hpp"

namespace imbrex::shmem::c {

/// What a PE tells the others, in this host's memory: at the same place on every PE. Zero at first.
struct Notes {
  std::uint32_t exited;  ///< by shmem_global_exit: `status` is what all exit with
  std::int32_t status;
  std::uint64_t count;  ///< bytes of this PE's, when members' lengths differ
};

/// Ends this PE, and with it all others, where the world fails: a PE that computes does not look.
class Watch {
 public:
  explicit Watch(World& world);
  ~Watch();

 private:
  void run();
  bool ended_within(std::chrono::milliseconds time);

  World& world_;
  std::mutex lock_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

/// Sizes as callers give them, of which any may be as large as its type goes. What no size_t holds is `uncountable`:
/// no memory has so much, and it stays so with whatever it is added to or multiplied by.
inline constexpr std::size_t uncountable = ~std::size_t{0};
inline std::size_t product_of(std::size_t a, std::size_t b) {
  std::size_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? uncountable : result;
}
inline std::size_t sum_of(std::size_t a, std::size_t b) {
  std::size_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? uncountable : result;
}
/// Elements from the first to the last of `blocks` blocks of `each`, of which each begins `stride` behind the one
/// before it.
inline std::size_t span_of(std::size_t blocks, std::size_t each, std::size_t stride) {
  return blocks == 0 || each == 0 ? 0 : sum_of(product_of(blocks - 1, stride), each);
}

class Process {
 public:
  explicit Process(int thread_level);
  ~Process();

  World& world() const { return *world_; }
  Heap& heap() const { return *heap_; }
  Context<>& context() { return *context_; }
  Notes& notes(int pe) const { return *reinterpret_cast<Notes*>(world_->heap().handle().at(pe, notes_)); }
  int thread_level() const { return thread_level_; }

  // ------------------------------------------------------------------------------------------------- handles

  /// Throw Error(invalid_input) naming a handle that there is none of.
  const Team& team(shmem_team_t handle) const;
  int contexts_of(shmem_team_t handle) const;  ///< as asked for when it was made
  shmem_team_t team_of(shmem_ctx_t handle) const;

  shmem_team_t add(const Team& team, int contexts);
  shmem_ctx_t add_context(shmem_team_t team);
  void remove_context(shmem_ctx_t handle);
  /// Collective over the team, which takes its contexts along.
  void remove(shmem_team_t handle);

  // ------------------------------------------------------------------------------------------------- memory

  /// As Heap's; null where it is full.
  void* allocate(std::size_t bytes, std::size_t alignment);
  void release(void* own);
  /// Bytes of what allocate gave. Throws Error(invalid_input) for another address.
  std::size_t bytes_of(void* own) const;

  // ------------------------------------------------------------------------------------------------- checks
  // They throw Error(invalid_input) naming argument, value and rule.

  /// The number in the world of a PE of the context's team, or of a team.
  std::uint32_t pe(shmem_ctx_t ctx, int pe) const { return this->pe(team(team_of(ctx)), pe); }
  std::uint32_t pe(const Team& team, int pe) const;

  /// So many elements lie in the heap. `count`: the caller's own, which must not be negative.
  void expect_held(const char* argument, const void* address, std::size_t count, std::size_t size) const;
  /// As expect_held, for a count that was worked out, up to `uncountable`.
  void expect_span_held(const char* argument, const void* address, std::size_t count, std::size_t size) const;
  /// So many elements have addresses: memory that is the caller's own, of which nothing else is known.
  void expect_addresses(const char* argument, const void* address, std::size_t count, std::size_t size) const;
  /// Expects words that are held and can be read and changed as a whole.
  void expect_words(const char* argument, const void* address, std::size_t count, std::size_t size) const;
  /// This host reaches the heap by loads and stores.
  void expect_on_host() const;

  // ------------------------------------------------------------------------------------------------ movement

  /// To and from a PE's memory. The other address lies anywhere: in the heap, too.
  void write(void* own, const void* here, std::size_t bytes, std::uint32_t pe);
  void read(void* here, const void* own, std::size_t bytes, std::uint32_t pe);

  /// Where a wait of the context returned false: throws why.
  [[noreturn]] void throw_failure();

 private:
  struct Member {
    Team team;
    int contexts;
  };

  int thread_level_;
  std::unique_ptr<World> world_;
  std::size_t notes_;
  std::unique_ptr<Heap> heap_;
  std::optional<Context<>> context_;  // loads and stores keep no queue, so that all contexts share it
  std::map<std::uintptr_t, Member> teams_;
  std::map<std::uintptr_t, shmem_team_t> contexts_;
  std::uintptr_t next_ = 3;  // handles are never used again, so that a stale one is found out
  std::map<void*, std::size_t> blocks_;
  std::unique_ptr<Watch> watch_;
};

/// Throws Error(invalid_input) before shmem_init and after shmem_finalize.
Process& process();
bool is_running();
/// Counts shmem_init's calls, and shmem_finalize's.
Process& begin(int thread_level);
void finish();

/// Says what the exception that is being handled says of the call, and ends all PEs.
[[noreturn]] void end_by_exception(const char* call) noexcept;
/// Ends all PEs with the code.
[[noreturn]] void end_by_exit(Process& process, int status) noexcept;

/// Runs `body(process)` as the function of shmem.h that has this name.
template <typename Body>
auto call(const char* name, Body&& body) {
  try {
    Process& running = process();
    running.world().throw_if_failed();
    return body(running);
  } catch (...) {
    end_by_exception(name);
  }
}

/// Throws Error(invalid_input) where an argument is null.
inline void expect_given(const char* name, const void* argument) {
  IMBREX_EXPECTS(argument != nullptr, "{} is null", name);
}

}  // namespace imbrex::shmem::c

/// Defines both functions of IMBREX_SHMEM_BOTH; the body knows `ctx`.
#define IMBREX_SHMEM_DEFINE_BOTH(RESULT, NAME, PARAMETERS, ...) \
  RESULT shmem_##NAME PARAMETERS {                              \
    const shmem_ctx_t ctx = SHMEM_CTX_DEFAULT;                  \
    __VA_ARGS__                                                 \
  }                                                             \
  RESULT shmem_ctx_##NAME(shmem_ctx_t ctx, IMBREX_SHMEM_ARGUMENTS PARAMETERS) { __VA_ARGS__ }
