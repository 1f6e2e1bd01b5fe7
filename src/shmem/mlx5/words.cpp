#include "shmem/mlx5/words.hpp"

#include <fmt/format.h>

#include "imbrex/device/shmem/mlx5/transport.hpp"

namespace imbrex::shmem::mlx5 {
namespace {

const char* name_of(std::uint64_t syndrome) {
  switch (static_cast<std::uint32_t>(syndrome)) {
    case local_length_error: return "local length error: too many bytes";
    case local_operation_error: return "local operation error: the request is malformed or stale";
    case local_protection_error: return "local protection error: no such memory here";
    case flushed_error: return "flushed: an earlier request of the queue failed";
    case remote_request_error: return "remote invalid request: the place does not suit the operation";
    case remote_access_error: return "remote access error: no such memory there";
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
  switch (static_cast<Kind>(kind)) {
    case Kind::write: return "writes";
    case Kind::write_and_set: return "writes and signals that are set";
    case Kind::write_and_add: return "writes and signals that are added to";
    case Kind::write_inline: return "inline writes";
    case Kind::read: return "reads";
    case Kind::fetch_add: return "additions";
    case Kind::compare_swap: return "comparisons";
  }
  return fmt::format("kind {}", kind);
}

}  // namespace imbrex::shmem::mlx5
