#include "program/sparse/run_solve.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "apps/sparse/matrix_market.hpp"
#include "apps/sparse/residual.hpp"
#include "base/check.hpp"
#include "base/hash.hpp"
#include "base/narrow.hpp"
#include "imbrex/file.hpp"
#include "program/all_reduce/all_reduce_job.hpp"
#include "program/memory_need.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"
#include "program/sparse/reference.hpp"

namespace imbrex::program::sparse {
namespace {

using base::index;

Triangular system_of(const SolveRequest& request) {
  const bool generated = request.matrix_title.empty();
  const Matrix matrix = generated ? generate(request.kind, request.rows, request.seed)
                                  : parse_matrix_market(request.matrix_text, request.matrix_title);
  try {
    Triangular system = triangular_of(matrix, request.part, request.transposed);
    if (request.single)
      expect_solvable<float>(system);
    else
      expect_solvable<double>(system);
    return system;
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("{}: {}", generated ? name_of(request.kind) : request.matrix_title, error.what()));
  }
}

// In [-1, 1), by the row of the matrix, whichever rank has it; any type holds it.
template <typename T>
T right_element(std::uint64_t seed, std::int64_t row, std::int64_t column) {
  std::uint64_t x = seed;
  for (const std::int64_t part : {row, column}) {
    x = (x ^ static_cast<std::uint64_t>(part)) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return static_cast<T>(static_cast<float>(x >> 40) * 0x1p-23f - 1.0f);
}

template <typename T>
class Rank {
 public:
  Rank(World& world, const SolveRequest& request, const Triangular& system, Device device)
      : world_(world), request_(request), system_(system), device_(device) {
    result_.device = device;
    result_.rows = system.rows;
    result_.entries = system.entries() + system.rows;
  }

  int run(const std::function<void(const SolveResult&)>& report) {
    result_.analysis_seconds = seconds_of(world_, Device::cpu, [&] {
      const Levels levels = levels_of(system_);
      shares_ = share(system_, levels, world_.size(), request_.sharing, request_.block);
      schedule_ = schedule_of(system_, levels, shares_, world_.rank());
      result_.levels = levels.count;
    });
    result_.sharing = shares_.sharing, result_.block = shares_.block;
    result_.cut_rows = schedule_.cut_rows, result_.messages = schedule_.messages;
    shmem::Heap heap(world_, {.device = device_,
                              .bytes = Solver<T>::heap_bytes(schedule_, request_.columns, request_.way),
                              .ranks_per_gpu = request_.ranks_per_gpu,
                              .contexts = 1u << 16});
    {
      Solver<T> solver(heap, schedule_, {request_.way, request_.columns, static_cast<std::uint32_t>(request_.workers)});
      solve(solver);
      world_.barrier();
      if (request_.verify || world_.rank() == 0 || world_.hosts() > 1) gather(solver);
      world_.barrier();
    }
    if (request_.verify) verify();
    tell();
    if (request_.compare) compare();
    if (world_.rank() == 0) finish();
    if (world_.rank() == 0) report(result_);
    return result_.message.empty() ? 0 : static_cast<int>(ErrorCode::unsound);
  }

 private:
  T right(std::int64_t place, std::int64_t column) const {
    return right_element<T>(request_.seed, system_.row_at(place), column);
  }

  std::vector<T> right_of_all() const {
    std::vector<T> values;
    values.reserve(index(system_.rows * request_.columns));
    for (std::int64_t place = 0; place < system_.rows; ++place)
      for (std::int64_t column = 0; column < request_.columns; ++column) values.push_back(right(place, column));
    return values;
  }

  void solve(Solver<T>& solver) {
    std::vector<T> own;
    own.reserve(schedule_.rows.size() * index(request_.columns));
    for (const std::uint32_t row : schedule_.rows)
      for (std::int64_t column = 0; column < request_.columns; ++column) own.push_back(right(row, column));
    solver.set_right(own);
    for (int i = 0; i < request_.repeat; ++i) {
      result_.seconds.push_back(seconds_of(world_, device_, [&] { solver.solve(); }));
      if (!request_.verify) continue;
      const std::vector<T> x = solver.result(world_.rank(), schedule_.rows.size());
      verdict_.note(i, base::hash_of(std::as_bytes(std::span(x))));
    }
  }

  // A PE's part of the solution, on all: its memory is not reached from other hosts. Collective.
  std::vector<T> part_over_hosts(Solver<T>& solver, int pe, std::size_t rows) {
    constexpr std::size_t piece = 4096 / sizeof(T);  // what a gather takes
    std::vector<T> part(rows * index(request_.columns)), all(piece * index(world_.size()));
    if (pe == world_.rank()) part = solver.result(pe, rows);
    part.resize((part.size() + piece - 1) / piece * piece);
    for (std::size_t begin = 0; begin < part.size(); begin += piece) {
      world_.all_gather(&part[begin], all.data(), piece * sizeof(T));
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(index(pe) * piece), piece,
                  part.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    return part;
  }

  // The solution in the order of solving.
  void gather(Solver<T>& solver) {
    const std::int64_t columns = request_.columns;
    solution_.resize(index(system_.rows * columns));
    std::vector<std::size_t> rows(index(world_.size())), next(rows.size());
    for (const std::uint8_t owner : shares_.owner) ++rows[owner];
    std::vector<std::vector<T>> parts;
    for (int pe = 0; pe < world_.size(); ++pe)
      parts.push_back(world_.hosts() > 1 ? part_over_hosts(solver, pe, rows[index(pe)])
                                         : solver.result(pe, rows[index(pe)]));
    for (std::int64_t row = 0; row < system_.rows; ++row) {
      const std::uint8_t owner = shares_.owner[index(row)];
      const auto from = parts[owner].begin() + static_cast<std::ptrdiff_t>(next[owner]++) * columns;
      std::copy_n(from, columns, solution_.begin() + row * columns);
    }
  }

  void verify() {
    worst_ = worst_residual(system_, right_of_all(), solution_, request_.columns, world_.rank(), world_.size());
  }

  void tell() {
    struct Told {
      Residual worst;
      int differs;
    };
    const Told own{worst_, verdict_.differs};
    std::vector<Told> all(index(world_.size()));
    world_.all_gather(&own, all.data(), sizeof own);
    // What is wrong comes before what overflows.
    std::stable_partition(all.begin(), all.end(), [](const Told& told) { return !told.worst.overflows; });
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto& [worst, differs] = all[rank];
      if (worst.overflows && result_.message.empty()) result_.overflows = true;
      result_.max_error_over_bound = std::max(result_.max_error_over_bound, worst.over_bound);
      if (!result_.message.empty()) continue;
      if (worst.overflows)
        result_.message = fmt::format("row {}, right-hand side {}: the solution overflows {}: it is {}", worst.row + 1,
                                      worst.column + 1, sizeof(T) == 4 ? "fp32" : "fp64", worst.value);
      else if (worst.over_bound > 1)
        result_.message =
            fmt::format("row {}, right-hand side {}: a residual of {:.3g}, which is {:.3g} times its bound",
                        worst.row + 1, worst.column + 1, worst.value, worst.over_bound);
      else if (differs >= 0)
        result_.message = fmt::format("rank {}: the bits of solve {} differ from those of the first", rank, differs);
    }
    result_.verified = request_.verify && result_.message.empty();
  }

  void compare() {
    const auto timed = [&](const std::function<void()>& call) { return seconds_of(world_, Device::cuda, call); };
    const std::vector<T> right = right_of_all();
    Reference<T> found = solve_by_library(system_, right, request_.repeat, timed);
    result_.library = {std::move(found.library), found.analysis_seconds, std::move(found.seconds),
                       worst_residual(system_, right, found.solution, 1).over_bound};
  }

  // In the order of the matrix' rows.
  void finish() {
    const std::int64_t columns = request_.columns;
    std::uint64_t digest = base::hash_of({});
    const auto row_of = [&](std::int64_t row) {
      return std::span(solution_).subspan(index(system_.row_at(row) * columns), index(columns));
    };
    for (std::int64_t row = 0; row < system_.rows; ++row) digest = base::hash_of(std::as_bytes(row_of(row)), digest);
    result_.digest = digest;
    if (request_.out.empty()) return;
    std::string text = fmt::format("%%MatrixMarket matrix array real general\n{} {}\n", system_.rows, columns);
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t row = 0; row < system_.rows; ++row)
        fmt::format_to(std::back_inserter(text), "{}\n", row_of(row)[index(column)]);
    write_file(request_.out, text);
  }

  World& world_;
  const SolveRequest& request_;
  const Triangular& system_;
  Device device_;
  SolveResult result_;
  Shares shares_{};
  Schedule schedule_;
  Verdict verdict_;
  Residual worst_;
  std::vector<T> solution_;
};

void validate(const SolveRequest& request) {
  IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
  IMBREX_EXPECTS(request.ranks >= 1 && request.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", request.ranks,
                 max_ranks);
  IMBREX_EXPECTS(request.columns >= 1 && request.columns <= 1024, "{} right-hand sides: from 1 to 1024",
                 request.columns);
  IMBREX_EXPECTS(!request.compare || (request.ranks == 1 && request.columns == 1),
                 "cuSPARSE is compared with on one rank, and with one right-hand side; these are {} ranks and {}",
                 request.ranks, request.columns);
}

// A generated matrix has its diagonal, as entries and in order; then each rank holds the whole solution. Ranks that are
// forked share the system.
void expect_room(const SolveRequest& request, std::int64_t unknowns) {
  const auto rows = static_cast<double>(unknowns);
  const double of_system = rows * static_cast<double>(sizeof(std::int64_t) + sizeof(double)) *
                           (World::launched() ? request.ranks : 1),
               of_entries = rows * static_cast<double>(sizeof(Entry)) * (World::launched() ? request.ranks : 1),
               of_solutions = rows * static_cast<double>(request.columns) * (request.single ? 4 : 8) * request.ranks;
  expect_memory(fmt::format("sparse_triangular_solve of {} unknowns and {} right-hand sides over {} ranks", unknowns,
                            request.columns, request.ranks),
                of_system + std::max(of_entries, of_solutions));
}

// What PEs can need where the heap lies in memory; pages are taken on first touch.
std::size_t world_bytes(const SolveRequest& request, const Triangular& system) {
  const auto slots = std::min<std::int64_t>(system.entries(), system.rows * std::max(request.ranks - 1, 0));
  const auto columns = static_cast<std::size_t>(request.columns + 3);  // groups of four
  return columns * (8 * index(system.rows) + 32 * index(slots)) + (std::size_t{1} << 26);
}

}  // namespace

int run_solve(const SolveRequest& request, const std::function<void(const SolveResult&)>& report) {
  Device device = Device::cpu;
  Triangular system;
  agree_on_job(request.ranks, request.wait_limit, [&] {
    validate(request);
    device = device_of_ranks(request.device, request.ranks, request.threads, request.ranks_per_gpu);
    IMBREX_EXPECTS(!request.compare || device == Device::cuda,
                   "cuSPARSE is compared with on a GPU; this run is on the CPU");
    expect_room(request, request.matrix_title.empty() ? request.rows : 0);
    system = system_of(request);
    expect_room(request, system.rows);
    return runtime::Terms("a run of sparse_triangular_solve")
        .add("rows", system.rows)
        .add("entries", system.entries())
        .add("right-hand sides", request.columns)
        .add("ranks", request.ranks)
        .add("device", name_of(device))
        .add("way", name_of(request.way))
        .add("fp32", request.single)
        .add("transposed", request.transposed)
        .add("block", request.block)
        .add("sharing", request.sharing ? name_of(*request.sharing) : "by itself")
        .add("seed", request.seed)
        .add("verify", request.verify)
        .add("compare", request.compare)
        .add("repeat", request.repeat);
  });
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.ranks_per_gpu = request.ranks_per_gpu;
  options.heap_bytes = world_bytes(request, system);
  return run_ranks(request.ranks, request.threads, options, [&](World& world) {
    return request.single ? Rank<float>(world, request, system, device).run(report)
                          : Rank<double>(world, request, system, device).run(report);
  });
}

}  // namespace imbrex::program::sparse
