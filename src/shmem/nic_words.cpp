#include "shmem/nic_words.hpp"

#include <array>

#include <fmt/format.h>

namespace imbrex::shmem::nic {
namespace {

const char* name_of(std::uint64_t syndrome) {
  switch (static_cast<std::uint32_t>(syndrome)) {
    case 0x01: return "local length error: too many bytes";
    case 0x02: return "local operation error: the request is malformed or stale";
    case 0x04: return "local protection error: no such memory here";
    case 0x05: return "flushed: an earlier request of the queue failed";
    case 0x12: return "remote invalid request: the place does not suit the operation";
    case 0x13: return "remote access error: no such memory there";
    case 0x10: return "bad response";
    case 0x11: return "local access error";
    case 0x14: return "remote operation error";
    case 0x15: return "transport retries exceeded: the peer does not answer";
    case 0x16: return "receiver not ready, retries exceeded";
    case 0x22: return "remote aborted";
  }
  return "unknown error";
}

}  // namespace

std::string syndrome_words(std::uint64_t syndrome) {
  return fmt::format("{} (syndrome {:#04x}, vendor {:#04x})", name_of(syndrome), syndrome & 0xff, syndrome >> 32);
}

std::string kind_words(std::uint64_t kind) {
  constexpr std::array kinds{"writes",
                             "writes and signals that are set",
                             "writes and signals that are added to",
                             "inline writes",
                             "reads",
                             "additions",
                             "comparisons"};
  return kind < kinds.size() ? kinds[kind] : fmt::format("kind {}", kind);
}

}  // namespace imbrex::shmem::nic
