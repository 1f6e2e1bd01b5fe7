#include "sparse/random_solve.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <random>

#include "apps/sparse/residual.hpp"
#include "sparse/serial.hpp"

namespace imbrex::test {

using namespace apps::sparse;

namespace {

template <typename T>
class Pe {
 public:
  Pe(World& world, const RandomSolve& subject, Device device, int ranks_per_gpu, CudaStream stream)
      : world_(world),
        subject_(subject),
        analysed_(world, subject),
        device_(device),
        ranks_per_gpu_(ranks_per_gpu),
        stream_(stream) {}

  std::string run() {
    shmem::Heap heap = heap_on(device_);
    SolverOptions options{Way::in_kernel, subject_.columns, subject_.workers};
    Solver<T> in_kernel(heap, analysed_.schedule, options);
    options.way = Way::kernel_boundaries;
    Solver<T> by_level(heap, analysed_.schedule, options);
    options.way = Way::ring;
    Solver<T> by_ring(heap, analysed_.schedule, options);
    std::vector<T> last;
    for (const std::uint64_t epoch : {1, 2, 3, 4, 5}) {
      const std::vector<T> all = right(epoch), own = own_right(analysed_.schedule, all, subject_.columns);
      solve(heap, in_kernel, own);
      solve(heap, by_ring, own);
      if (epoch % 2 == 0) continue;  // no rank waits for another one between these solves
      by_level.set_right(own);
      by_level.solve();
      world_.barrier();
      last = gathered(in_kernel);
      const auto second = gathered(by_level), third = gathered(by_ring);
      world_.barrier();
      if (last != second || last != third) return fmt::format("solve {}: the ways differ", epoch);
      const std::string why = judge(all, last);
      if (!why.empty()) return fmt::format("solve {}: {}", epoch, why);
    }
    if (device_ == Device::cuda && on_cpu() != last) return "the devices differ";
    return {};
  }

 private:
  void solve(shmem::Heap& heap, Solver<T>& solver, const std::vector<T>& own) const {
    solver.set_right(own);
    if (stream_ == nullptr) return solver.solve();
    world_.barrier();
    solver.enqueue(stream_);
    heap.finish(stream_);
    world_.barrier();
  }

  shmem::Heap heap_on(Device device) const {
    return shmem::Heap(world_, {.device = device,
                                .bytes = 3 * Solver<T>::heap_bytes(analysed_.schedule, subject_.columns, Way::ring),
                                .ranks_per_gpu = ranks_per_gpu_,
                                .pauses = subject_.seed % 3 == 0 ? subject_.seed : 0});
  }

  // Right-hand sides of `epoch`, the same on every PE.
  std::vector<T> right(std::uint64_t epoch) const {
    std::mt19937_64 random(subject_.seed * 1000 + epoch);
    std::vector<T> values(static_cast<std::size_t>(subject_.system.rows * subject_.columns));
    for (T& value : values) value = static_cast<T>(static_cast<int>(random() % 17) - 8);
    return values;
  }

  std::vector<T> on_cpu() const {
    shmem::Heap heap = heap_on(Device::cpu);
    Solver<T> solver(heap, analysed_.schedule, {Way::in_kernel, subject_.columns, subject_.workers});
    solver.set_right(own_right(analysed_.schedule, right(5), subject_.columns));
    solver.solve();
    world_.barrier();
    const auto all = gathered(solver);
    world_.barrier();
    return all;
  }

  std::vector<T> gathered(Solver<T>& solver) const {
    const auto& owner = analysed_.shares.owner;
    std::vector<T> all(static_cast<std::size_t>(subject_.system.rows * subject_.columns));
    for (int pe = 0; pe < world_.size(); ++pe) {
      std::vector<std::size_t> rows;
      for (std::size_t row = 0; row < owner.size(); ++row)
        if (owner[row] == pe) rows.push_back(row);
      const std::vector<T> part = solver.result(pe, rows.size());
      const auto columns = static_cast<std::size_t>(subject_.columns);
      for (std::size_t i = 0; i < part.size(); ++i) all[rows[i / columns] * columns + i % columns] = part[i];
    }
    return all;
  }

  std::string judge(const std::vector<T>& right, const std::vector<T>& found) const {
    const Residual residual = worst_residual(subject_.system, right, found, subject_.columns);
    if (residual.over_bound > 1)
      return fmt::format("row {}, column {}: a residual of {}, which is {} of its bound", residual.row, residual.column,
                         residual.value, residual.over_bound);
    Triangular rounded = subject_.system;
    for (auto* values : {&rounded.value, &rounded.diagonal})
      for (double& value : *values) value = static_cast<T>(value);
    for (std::int64_t column = 0; column < subject_.columns; ++column) {
      std::vector<double> b, x;
      for (std::int64_t row = 0; row < rounded.rows; ++row) {
        const auto at = static_cast<std::size_t>(row * subject_.columns + column);
        b.push_back(right[at]), x.push_back(found[at]);
      }
      const Serial serial = solve_serially(rounded, b);
      const auto distance = serial.distance(x, std::numeric_limits<T>::epsilon() / 2);
      for (std::size_t row = 0; row < x.size(); ++row) {
        const long double off = std::abs(serial.solution[row] - static_cast<long double>(x[row]));
        if (subject_.exact ? off != 0 : !(off <= distance[row]))
          return fmt::format("place {}, column {}: {}, and serially {}", row, column, x[row],
                             static_cast<double>(serial.solution[row]));
      }
    }
    return {};
  }

  World& world_;
  const RandomSolve& subject_;
  Analysed analysed_;
  Device device_;
  int ranks_per_gpu_;
  CudaStream stream_;
};

}  // namespace

std::string RandomSolve::text(int pes) const {
  return fmt::format("seed {}: {} rows, {} entries, {} right-hand sides, {} PEs, {}, blocks of {}, {} workers, {}, {}",
                     seed, system.rows, system.entries(), columns, pes, name_of(sharing), block, workers,
                     system.backwards ? "backwards" : "forwards", single ? "fp32" : "fp64");
}

RandomSolve random_solve(std::uint64_t seed, std::int64_t most) {
  std::mt19937_64 random(seed);
  RandomSolve subject{seed, {}};
  subject.exact = random() % 4 == 0;
  const Matrix matrix = random_triangular(random, most, subject.exact);
  subject.system = triangular_of(matrix, Part::whole, random() % 2 == 0);
  if (random() % 3 == 0) subject.columns = static_cast<std::int64_t>(2 + random() % 6);
  if (random() % 2 == 0)
    subject.sharing = Sharing::cyclic, subject.block = static_cast<std::int64_t>(1 + random() % 20);
  subject.workers = static_cast<std::uint32_t>(1 + random() % 3);
  subject.single = random() % 2 == 0;
  return subject;
}

std::string fault_of(World& world, const RandomSolve& subject, Device device, int ranks_per_gpu, CudaStream stream) {
  return subject.single ? Pe<float>(world, subject, device, ranks_per_gpu, stream).run()
                        : Pe<double>(world, subject, device, ranks_per_gpu, stream).run();
}

Analysed::Analysed(World& world, const RandomSolve& subject) {
  const Levels levels = levels_of(subject.system);
  shares = share(subject.system, levels, world.size(), subject.sharing, subject.block);
  schedule = schedule_of(subject.system, levels, shares, world.rank());
}

}  // namespace imbrex::test
