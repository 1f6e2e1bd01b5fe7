// imbrex run sparse_triangular_solve: one sparse triangular system over ranks.
#include <algorithm>
#include <cmath>

#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/world.hpp"
#include "output/colour.hpp"
#include "own_operators.hpp"
#include "program/sparse/run_solve.hpp"
#include "run_options.hpp"

namespace imbrex::cli {
namespace {

using namespace program::sparse;

constexpr const char* solve_name = "sparse_triangular_solve";

bool parse_single(std::string_view text) {
  if (text != "fp32" && text != "fp64") refuse(fmt::format("'{}': it must be fp32 or fp64", text));
  return text == "fp32";
}

std::optional<Sharing> parse_sharing_or_auto(std::string_view text) {
  if (text == "auto") return std::nullopt;
  return parse_sharing(text);
}

void report(const Program& program, const SolveRequest& asked, const SolveResult& result) {
  // JSON has no infinity.
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  const auto best = [](const std::vector<double>& seconds) {
    return *std::min_element(seconds.begin(), seconds.end());
  };
  const char* type = asked.single ? "fp32" : "fp64";
  Json json{{"exit_code", asked.verify && !result.verified ? 1 : 0},
            {"problem",
             {{"operator", solve_name},
              {"rows", result.rows},
              {"entries", result.entries},
              {"levels", result.levels},
              {"right_hand_sides", asked.columns},
              {"transposed", asked.transposed},
              {"type", type},
              {"ranks", asked.ranks}}},
            {"way", name_of(asked.way)},
            {"sharing", name_of(result.sharing)},
            {"block_rows", result.block},
            {"cut_rows", result.cut_rows},
            {"messages", result.messages},
            {"device", name_of(result.device)},
            {"digest", fmt::format("{:016x}", result.digest)},
            {"analysis_seconds", result.analysis_seconds},
            {"seconds", result.seconds}};
  if (asked.verify) {
    json["verified"] = result.verified;
    if (result.overflows) json["overflows"] = true;
    json["max_error_over_bound"] = number(result.max_error_over_bound);
  }
  if (result.library)
    json["library"] = {{"name", result.library->name},
                       {"analysis_seconds", result.library->analysis_seconds},
                       {"seconds", result.library->seconds},
                       {"max_error_over_bound", number(result.library->max_error_over_bound)}};
  if (!result.message.empty()) json["message"] = result.message;
  print_json(program, json);

  print(program, "{} of {} rows, {} entries, {} levels, {} right-hand sides of {}{}, {} ranks on {}, {}: {}{}",
        solve_name, result.rows, result.entries, result.levels, asked.columns, type,
        asked.transposed ? ", transposed" : "", asked.ranks, name_of(result.device), name_of(asked.way),
        readable_seconds(best(result.seconds)),
        result.seconds.size() > 1 ? fmt::format(", the best of {}", result.seconds.size()) : "");
  print(program, "analysis: {}; rows are shared {}, {} of them are cut, and {} packets go between ranks",
        readable_seconds(result.analysis_seconds),
        result.block > 0 ? fmt::format("alternately in blocks of {}", result.block) : "in ranges", result.cut_rows,
        result.messages);
  if (result.library)
    print(program, "{}: {}, {:.2f} times as long; analysis {}; the largest residual is {:.3g} of its bound",
          result.library->name, readable_seconds(best(result.library->seconds)),
          best(result.library->seconds) / best(result.seconds), readable_seconds(result.library->analysis_seconds),
          result.library->max_error_over_bound);
  if (!asked.verify) return;
  if (result.overflows)
    print(program, "overflow: the solution has elements that {} does not hold", type);
  else
    print(program, "{}: the largest residual is {:.3g} of its bound", verdict_of(program, result.verified),
          result.max_error_over_bound);
  if (!result.verified) print_error("imbrex: " + result.message);
}

class TriangularSolveRun final : public RunAlone {
 public:
  std::string_view name() const override { return solve_name; }

  bool shares(std::string_view option) const override {
    constexpr std::string_view names[] = {"OP",       "--ranks",      "--seed",          "--out",
                                          "--verify", "--repeat",     "--device",        "--world",
                                          "--json",   "--wait-limit", "--ranks-per-gpu", "--workers"};
    return std::find(std::begin(names), std::end(names), option) != std::end(names);
  }

  std::string_view examples() const override {
    return "  imbrex run sparse_triangular_solve --generate grid --unknowns 100000 --verify\n"
           "  imbrex run sparse_triangular_solve --matrix a.mtx --part lower --transposed --out x --verify";
  }

  void add_run_to(CLI::App& command) override;

  int run(const Program& program, const PlanOptions& plan, const RunOptions& run) const override;

 private:
  SolveRequest request(const PlanOptions& plan, const RunOptions& run) const;

  std::string matrix_;
  std::optional<Kind> kind_;
  std::int64_t rows_ = 0, columns_ = 1, block_ = 0;
  Part part_ = Part::whole;
  Way way_ = Way::in_kernel;
  std::optional<Sharing> sharing_;
  bool transposed_ = false, single_ = false, compare_ = false;
};

void TriangularSolveRun::add_run_to(CLI::App& command) {
  command.add_option("--matrix", matrix_, "The matrix, a Matrix Market file of coordinates")
      ->type_name("FILE|-")
      ->group(solve_name);
  add_named<std::optional<Kind>>(
      command, "--generate", kind_, [](std::string_view text) -> std::optional<Kind> { return parse_kind(text); },
      "Or one from --seed: grid (like roads), banded, power_law or block")
      ->group(solve_name);
  add_integer(command, "--unknowns", rows_, 1, most_rows, "And its number of rows")->group(solve_name);
  add_named<Part>(command, "--part", part_, parse_part,
                  "Part of the matrix that is solved: whole (default; it must be triangular), lower or upper")
      ->group(solve_name);
  command.add_flag("--transposed", transposed_, "Solve with its transpose")->group(solve_name);
  add_integer(command, "--right-hand-sides", columns_, 1, 1024, "Number of right-hand sides, from --seed (default 1)")
      ->group(solve_name);
  add_named<bool>(command, "--precision", single_, parse_single, "fp64 (default) or fp32")->group(solve_name);
  add_named<Way>(command, "--solve-way", way_, parse_way,
                 "in_kernel (default): one kernel sends packets; ring: the same, through rings that a host thread "
                 "serves; kernel_boundaries: a kernel for each level")
      ->group(solve_name);
  add_named<std::optional<Sharing>>(
      command, "--sharing", sharing_, parse_sharing_or_auto,
      "How ranks share rows: contiguous, cyclic, or auto (default): by the number of rows in a level")
      ->group(solve_name);
  add_integer(command, "--block-rows", block_, 1, most_rows, "cyclic: rows of a block (default: 64 blocks a rank)")
      ->group(solve_name);
  command
      .add_flag("--compare", compare_,
                "Time cuSPARSE's SpSV on the same system too: one rank on a GPU, one right-hand side")
      ->group(solve_name);
}

SolveRequest TriangularSolveRun::request(const PlanOptions& plan, const RunOptions& run) const {
  if (run.world != "processes" && run.world != "threads")
    refuse(fmt::format("--world '{}': it must be processes or threads", run.world));
  if (!matrix_.empty() && kind_)
    refuse(fmt::format("--matrix '{}' and --generate: one of them must be given", matrix_));
  if (matrix_.empty() && !kind_) refuse(fmt::format("{} needs --matrix, or --generate and --unknowns", solve_name));
  if (kind_ && rows_ == 0) refuse("--unknowns is missing; --generate needs it");
  if (!kind_ && rows_ != 0) refuse("--unknowns is about --generate; --matrix is given");
  if (block_ > 0 && sharing_ != Sharing::cyclic) refuse("--block-rows is about --sharing cyclic");
  SolveRequest request;
  request.device = device_named(run.device);
  const bool sharing_gpus = plan.app->get_option("--ranks-per-gpu")->count() > 0;
  if (sharing_gpus && request.device == Device::cpu)
    refuse(fmt::format("--ranks-per-gpu {} is about GPUs; --device is cpu", run.ranks_per_gpu));
  if (request.device == Device::cuda && plan.app->get_option("--workers")->count() > 0)
    refuse("--workers is about the CPU; --device is cuda");
  if (request.device == Device::automatic && (sharing_gpus || compare_)) request.device = Device::cuda;
  request.ranks = static_cast<int>(plan.ranks);
  if (!run.out.empty()) {
    request.out = run.out + ".mtx";
    naming("--out ", [&] { imbrex::expect_writable(request.out); });
  }
  if (!matrix_.empty()) request.matrix_title = matrix_, request.matrix_text = read_file(matrix_);
  if (kind_) request.kind = *kind_;
  request.rows = rows_;
  request.part = part_;
  request.transposed = transposed_;
  request.columns = columns_;
  request.single = single_;
  request.way = way_;
  request.sharing = sharing_;
  request.block = block_;
  request.seed = static_cast<std::uint64_t>(run.seed);
  request.verify = run.verify;
  request.compare = compare_;
  request.repeat = static_cast<int>(run.repeat);
  request.threads = run.world == "threads";
  request.workers = static_cast<int>(run.workers);
  request.ranks_per_gpu = static_cast<int>(run.ranks_per_gpu);
  request.wait_limit = run.wait_limit;
  return request;
}

int TriangularSolveRun::run(const Program& program, const PlanOptions& plan, const RunOptions& options) const {
  const SolveRequest asked = request(plan, options);
  std::optional<Progress> progress;
  if (!World::launched()) progress.emplace(fmt::format("running {} over {} ranks", solve_name, asked.ranks));
  const int code = run_solve(asked, [&](const SolveResult& result) { report(program, asked, result); });
  if (code >= static_cast<int>(ErrorCode::invalid_input))
    print_json(program, {{"exit_code", code}, {"error", "a rank failed; standard error has its message"}});
  return code;
}

}  // namespace

std::shared_ptr<OwnOperator> make_sparse_triangular_solve() { return std::make_shared<TriangularSolveRun>(); }

}  // namespace imbrex::cli
