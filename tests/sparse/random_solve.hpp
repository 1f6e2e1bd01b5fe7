// Random triangular systems, solved by all PEs of a world in every way, and compared with a serial solution.
#pragma once

#include <string>

#include "apps/sparse/schedule.hpp"
#include "apps/sparse/solver.hpp"
#include "imbrex/options.hpp"
#include "imbrex/world.hpp"

namespace imbrex::test {

struct RandomSolve {
  std::uint64_t seed;
  apps::sparse::Triangular system;
  std::int64_t columns = 1;
  apps::sparse::Sharing sharing = apps::sparse::Sharing::contiguous;
  std::int64_t block = 0;
  std::uint32_t workers = 1;
  bool exact = false, single = false;

  std::string text(int pes) const;
};

/// A system with up to `most` rows.
RandomSolve random_solve(std::uint64_t seed, std::int64_t most);

/// Collective. Several solves in the kernel, which no barrier parts, and at kernel boundaries; on GPUs also on the CPU:
/// all of the same bits, within the bounds of the serial solution, exact where they can be. Empty if all is well.
/// `stream`: of this PE alone, where PEs that share a GPU are threads. Those meet before and after each solve: the
/// copies of right-hand sides wait for all that runs on the GPU, and a solve for PEs that are still to copy theirs.
std::string fault_of(World& world, const RandomSolve& subject, Device device, int ranks_per_gpu = 1,
                     CudaStream stream = nullptr);

/// Collective: the analysis of a system that all PEs solve.
struct Analysed {
  Analysed(World& world, const RandomSolve& subject);
  apps::sparse::Shares shares;
  apps::sparse::Schedule schedule;
};

/// This PE's elements of right-hand sides of all rows.
template <typename T>
std::vector<T> own_right(const apps::sparse::Schedule& schedule, const std::vector<T>& all, std::int64_t columns) {
  std::vector<T> own;
  for (const std::uint32_t row : schedule.rows)
    own.insert(own.end(), all.begin() + row * columns, all.begin() + (row + 1) * columns);
  return own;
}

}  // namespace imbrex::test
