// Words for what NICs say.
#pragma once

#include <cstdint>
#include <string>

namespace imbrex::shmem::nic {

/// "remote access error (syndrome 0x13, vendor 0x0)". `syndrome`: the vendor's in the high half.
std::string syndrome_words(std::uint64_t syndrome);

/// "reads", for a kind of queue: FaultKind::request and ::completion have it (apps/nic/transport.hpp lists them).
std::string kind_words(std::uint64_t kind);

}  // namespace imbrex::shmem::nic
