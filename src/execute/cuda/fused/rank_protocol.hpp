// The words that a rank's kernels work together through, where a plan has them in the heap: its counters, and behind
// its layout the State with what copy engines take part in.
#pragma once

#include "execute/cuda/tables/table.hpp"
#include "execute/layout.hpp"
#include "imbrex/options.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

/// For the State and what follows it.
inline constexpr std::size_t state_bytes = 256;

/// Where they are. `offset`: the layout's in the heap. One thread of the rank reads the epoch, unless the caller says
/// otherwise.
Protocol protocol_of(const World& world, const HeapHandle& heap, const execute::HeapLayout& layout, std::size_t offset,
                     std::size_t state_offset, device::Fault* fault, const TestOptions& testing, int signal_copies);

/// Sets this rank's as if every epoch before `epoch` had run; counters that have not been touched are zero. Waits for
/// the device.
void start_words(const Protocol& protocol, const execute::HeapLayout& layout, std::uint64_t epoch);

}  // namespace imbrex::cuda
