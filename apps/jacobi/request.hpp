// What a relaxation is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "imbrex/options.hpp"

namespace imbrex::apps {

/// How PEs exchange what borders on others.
enum class JacobiWay : std::uint8_t {
  kernel_boundaries,  ///< in stream order: a sweep, copies of rows, and a kernel that signals and waits
  graph,              ///< the same, captured as CUDA graphs; GPUs only
  overlapped,         ///< the inner part on a stream of its own
  in_kernel,          ///< in one kernel, whose blocks signal their neighbours
  ring                ///< the same, and other PEs by rings that a thread of the host serves
};

/// What the blocks of in_kernel keep.
enum class JacobiTile : std::uint8_t {
  automatic,  ///< held where the field fits
  held,       ///< their part of the field, in registers
  streamed    ///< nothing: each sweep reads the field from memory and writes it
};

std::string_view name_of(JacobiWay way);
std::string_view name_of(JacobiTile tile);
/// Throw Error(invalid_input) naming the text and what it may be.
JacobiWay parse_jacobi_way(std::string_view text);
JacobiTile parse_jacobi_tile(std::string_view text);

struct JacobiRequest {
  Device device = Device::automatic;
  int ranks = 4;
  std::int64_t rows = 0, columns = 0;     ///< of a PE
  std::string grid;                       ///< of PEs: "2x3" is 2 rows of 3; empty: as square as `ranks` allows
  std::int64_t sweeps = 100, every = 10;  ///< sweeps in all, and between residuals
  std::string type = "fp32";              ///< or fp64
  JacobiWay way = JacobiWay::in_kernel;
  JacobiTile tile = JacobiTile::automatic;
  int blocks = 0;  ///< at most, of in_kernel, of ring and of launches on the CPU; 0: as many as the GPU holds, or 4
  std::uint64_t seed = 0;
  std::uint64_t delays = 0;  ///< not 0: seed of random pauses before signals
  bool verify = false;
  int repeat = 1;
  bool threads = false;  ///< ranks are threads of this process instead of processes
  int ranks_per_gpu = 1;
  double wait_limit = 0;  ///< seconds; 0: the usual one
};

}  // namespace imbrex::apps
