// jacobi on the command line, and its run.
#include <algorithm>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "output/colour.hpp"
#include "own_operators.hpp"
#include "program/jacobi/run_jacobi.hpp"
#include "run_options.hpp"

namespace imbrex::cli {
namespace {

constexpr const char* jacobi_name = "jacobi";

void report(const Program& program, const program::JacobiRequest& asked, const program::JacobiResult& result) {
  const std::string grid = fmt::format("{}x{}", result.grid_rows, result.grid_columns);
  const double fastest = *std::min_element(result.seconds.begin(), result.seconds.end());
  Json json{{"exit_code", result.message.empty() ? 0 : 1},
            {"problem",
             {{"operator", jacobi_name},
              {"rows", asked.rows},
              {"columns", asked.columns},
              {"grid", grid},
              {"ranks", asked.ranks},
              {"type", asked.type},
              {"sweeps", asked.sweeps},
              {"residual_every", asked.every}}},
            {"way", name_of(asked.way)},
            {"blocks", result.blocks},
            {"device", name_of(result.device)},
            {"seconds", result.seconds},
            {"residuals", result.residuals}};
  if (asked.verify) json["verified"] = result.verified;
  if (!result.message.empty()) json["message"] = result.message;
  print_json(program, json);

  print(program, "{} of {} x {} {} a PE, {} PEs on {}, {}: {} a sweep{}", jacobi_name, asked.rows, asked.columns,
        asked.type, grid, name_of(result.device), name_of(asked.way),
        readable_seconds(fastest / static_cast<double>(asked.sweeps)),
        result.seconds.size() > 1 ? fmt::format(", the best of {} runs", result.seconds.size()) : "");
  print(program, "  {}", result.blocks);
  if (!result.residuals.empty())
    print(program, "  residual {:.6g} in sweep {}, {:.6g} in sweep {}", result.residuals.front(), asked.every,
          result.residuals.back(), static_cast<std::int64_t>(result.residuals.size()) * asked.every);
  if (!asked.verify) return;
  print(program, "{}{}", verdict_of(program, result.verified),
        result.verified ? ": all elements and residuals are the serial solution's" : "");
  if (!result.verified) print_error("imbrex: " + result.message);
}

class JacobiOptions final : public RunAlone {
 public:
  std::string_view name() const override { return jacobi_name; }

  bool shares(std::string_view option) const override {
    constexpr std::string_view names[] = {"OP",       "--ranks",  "--type",  "--seed",          "--verify",
                                          "--repeat", "--device", "--world", "--ranks-per-gpu", "--wait-limit",
                                          "--delays", "--json"};
    return std::find(std::begin(names), std::end(names), option) != std::end(names);
  }

  bool has_type(std::string_view type) const override { return type == "fp64"; }

  std::string_view examples() const override {
    return "  imbrex run jacobi --size 256 --grid 2x2 --sweeps 100 --residual-every 10 --verify";
  }

  void add_run_to(CLI::App& command) override;

  int run(const Program& program, const PlanOptions& plan, const RunOptions& options) const override;

 private:
  std::int64_t size_ = 0, rows_ = 0, columns_ = 0, sweeps_ = 100, every_ = 10, blocks_ = 0;
  std::string grid_;
  program::JacobiWay way_ = program::JacobiWay::in_kernel;
  program::JacobiTile tile_ = program::JacobiTile::automatic;
};

void JacobiOptions::add_run_to(CLI::App& command) {
  constexpr std::int64_t longest = std::int64_t{1} << 24, most = 100'000'000;
  add_integer(command, "--size", size_, 1, longest, "Rows and columns of a PE's part of the field")->group(jacobi_name);
  add_integer(command, "--rows", rows_, 1, longest, "Instead of --size: its rows")->group(jacobi_name);
  add_integer(command, "--columns", columns_, 1, longest, "And its columns")->group(jacobi_name);
  command.add_option("--grid", grid_, "Rows x columns of PEs, R in all (default: as square as possible)")
      ->type_name("PxQ")
      ->group(jacobi_name);
  add_integer(command, "--sweeps", sweeps_, 1, most, "Sweeps over the field (default 100)")->group(jacobi_name);
  add_integer(command, "--residual-every", every_, 1, most, "Sweeps from one residual to the next (default 10)")
      ->group(jacobi_name);
  add_named<program::JacobiWay>(
      command, "--way", way_, program::parse_jacobi_way,
      "How PEs exchange their edges: kernel_boundaries, graph (GPUs), overlapped, in_kernel (default) or ring")
      ->group(jacobi_name);
  add_named<program::JacobiTile>(command, "--tile", tile_, program::parse_jacobi_tile,
                                 "in_kernel: where blocks keep their part: held (registers), streamed (memory), or "
                                 "auto (default): held where it fits")
      ->group(jacobi_name);
  add_integer(command, "--blocks", blocks_, 0, 1024,
              "in_kernel, and the CPU: most blocks; 0 (default): as many as the GPU holds at once; on the CPU 4")
      ->group(jacobi_name);
}

int JacobiOptions::run(const Program& program, const PlanOptions& plan, const RunOptions& options) const {
  if (options.world != "processes" && options.world != "threads")
    refuse(fmt::format("--world '{}': it must be processes or threads", options.world));
  if (size_ > 0 && (rows_ > 0 || columns_ > 0))
    refuse("--size says both --rows and --columns: give it, or both of them");
  if (size_ == 0 && (rows_ == 0 || columns_ == 0))
    refuse(fmt::format("{} is missing; jacobi needs --size, or --rows and --columns", rows_ == columns_ ? "--size"
                                                                                      : rows_ == 0      ? "--rows"
                                                                                                        : "--columns"));
  program::JacobiRequest request;
  request.device = device_named(options.device);
  request.ranks = static_cast<int>(plan.ranks);
  request.rows = size_ > 0 ? size_ : rows_;
  request.columns = size_ > 0 ? size_ : columns_;
  request.grid = grid_;
  request.sweeps = sweeps_;
  request.every = every_;
  if (!plan.type_name.empty()) request.type = plan.type_name;
  request.way = way_;
  request.tile = tile_;
  request.blocks = static_cast<int>(blocks_);
  request.seed = static_cast<std::uint64_t>(options.seed);
  request.delays = static_cast<std::uint64_t>(options.delays);
  request.verify = options.verify;
  request.repeat = static_cast<int>(options.repeat);
  request.threads = options.world == "threads";
  request.ranks_per_gpu = static_cast<int>(options.ranks_per_gpu);
  request.wait_limit = options.wait_limit;
  std::optional<Progress> progress;
  if (!World::launched()) progress.emplace(fmt::format("running jacobi over {} ranks", request.ranks));
  const int code =
      program::run_jacobi(request, [&](const program::JacobiResult& result) { report(program, request, result); });
  if (code >= static_cast<int>(ErrorCode::invalid_input))
    print_json(program, {{"exit_code", code}, {"error", "a rank failed; standard error has its message"}});
  return code;
}

}  // namespace

std::shared_ptr<OwnOperator> make_jacobi() { return std::make_shared<JacobiOptions>(); }

}  // namespace imbrex::cli
