#include "shmem/c/process.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <vector>

namespace imbrex::shmem::c {
namespace {

constexpr std::size_t own_bytes = std::size_t{1} << 20;  // of the world's heap: notes, teams, what rounding takes

std::atomic<Process*> running =
    nullptr;  // a process that exits without shmem_finalize leaves it, and is lost to its peers
int begun = 0;
bool has_ended = false;
std::atomic<bool> is_ending = false;

/// Streams are flushed, but not waited for: another thread may hold one for ever.
[[noreturn]] void leave(int code) noexcept {
  try {
    std::thread([code] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      _exit(code);
    }).detach();
    std::fflush(nullptr);
  } catch (...) {
  }
  _exit(code);
}

/// One thread ends the process; others that would stay here.
void be_the_one_to_end() noexcept {
  if (!is_ending.exchange(true)) return;
  for (;;) pause();
}

/// `call`: null where none is to be named.
[[noreturn]] void end(const char* call, const char* message, int code) noexcept {
  be_the_one_to_end();
  try {
    const std::string said = call ? fmt::format("{}: {}", call, message) : message;
    std::string line = fmt::format("imbrex: {}\n", said);
    if (const Process* const process = running) {
      World& world = process->world();
      world.fail(said);
      for (int pe = 0; pe < world.size(); ++pe) {
        Notes& notes = process->notes(pe);
        if (device::word_at<std::uint32_t>(&notes.exited).load(std::memory_order_acquire) != 0) leave(notes.status);
      }
      line = fmt::format("imbrex: PE {}: {}\n", world.rank(), said);
    }
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {
  }
  leave(code);
}

}  // namespace

void end_by_exception(const char* call) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    end(call, error.what(), static_cast<int>(error.code()));
  } catch (const std::bad_alloc&) {
    end(call, "out of memory", 3);
  } catch (const std::exception& error) {
    end(call, error.what(), 3);
  } catch (...) {
    end(call, "an exception that is no std::exception", 3);
  }
}

void end_by_exit(Process& process, int status) noexcept {
  be_the_one_to_end();
  Notes& notes = process.notes(process.world().rank());
  notes.status = status;
  device::word_at<std::uint32_t>(&notes.exited).store(1, std::memory_order_release);
  process.world().fail("it called shmem_global_exit");
  leave(status);
}

// ----------------------------------------------------------------------------------------------------- Watch

Watch::Watch(World& world) : world_(world), thread_([this] { run(); }) {}

Watch::~Watch() {
  {
    const std::lock_guard guard(lock_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Watch::ended_within(std::chrono::milliseconds time) {
  std::unique_lock guard(lock_);
  return changed_.wait_for(guard, time, [this] { return ended_; });
}

void Watch::run() {
  while (!ended_within(std::chrono::milliseconds(10))) {
    try {
      world_.throw_if_failed();
    } catch (const Error& error) {
      // A call that is under way can say which it is.
      if (ended_within(std::chrono::milliseconds(200))) return;
      end(nullptr, error.what(), static_cast<int>(error.code()));
    }
  }
}

// --------------------------------------------------------------------------------------------------- Process

Process::Process(int thread_level) : thread_level_(thread_level) {
  const HeapOptions options = HeapOptions::from_environment();
  world_ = World::from_environment({.heap_bytes = options.bytes + own_bytes});
  notes_ = world_->heap().allocate(sizeof(Notes));
  heap_ = std::make_unique<Heap>(*world_, options);
  context_.emplace(heap_->handle(), 0);
  const Member all{heap_->world_team(), 0};
  teams_.emplace(1, all), teams_.emplace(2, all);  // all PEs share this host's memory
  watch_ = std::make_unique<Watch>(*world_);
}

Process::~Process() { watch_.reset(); }

const Team& Process::team(shmem_team_t handle) const {
  const auto found = teams_.find(reinterpret_cast<std::uintptr_t>(handle));
  IMBREX_EXPECTS(found != teams_.end(), "team {}: no team has this handle", fmt::ptr(handle));
  return found->second.team;
}

int Process::contexts_of(shmem_team_t handle) const {
  static_cast<void>(team(handle));
  return teams_.at(reinterpret_cast<std::uintptr_t>(handle)).contexts;
}

shmem_team_t Process::team_of(shmem_ctx_t handle) const {
  if (handle == SHMEM_CTX_DEFAULT) return SHMEM_TEAM_WORLD;
  const auto found = contexts_.find(reinterpret_cast<std::uintptr_t>(handle));
  IMBREX_EXPECTS(found != contexts_.end(), "context {}: no context has this handle", fmt::ptr(handle));
  return found->second;
}

shmem_team_t Process::add(const Team& team, int contexts) {
  teams_.emplace(next_, Member{team, contexts});
  return IMBREX_SHMEM_HANDLE(shmem_team_t, next_++);
}

shmem_ctx_t Process::add_context(shmem_team_t team) {
  contexts_.emplace(next_, team);
  return IMBREX_SHMEM_HANDLE(shmem_ctx_t, next_++);
}

void Process::remove_context(shmem_ctx_t handle) {
  IMBREX_EXPECTS(handle != SHMEM_CTX_DEFAULT, "the default context is not to be destroyed");
  static_cast<void>(team_of(handle));
  context().quiet();
  contexts_.erase(reinterpret_cast<std::uintptr_t>(handle));
}

void Process::remove(shmem_team_t handle) {
  IMBREX_EXPECTS(handle != SHMEM_TEAM_WORLD && handle != SHMEM_TEAM_SHARED, "a predefined team is not to be destroyed");
  heap().release(team(handle));
  std::erase_if(contexts_, [&](const auto& one) { return one.second == handle; });
  teams_.erase(reinterpret_cast<std::uintptr_t>(handle));
}

void* Process::allocate(std::size_t bytes, std::size_t alignment) {
  void* own = nullptr;
  try {
    own = heap().allocate(bytes, alignment);
  } catch (const Error& error) {
    // Either the heap is full, of which all PEs learn, or the world has failed.
    if (error.code() != ErrorCode::runtime_failure) throw;
    world().throw_if_failed();
    return nullptr;
  }
  if (own != nullptr) blocks_.emplace(own, bytes);
  return own;
}

void Process::release(void* own) {
  heap().release(own);
  blocks_.erase(own);
}

std::size_t Process::bytes_of(void* own) const {
  const auto found = blocks_.find(own);
  IMBREX_EXPECTS(found != blocks_.end(), "ptr = {}: this heap did not give it, or has it back", own);
  return found->second;
}

std::uint32_t Process::pe(const Team& team, int pe) const {
  const auto last = static_cast<int>(team.size) - 1;
  const bool of_world = team.size == context_->pes();
  IMBREX_EXPECTS(pe >= 0 && pe <= last, "PE {}: {} 0 to {}", pe, of_world ? "PEs are" : "the team's PEs are", last);
  return team.pe(static_cast<std::uint32_t>(pe));
}

void Process::expect_held(const char* argument, const void* address, std::size_t count, std::size_t size) const {
  if (count == 0) return;
  IMBREX_EXPECTS(count <= std::size_t{std::numeric_limits<std::ptrdiff_t>::max()},
                 "{} elements at {} = {}: their number must not be negative", static_cast<std::ptrdiff_t>(count),
                 argument, address);
  expect_span_held(argument, address, count, size);
}

void Process::expect_span_held(const char* argument, const void* address, std::size_t count, std::size_t size) const {
  if (count == 0) return;
  const std::size_t bytes = product_of(count, size);
  IMBREX_EXPECTS(bytes != uncountable && heap().holds(address, bytes),
                 "{} elements of {} bytes at {} = {}: the symmetric heap does not hold them", count, size, argument,
                 address);
}

void Process::expect_addresses(const char* argument, const void* address, std::size_t count, std::size_t size) const {
  if (count == 0) return;
  expect_given(argument, address);
  const std::size_t bytes = product_of(count, size);
  IMBREX_EXPECTS(sum_of(reinterpret_cast<std::uintptr_t>(address), bytes) != uncountable,
                 "{} elements of {} bytes at {} = {}: no memory reaches so far", count, size, argument, address);
}

void Process::expect_words(const char* argument, const void* address, std::size_t count, std::size_t size) const {
  expect_held(argument, address, count, size);
  IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(address) % size == 0, "{} = {}: it must be aligned to {} bytes",
                 argument, address, size);
}

void Process::expect_on_host() const {
  IMBREX_EXPECTS(heap().device() == Device::cpu,
                 "the heap lies on GPUs (IMBREX_SHMEM_DEVICE), where a host cannot do this; a kernel can, with "
                 "imbrex/device/shmem.cuh");
}

void Process::write(void* own, const void* here, std::size_t bytes, std::uint32_t pe) {
  if (bytes == 0) return;
  if (heap().device() == Device::cpu)
    return context().put(static_cast<std::byte*>(own), static_cast<const std::byte*>(here), bytes, pe);
  std::vector<std::byte> staged;
  if (heap().holds(here, 1)) {
    staged.resize(bytes);
    heap().read(staged.data(), here, bytes, heap().pe());
    here = staged.data();
  }
  heap().write(own, here, bytes, static_cast<int>(pe));
}

void Process::read(void* here, const void* own, std::size_t bytes, std::uint32_t pe) {
  if (bytes == 0) return;
  if (heap().device() == Device::cpu)
    return context().get(static_cast<std::byte*>(here), static_cast<const std::byte*>(own), bytes, pe);
  if (!heap().holds(here, 1)) return heap().read(here, own, bytes, static_cast<int>(pe));
  std::vector<std::byte> staged(bytes);
  heap().read(staged.data(), own, bytes, static_cast<int>(pe));
  heap().write(here, staged.data(), bytes, heap().pe());
}

void Process::throw_failure() {
  heap().check();
  throw Error(ErrorCode::runtime_failure, "a wait ended early, and no PE said why");
}

// ------------------------------------------------------------------------------------------- the process's one

Process& process() {
  Process* const process = running;
  IMBREX_EXPECTS(process != nullptr, "{}", has_ended ? "called after shmem_finalize" : "called before shmem_init");
  return *process;
}

bool is_running() { return running != nullptr; }

Process& begin(int thread_level) {
  IMBREX_EXPECTS(!has_ended, "called after the last shmem_finalize");
  if (!running) running = new Process(thread_level);
  ++begun;
  return *running;
}

void finish() {
  if (--begun > 0) return;
  process().heap().barrier(process().heap().world_team());
  delete running;
  running = nullptr;
  has_ended = true;
}

}  // namespace imbrex::shmem::c
