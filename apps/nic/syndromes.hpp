// What NICs say of requests that fail.
#pragma once

#include <cstdint>

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

}  // namespace imbrex::shmem::mlx5
