// A triangular system that is solved many times, by all PEs of a heap.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "apps/sparse/schedule.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::apps::sparse {

enum class Way {
  in_kernel,          ///< one kernel a solve; PEs send each other packets from it
  kernel_boundaries,  ///< a kernel a level; PEs meet between kernels
  ring,               ///< as in_kernel; packets go by rings that a thread of the host serves
};

Way parse_way(std::string_view name);
std::string_view name_of(Way way);

struct SolverOptions {
  Way way = Way::in_kernel;
  std::int64_t columns = 1;   ///< right-hand sides
  std::uint32_t workers = 1;  ///< CPU: threads a PE
};

/// T is float or double.
template <typename T>
class Solver {
 public:
  /// Bytes of a PE's part of the heap that the solver takes.
  static std::size_t heap_bytes(const Schedule& schedule, std::int64_t columns, Way way = Way::in_kernel);

  /// Collective. The schedules are of one system, that expect_solvable has passed for T, and of the same shares.
  Solver(shmem::Heap& heap, const Schedule& schedule, const SolverOptions& options);
  ~Solver();
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  /// Element (row, column) of this PE's right-hand sides is at number of the row * columns + column. They are copied to
  /// where they always lie.
  void set_right(const std::vector<T>& right);

  /// Collective; done when it returns. Throws Error(runtime_failure) as Heap::finish.
  void solve();

  /// In the kernel: the solve behind what the stream holds. It may be captured, and replayed: nothing in it changes.
  /// Heap::finish tells how it went. On the CPU it is done when this returns.
  void enqueue(CudaStream stream);

  /// Unknowns of a PE, laid out as right-hand sides; `rows` is how many it has. All PEs' solves are over, and none
  /// starts meanwhile.
  std::vector<T> result(int pe, std::size_t rows);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace imbrex::apps::sparse
