// Where operators and collectives work, and what may be set about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

struct CUstream_st;

namespace imbrex {

/// Where ranks work. `automatic`: on GPUs where this build has the CUDA executor, there is one for each rank, and the
/// executor runs the plan and what else is asked for; else on the CPU.
enum class Device : std::uint8_t { automatic, cpu, cuda };

std::string_view name_of(Device device);

/// Inverse of name_of, "auto" for automatic; throws Error(invalid_input) listing the names.
Device parse_device(std::string_view name);

/// A stream of CUDA: a cudaStream_t or CUstream. Null is the default stream.
using CudaStream = ::CUstream_st*;

/// For tests of Imbrex, and of programs that want to see what late ranks do to them. It changes times, and no results.
struct TestOptions {
  std::uint64_t delays = 0;       ///< not 0: seed of random pauses before tasks, waits and posts, to widen races
  double max_delay = 1e-3;        ///< longest pause, seconds
  std::uint64_t first_epoch = 0;  ///< number of the first call, so that a test may begin near wrap-around

  bool operator==(const TestOptions&) const = default;
};

struct CpuOptions {
  int workers = 1;        ///< threads a rank that take compute tasks
  bool timeline = false;  ///< record spans
  TestOptions testing{};
};

struct CudaOptions {
  std::size_t heap_bytes = std::size_t{64} << 20;  ///< symmetric heap in GPU memory, per rank, for all operators, at
                                                   ///< first; where it is full it grows by as much or what is needed
  std::string kernel;     ///< part of a kernel's name ("plain", "cooperative"); empty: the one that fits the plan best
  bool timeline = false;  ///< blocking calls record spans, of an epoch after others: they queue four more
  int ranks_per_gpu = 1;  ///< more: ranks that share each GPU, each with its part of the SMs, to try plans of more
                          ///< ranks than there are GPUs, slowly; no copy engine brings operands then. Processes run
                          ///< library collectives too, at once under CUDA's MPS, else by time slices; threads do not,
                          ///< and want CUDA_DEVICE_MAX_CONNECTIONS=32
  TestOptions testing{.max_delay = 1e-4};
  /// Bytes that the symmetric heap has at most, per rank; 0: as many as there are. What needs more is refused with
  /// Error(invalid_input), on every rank, before it takes anything: what was made before works on.
  std::size_t heap_limit = 0;

  bool operator==(const CudaOptions&) const = default;
};

}  // namespace imbrex
