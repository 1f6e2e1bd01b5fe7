// Words for what the thread that serves rings refuses.
#pragma once

#include <cstdint>
#include <string>

namespace imbrex::shmem::ring {

/// What is wrong with a descriptor.
enum class Refusal : std::uint32_t { unknown_template = 1, unknown_pe, outside_here, outside_there, odd_place };

/// "bytes there that no heap holds", for a Refusal.
std::string refusal_words(std::uint64_t refusal);

}  // namespace imbrex::shmem::ring
