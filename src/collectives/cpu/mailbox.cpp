#include "collectives/cpu/mailbox.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>

#include "base/check.hpp"
#include "runtime/control.hpp"

namespace imbrex::collectives {
namespace {

constexpr std::size_t counter_bytes = 64;

std::size_t up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Mailbox::Mailbox(World& world, int slots, std::size_t bytes)
    : world_(world), slots_(slots), slot_bytes_(header_bytes + up(bytes)) {
  // Two copies of the slots, then their counters; the heap gives zeroes.
  offset_ = world.heap().allocate(static_cast<std::size_t>(slots) * (2 * slot_bytes_ + counter_bytes));
  world.barrier();
}

Mailbox::~Mailbox() {
  // A peer may still read this rank's last messages.
  try {
    world_.barrier();
  } catch (const std::exception&) {  // the world failed, and nobody reads any more
  }
  world_.heap().release(offset_);
}

std::byte* Mailbox::at(int rank, int slot) const {
  const auto index = static_cast<std::size_t>(slots_) * (step_ % 2) + static_cast<std::size_t>(slot);
  return world_.heap().handle().at(rank, offset_ + index * slot_bytes_);
}

std::uint64_t& Mailbox::counter(int rank, int slot) const {
  const std::size_t counters = offset_ + 2 * static_cast<std::size_t>(slots_) * slot_bytes_;
  return *reinterpret_cast<std::uint64_t*>(
      world_.heap().handle().at(rank, counters + static_cast<std::size_t>(slot) * counter_bytes));
}

void Mailbox::post(int rank, int slot, const Header& header) {
  std::memcpy(at(rank, slot), &header, sizeof header);
  std::atomic_ref<std::uint64_t>(counter(rank, slot)).store(step_ + 1, std::memory_order_release);
}

const Mailbox::Header& Mailbox::wait(int slot, int sender, const std::function<std::string()>& what) {
  const std::atomic_ref<std::uint64_t> seen(counter(world_.rank(), slot));
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
