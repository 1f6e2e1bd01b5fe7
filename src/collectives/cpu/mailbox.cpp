#include "collectives/cpu/mailbox.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "base/check.hpp"
#include "runtime/control.hpp"

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
  const auto begin = std::chrono::steady_clock::now();
  runtime::Backoff backoff;
  while (seen.load(std::memory_order_acquire) <= step_) {
    world_.throw_if_failed();
    backoff.pause();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (backoff.sleeping() && waited.count() > world_.options().wait_limit) {
      const std::string message =
          fmt::format("rank {} waited longer than {} s for {} from rank {}: expected step {}, saw {}", world_.rank(),
                      world_.options().wait_limit, what(), sender, step_ + 1, seen.load(std::memory_order_relaxed));
      world_.fail(message);
      throw Error(ErrorCode::runtime_failure, message);
    }
  }
  return *reinterpret_cast<const Header*>(at(world_.rank(), slot));
}

}  // namespace imbrex::collectives
