// What the benchmark of OpenSHMEM's calls times.
#pragma once

#include <cstdint>
#include <string_view>

namespace imbrex::apps {

/// What is timed. `packet`: a value and its signal in 16 bytes. `p_signal`: 8 bytes and a signal, anywhere. The last
/// two are about one earlier put of 8 bytes.
enum class ShmemCall : std::uint8_t { put, get, p, g, put_signal, p_signal, packet, add, fetch_add, fence, quiet };
constexpr int shmem_calls = 11;

/// Threads that make a call together; `wide`: a block in which each thread has more loads under way. On the CPU each
/// is one thread.
enum class ShmemScope : std::uint8_t { thread, warp, block, wide };

enum class ShmemMeasure : std::uint8_t {
  latency,    ///< from the call until the peer has seen it: half of a round trip
  complete,   ///< from the call until it is complete, one after another: a put and a quiet, a get
  issue,      ///< from the call until it returns, one after the other
  bandwidth,  ///< bytes over time of calls by several blocks at once, up to their quiet
  rate,       ///< the same, in messages of 8 bytes, by one thread of each block through a context of its own
};
constexpr int shmem_measures = 5;

std::string_view name_of(ShmemCall call);
std::string_view name_of(ShmemScope scope);
std::string_view name_of(ShmemMeasure measure);

struct ShmemCase {
  ShmemMeasure measure;
  ShmemCall call;
  ShmemScope scope;
  std::uint32_t blocks;   ///< of the grid
  std::uint32_t threads;  ///< of a block
  std::uint64_t bytes;    ///< of a call of all blocks together
};

}  // namespace imbrex::apps
