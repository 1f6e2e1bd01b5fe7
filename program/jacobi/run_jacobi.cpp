#include "program/jacobi/run_jacobi.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "apps/jacobi/serial.hpp"
#include "apps/jacobi/solver.hpp"
#include "base/check.hpp"
#include "base/text.hpp"
#include "program/all_reduce/all_reduce_job.hpp"
#include "program/memory_need.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"

namespace imbrex::program {
namespace {

using namespace apps;

struct PeGrid {
  int rows, columns;
};

PeGrid grid_of(const JacobiRequest& request) {
  if (request.grid.empty()) {
    auto rows = static_cast<int>(std::sqrt(static_cast<double>(request.ranks)));
    while (request.ranks % rows != 0) --rows;
    return {rows, request.ranks / rows};
  }
  PeGrid grid{};
  const char* end = request.grid.data() + request.grid.size();
  const auto first = std::from_chars(request.grid.data(), end, grid.rows);
  bool well = first.ec == std::errc{} && first.ptr != end && *first.ptr == 'x';
  if (well) {
    const auto second = std::from_chars(first.ptr + 1, end, grid.columns);
    well = second.ec == std::errc{} && second.ptr == end;
  }
  IMBREX_EXPECTS(well && grid.rows >= 1 && grid.columns >= 1,
                 "grid '{}': it must be rows x columns of PEs, each 1 or more, as 2x3", base::printable(request.grid));
  IMBREX_EXPECTS(std::int64_t{grid.rows} * grid.columns == request.ranks,
                 "grid {}: {} x {} are {} PEs, and there are {} ranks", request.grid, grid.rows, grid.columns,
                 std::int64_t{grid.rows} * grid.columns, request.ranks);
  return grid;
}

void validate(const JacobiRequest& request) {
  constexpr std::int64_t longest = std::int64_t{1} << 24, most_sweeps = 100'000'000, most_residuals = 1'000'000;
  IMBREX_EXPECTS(request.ranks >= 1 && request.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", request.ranks,
                 max_ranks);
  IMBREX_EXPECTS(request.type == "fp32" || request.type == "fp64", "type '{}': jacobi works in fp32 or fp64",
                 base::printable(request.type));
  for (const auto& [name, value] : {std::pair{"rows", request.rows}, {"columns", request.columns}})
    IMBREX_EXPECTS(value >= 1 && value <= longest, "{} = {}: a PE has from 1 to {}", name, value, longest);
  IMBREX_EXPECTS(request.rows * request.columns <= (std::int64_t{1} << 32) / request.ranks,
                 "{} x {} elements a PE: on {} PEs they are more than 2^32, which residuals are summed over",
                 request.rows, request.columns, request.ranks);
  IMBREX_EXPECTS(request.sweeps >= 1 && request.sweeps <= most_sweeps, "sweeps = {}: it must be from 1 to {}",
                 request.sweeps, most_sweeps);
  IMBREX_EXPECTS(request.every >= 1 && request.every <= most_sweeps, "residual-every = {}: it must be from 1 to {}",
                 request.every, most_sweeps);
  IMBREX_EXPECTS(request.sweeps / request.every <= most_residuals,
                 "{} sweeps with a residual every {} are {} residuals: there may be {}", request.sweeps, request.every,
                 request.sweeps / request.every, most_residuals);
  IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
  IMBREX_EXPECTS(request.ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be 1 or more", request.ranks_per_gpu);
  IMBREX_EXPECTS(request.blocks >= 0 && request.blocks <= 1024, "blocks = {}: it must be from 0 to 1024",
                 request.blocks);
  IMBREX_EXPECTS(request.way == JacobiWay::in_kernel || request.tile == JacobiTile::automatic,
                 "tile {}: it is about the way in_kernel, not {}", name_of(request.tile), name_of(request.way));
}

Device choose_device(const JacobiRequest& request) {
  Device device = Device::cpu;
  if (request.device != Device::cpu) {
    choose::GpuKind gpus;
    const bool own = World::launched() && request.device == Device::cuda;
    const std::string refusal =
        refusal_of_ranks(request.ranks, request.threads, own, gpus, true, request.ranks_per_gpu);
    IMBREX_EXPECTS(refusal.empty() || request.device != Device::cuda, "device cuda: {}", refusal);
    if (refusal.empty()) device = Device::cuda;
  }
  constexpr std::int64_t most_captured = 4096;
  IMBREX_EXPECTS(request.way != JacobiWay::graph || request.every > request.sweeps ||
                     request.every <= most_captured / 2 || request.sweeps <= most_captured,
                 "residual-every = {}: a graph has up to {} sweeps, and a residual in the same place each time it is "
                 "replayed",
                 request.every, most_captured);
  IMBREX_EXPECTS(device == Device::cuda || request.way != JacobiWay::graph,
                 "way graph: the CPU has no graphs; it is for --device cuda");
  return device;
}

// What a PE tells the others about its field.
struct Told {
  std::int64_t wrong = 0, row = 0, column = 0;  // how many elements, and where the first is
  double is = 0, wanted = 0;
};

template <typename T>
Told compare(const jacobi::Solver& solver, const std::vector<std::byte>& bytes, const jacobi::Solution<T>& wanted,
             int rank) {
  const jacobi::Field& field = solver.field();
  const std::int64_t row0 = rank / static_cast<int>(field.grid_columns) * std::int64_t{field.rows};
  const std::int64_t column0 = rank % static_cast<int>(field.grid_columns) * std::int64_t{field.columns};
  Told told;
  for (std::int64_t row = 0; row < field.rows; ++row)
    for (std::int64_t column = 0; column < field.columns; ++column) {
      T value;
      std::memcpy(&value, bytes.data() + static_cast<std::size_t>(field.at(row, column)) * sizeof(T), sizeof value);
      const T right = wanted.at(row0 + row, column0 + column);
      if (std::memcmp(&value, &right, sizeof value) == 0) continue;
      if (told.wrong++ == 0)
        told = {1, row0 + row, column0 + column, static_cast<double>(value), static_cast<double>(right)};
    }
  return told;
}

std::vector<jacobi::ExactSum> exact(const std::vector<std::uint64_t>& words) {
  std::vector<jacobi::ExactSum> sums;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2)
    sums.push_back((static_cast<jacobi::ExactSum>(words[i]) << 32) + words[i + 1]);
  return sums;
}

template <typename T>
class JacobiRank {
 public:
  JacobiRank(World& world, const JacobiRequest& request, Device device, PeGrid grid)
      : world_(world), request_(request), device_(device), grid_(grid) {}

  JacobiResult run() {
    const auto made = (device_ == Device::cuda ? jacobi::cuda_solver : jacobi::cpu_solver)(
        world_, request_, static_cast<std::uint32_t>(grid_.rows), static_cast<std::uint32_t>(grid_.columns));
    jacobi::Solver& solver = *made;
    std::optional<jacobi::Solution<T>> wanted;
    if (request_.verify)
      wanted = jacobi::solve_serially<T>(request_.rows * grid_.rows, request_.columns * grid_.columns, request_.seed,
                                         request_.sweeps, request_.every);
    for (int i = 0; i < request_.repeat; ++i) {
      solver.start();
      result_.seconds.push_back(seconds_of(world_, device_, [&] { solver.sweep(); }));
      solver.finish();
      if (wanted && result_.message.empty()) check(solver, *wanted, i);
    }
    for (const jacobi::ExactSum sum : exact(solver.sums())) result_.residuals.push_back(jacobi::rounded(sum));
    result_.device = device_;
    result_.grid_rows = grid_.rows, result_.grid_columns = grid_.columns;
    result_.blocks = solver.blocks();
    result_.verified = request_.verify && result_.message.empty();
    return result_;
  }

 private:
  // The same message on every PE.
  void check(jacobi::Solver& solver, const jacobi::Solution<T>& wanted, int repeat) {
    Told own = compare(solver, solver.result(), wanted, world_.rank());
    std::vector<Told> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&own, all.data(), sizeof own);
    std::int64_t differs = -1;
    if (world_.rank() == 0) {
      const auto sums = exact(solver.sums());
      for (std::size_t k = 0; k < sums.size() && differs < 0; ++k)
        if (sums[k] != wanted.residuals.at(k)) differs = static_cast<std::int64_t>(k);
    }
    std::vector<std::int64_t> first(all.size());
    world_.all_gather(&differs, first.data(), sizeof differs);
    for (std::size_t rank = 0; rank < all.size() && result_.message.empty(); ++rank)
      if (const Told& told = all[rank]; told.wrong > 0)
        result_.message = fmt::format(
            "repeat {}: PE {} has {} wrong elements; ({}, {}) of the whole is {}, and {} in the serial solution",
            repeat, rank, told.wrong, told.row, told.column, told.is, told.wanted);
    if (result_.message.empty() && first[0] >= 0)
      result_.message = fmt::format("repeat {}: the residual of sweep {} differs from the serial solution's, {}",
                                    repeat, (first[0] + 1) * request_.every,
                                    jacobi::rounded(wanted.residuals[static_cast<std::size_t>(first[0])]));
  }

  World& world_;
  const JacobiRequest& request_;
  Device device_;
  PeGrid grid_;
  JacobiResult result_;
};

}  // namespace

int run_jacobi(const JacobiRequest& request, const std::function<void(const JacobiResult&)>& report) {
  Device device = Device::cpu;
  PeGrid grid{};
  agree_on_job(request.ranks, request.wait_limit, [&] {
    validate(request);
    grid = grid_of(request);
    device = choose_device(request);
    // A field before a sweep and after it.
    if (device == Device::cpu)
      expect_memory(
          fmt::format("jacobi of {} x {} elements a PE on {} PEs", request.rows, request.columns, request.ranks),
          2.0 * static_cast<double>(request.rows) * static_cast<double>(request.columns) *
              (request.type == "fp64" ? sizeof(double) : sizeof(float)) * request.ranks);
    return runtime::Terms("a run of jacobi")
        .add("rows", request.rows)
        .add("columns", request.columns)
        .add("grid", fmt::format("{}x{}", grid.rows, grid.columns))
        .add("sweeps", request.sweeps)
        .add("residual-every", request.every)
        .add("type", request.type)
        .add("way", name_of(request.way))
        .add("tile", name_of(request.tile))
        .add("blocks", request.blocks)
        .add("seed", request.seed)
        .add("device", name_of(device))
        .add("verify", request.verify)
        .add("repeat", request.repeat);
  });
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.ranks_per_gpu = request.ranks_per_gpu;
  options.heap_bytes = std::size_t{1} << 22;  // states of hosts
  if (device == Device::cpu) options.heap_bytes += jacobi::heap_bytes_of(request, device);
  return run_ranks(request.ranks, request.threads, options, [&](World& world) {
    const JacobiResult result = request.type == "fp64" ? JacobiRank<double>(world, request, device, grid).run()
                                                       : JacobiRank<float>(world, request, device, grid).run();
    if (world.rank() == 0) report(result);
    return result.message.empty() ? 0 : static_cast<int>(ErrorCode::unsound);
  });
}

}  // namespace imbrex::program
