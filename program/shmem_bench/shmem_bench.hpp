// How long calls of imbrex/device/shmem.cuh take, between PEs that work in pairs, from inside kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/shmem_bench/cases.hpp"
#include "imbrex/options.hpp"

namespace imbrex::program {

using apps::ShmemCall, apps::ShmemCase, apps::ShmemMeasure, apps::ShmemScope, apps::shmem_calls, apps::shmem_measures;

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

}  // namespace imbrex::program
