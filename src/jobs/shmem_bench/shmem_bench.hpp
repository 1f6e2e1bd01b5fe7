// How long calls of imbrex/device/shmem.cuh take, between PEs that work in pairs, from inside kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/options.hpp"

namespace imbrex::jobs {

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

struct ShmemRow {
  ShmemCase what{};
  std::uint32_t calls = 0;  ///< in a sample
  double seconds = 0;       ///< a call
  double cycles = 0;        ///< a call, in the SM's clock, of `issue`; 0 on the CPU
};

struct ShmemBenchRequest {
  int ranks = 2;                       ///< PEs, an even number: PE r works with PE r + ranks / 2
  int ranks_per_gpu = 1;               ///< so many share each GPU: at once under MPS, else by time slices
  Device device = Device::automatic;   ///< cuda where there are enough GPUs
  std::vector<ShmemMeasure> measures;  ///< empty: all
  std::vector<ShmemCall> calls;        ///< empty: all
  bool quick = false;                  ///< three sizes and few calls in a sample
  int rounds = 9;                      ///< cases run in turn, so many times; medians count
  double wait_limit = 30;              ///< seconds
};

struct ShmemBench {
  Device device = Device::cpu;
  std::string gpu;  ///< its name; empty on the CPU
  std::vector<ShmemRow> rows;
};

/// Measures between PEs that are processes of this machine, or ranks of a launcher; `report` is called on rank 0, in
/// that rank's process. The slowest pair counts. What was put and got is compared with what was sent. Returns the exit
/// code, 1 where it differs. Throws Error(invalid_input) for an odd number of PEs, for `cuda` where there are too few
/// GPUs, and for calls that none of the measures has.
int bench_shmem(const ShmemBenchRequest& request, const std::function<void(const ShmemBench&)>& report);

}  // namespace imbrex::jobs
