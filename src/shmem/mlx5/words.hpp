// Words for what NICs say.
#pragma once

#include <cstdint>
#include <string>

namespace imbrex::shmem::mlx5 {

/// Syndromes of completions with an error.
enum : std::uint32_t {
  local_length_error = 0x01,
  local_operation_error = 0x02,
  local_protection_error = 0x04,
  flushed_error = 0x05,
  remote_request_error = 0x12,
  remote_access_error = 0x13
};

/// "remote access error (syndrome 0x13, vendor 0x0)". `syndrome`: the vendor's in the high half.
std::string syndrome_words(std::uint64_t syndrome);

/// "reads", for a Kind.
std::string kind_words(std::uint64_t kind);

}  // namespace imbrex::shmem::mlx5
