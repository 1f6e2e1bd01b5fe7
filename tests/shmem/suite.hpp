// The suite of the device API: a table of cases, each an operation, a type, a scope and a shape, which all PEs run
// together. Its kernels are compiled as C++ and as CUDA; answers are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "imbrex/shmem.hpp"

namespace imbrex::shmem::test {

inline constexpr std::uint32_t blocks = 3;
inline constexpr std::size_t room = std::size_t{2} << 20;  ///< bytes of each buffer
inline constexpr std::size_t cells = 4096;                 ///< words of 8 bytes

/// What a PE runs cases by.
struct Bench {
  Bench(Heap& its, CudaStream on)
      : heap(its),
        stream(on),
        source(static_cast<std::byte*>(its.allocate(room))),
        target(static_cast<std::byte*>(its.allocate(room))),
        seen(static_cast<std::byte*>(its.allocate(room))),
        signals(static_cast<Signal*>(its.allocate(cells * 8))),
        words(static_cast<std::byte*>(its.allocate(cells * 8))) {}

  Heap& heap;
  CudaStream stream;
  std::byte *source, *target, *seen;
  Signal* signals;
  std::byte* words;

  int pe() const { return heap.pe(); }
  int pes() const { return heap.pes(); }
  void meet() { heap.world().barrier(); }
};

struct Case {
  std::string name;
  std::function<std::string(Bench&)> run;  ///< collective; what went wrong, or nothing
};

/// Runs each `every`th case, from the first one on. What went wrong, a line a case and PE, to `tell`; returns how many
/// ran.
inline std::size_t run_all(Bench& bench, const std::vector<Case>& cases, std::size_t every,
                           const std::function<void(const std::string&)>& tell) {
  std::size_t ran = 0;
  for (std::size_t i = 0; i < cases.size(); i += every) {
    const std::string wrong = cases[i].run(bench);
    if (!wrong.empty())
      tell("PE " + std::to_string(bench.pe()) + " of " + std::to_string(bench.pes()) + ", " + cases[i].name + ": " +
           wrong);
    bench.meet();
    ++ran;
  }
  return ran;
}

// The tables, of this source's kernels: compiled as C++ for the CPU, as CUDA for GPUs.
std::vector<Case> moves_on_host();
std::vector<Case> moves_on_host_reordered();
std::vector<Case> calls_on_host();  ///< atomic operations, waits and collectives
std::vector<Case> calls_on_host_reordered();
std::vector<Case> few_moves_on_gpu();   ///< by threads, warps and blocks
std::vector<Case> more_moves_on_gpu();  ///< by groups of cooperative_groups, and with more loads under way
std::vector<Case> bulk_moves_on_gpu();  ///< by cp.async.bulk
std::vector<Case> calls_on_gpu();

}  // namespace imbrex::shmem::test
