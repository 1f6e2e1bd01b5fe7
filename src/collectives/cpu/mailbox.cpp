#include "collectives/cpu/mailbox.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::collectives {
namespace {

std::size_t up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Mailbox::Mailbox(World& world, int slots, std::size_t bytes)
    : world_(world), slots_(slots), slot_bytes_(header_bytes + up(bytes)), exceptions_(std::uncaught_exceptions()) {
  // Two copies of the slots, then their counters; the heap gives zeroes.
  offset_ = world.heap().allocate(static_cast<std::size_t>(slots) * (2 * slot_bytes_ + sizeof(Commit)));
  world.barrier();
}

Mailbox::~Mailbox() {
  // Behind an exception, this rank is the first to know that it ends: the peers learn why only after the unwinding.
  if (std::uncaught_exceptions() > exceptions_) return;
  // A peer may still read this rank's last messages. Where the world failed, it may write, too: then the memory stays
  // as it is until the world ends.
  try {
    world_.barrier();
    world_.heap().release(offset_);
  } catch (const std::exception&) {
  }
}

std::byte* Mailbox::at(int rank, int slot) const {
  const auto index = static_cast<std::size_t>(slots_) * (step_ % 2) + static_cast<std::size_t>(slot);
  return world_.heap().handle().at(rank, offset_ + index * slot_bytes_);
}

Mailbox::Commit& Mailbox::commit(int rank, int slot) const {
  const std::size_t commits = offset_ + 2 * static_cast<std::size_t>(slots_) * slot_bytes_;
  return *reinterpret_cast<Commit*>(
      world_.heap().handle().at(rank, commits + static_cast<std::size_t>(slot) * sizeof(Commit)));
}

void Mailbox::post(int rank, int slot, const Header& header) {
  std::memcpy(at(rank, slot), &header, sizeof header);
  Commit& committed = commit(rank, slot);
  std::int32_t writer = 0;
  if (!std::atomic_ref<std::int32_t>(committed.writer)
           .compare_exchange_strong(writer, world_.rank() + 1, std::memory_order_relaxed) &&
      writer != world_.rank() + 1) {
    const std::string message =
        fmt::format("slot {} of rank {} has two writers: ranks {} and {}", slot, rank, writer - 1, world_.rank());
    world_.fail(message);
    throw std::logic_error(message);
  }
  std::atomic_ref<std::uint64_t>(committed.counter).store(step_ + 1, std::memory_order_release);
}

const Mailbox::Header& Mailbox::wait(int slot, int sender, const std::function<std::string()>& what) {
  const std::atomic_ref<std::uint64_t> seen(commit(world_.rank(), slot).counter);
  runtime::BoundedWait bounded(runtime::limits_of(world_.options()), base::monotonic_seconds());
  runtime::Backoff backoff;
  while (seen.load(std::memory_order_acquire) <= step_) {
    world_.throw_if_failed();
    backoff.pause();
    if (!backoff.sleeping()) continue;
    std::vector<int> late;
    const auto look = [&] { return !(late = runtime::late_ranks(world_, runtime::Counted::cpu)).empty(); };
    const auto give_up = [&](double limit) {
      const std::string message =
          fmt::format("rank {} waited longer than {} s for {} from rank {}: expected step {}, saw {}{}", world_.rank(),
                      limit, what(), sender, step_ + 1, seen.load(std::memory_order_relaxed),
                      runtime::calls_of(world_).absence("this call"));
      world_.fail(message);
      throw Error(ErrorCode::runtime_failure, message);
    };
    using enum runtime::BoundedWait::Verdict;
    switch (bounded.judge(base::monotonic_seconds(), look)) {
      case going_on: break;
      case tell_of_late:
        runtime::tell_late(world_, late,
                           fmt::format("call {}, which waits for {}", runtime::calls_of(world_).last(), what()));
        break;
      case late_rank: give_up(world_.options().entry_limit); break;
      case lost: give_up(world_.options().wait_limit); break;
    }
  }
  return *reinterpret_cast<const Header*>(at(world_.rank(), slot));
}

}  // namespace imbrex::collectives
