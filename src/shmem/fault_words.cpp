#include <fmt/format.h>

#include "shmem/memory.hpp"
#include "shmem/nic_words.hpp"
#include "shmem/ring/words.hpp"

namespace imbrex::shmem {

std::string fault_words(const device::Fault& fault, int pe, double limit) {
  const std::uint64_t high = fault.epoch;
  const auto expected = (high >> 32) << 32 | fault.expected;
  const auto seen = high << 32 | fault.seen;
  const auto offset = std::uint64_t{fault.place[3]} << 32 | fault.place[2];
  const auto who = fmt::format("PE {}, block {}", pe, std::uint32_t{fault.place[0]});
  const std::uint32_t other = fault.place[1];
  switch (static_cast<FaultKind>(std::uint32_t{fault.kind})) {
    case FaultKind::wait:
      return fmt::format("{} waited longer than {} s for what lies at offset {} of its heap: compared with {}, saw {}",
                         who, limit, offset, static_cast<std::int64_t>(expected), static_cast<std::int64_t>(seen));
    case FaultKind::collective:
      return fmt::format("{} waited longer than {} s for PE {} in a collective of a team: expected call {}, saw {}",
                         who, limit, other, expected, seen);
    case FaultKind::pe: return fmt::format("{} named PE {}: PEs are 0 to {}", who, other, expected - 1);
    case FaultKind::address:
      return fmt::format("{} named {} bytes at offset {} of the heap on PE {}: the heap does not hold them", who,
                         expected, static_cast<std::int64_t>(offset), other);
    case FaultKind::far:
      return fmt::format("{} named PE {} of another host at offset {} of the heap: loads and stores do not reach it",
                         who, other, static_cast<std::int64_t>(offset));
    case FaultKind::context: return fmt::format("{} asked for context {}: there are {}", who, seen, expected);
    case FaultKind::request:
      return fmt::format("{}: the NIC refused request {} to PE {} of its queue for {}: {}", who, seen, other,
                         nic::kind_words(offset), nic::syndrome_words(expected));
    case FaultKind::completion:
      return fmt::format("{} waited longer than {} s for request {} to PE {} of its queue for {}: {} are complete", who,
                         limit, expected, other, nic::kind_words(offset), seen);
    case FaultKind::turn:
      return fmt::format("{} waited longer than {} s for its turn at its context's queues", who, limit);
    case FaultKind::ring_full:
      return fmt::format(
          "{} waited longer than {} s for room in its context's ring of {} slots: {} are needed, {} were "
          "read",
          who, limit, offset, expected, seen);
    case FaultKind::ring_completion:
      return fmt::format("{} waited longer than {} s for its context's ring: of {} slots, {} are complete", who, limit,
                         expected, seen);
    case FaultKind::descriptor:
      return fmt::format("PE {}: slot {} of the ring of context {}, to PE {} at offset {}, was refused: {}", pe, seen,
                         std::uint32_t{fault.place[0]}, other, offset, ring::refusal_words(expected));
  }
  return fmt::format("{}: fault {} at offset {}", who, std::uint32_t{fault.kind}, offset);
}

}  // namespace imbrex::shmem
