// imbrex run: runs an operator on this machine, on tensors from files or from a seed.
#include <algorithm>
#include <cmath>
#include <memory>

#include "command.hpp"
#include "output/colour.hpp"
#include "own_operators.hpp"
#include "program/explain.hpp"
#include "program/suggestion.hpp"
#include "run_options.hpp"

namespace imbrex::cli {
namespace {

struct RunArguments {
  PlanOptions plan;
  RunOptions run;
  std::string trace;
};

void report(const Program& program, const RunArguments& options, const program::RunResult& result) {
  const bool verify = options.run.verify || options.run.verify_all;
  if (!options.trace.empty()) write_timeline(options.trace, result.timeline);
  Json json{{"exit_code", verify && !result.verified ? 1 : 0},
            {"problem", to_json_value(result.problem)},
            {"strategy", name_of(result.strategy)},
            {"device", name_of(result.device)},
            {"digest", result.digest},
            {"seconds", result.seconds}};
  if (verify) {
    json["verified"] = result.verified;
    json["compared_rows"] = result.compared_rows;
    json["all_rows"] = result.all_rows;
    json["verify_seed"] = options.run.verify_seed;
    // JSON has no infinity; an element that is NaN is infinitely wrong.
    json["max_error_over_bound"] =
        std::isfinite(result.max_error_over_bound) ? Json(result.max_error_over_bound) : Json(nullptr);
  }
  if (result.codec_bound > 0) json["codec_bound"] = result.codec_bound;
  if (!result.message.empty()) json["message"] = result.message;
  const std::string why = describe(result.strategy, result.reason);
  if (!why.empty()) json["why"] = why;
  print_json(program, json);

  const Problem& p = result.problem;
  std::string n = fmt::format("{}", p.n);
  for (const std::int64_t further : p.more_n)
    if (further > 0) n += fmt::format("+{}", further);
  print(program, "{} {} x {} x {} {}, {} ranks on {}, {}: {}{}", name_of(p.op), p.m, n, p.k, name_of(p.type), p.ranks,
        name_of(result.device), name_of(result.strategy),
        readable_seconds(*std::min_element(result.seconds.begin(), result.seconds.end())),
        result.seconds.size() > 1 ? fmt::format(", the best of {}", result.seconds.size()) : "");
  if (!why.empty()) print(program, "{}", why);
  if (verify) {
    print(program, "{}: the largest error is {:.3g} of its bound", verdict_of(program, result.verified),
          result.max_error_over_bound);
    if (result.compared_rows < result.all_rows)
      print(program,
            "compared: {} of {} rows, one of each {}, drawn by seed {}. An error in {} adjacent rows is always found, "
            "one "
            "in a single row is missed {} times of {}. --verify-all compares every row",
            result.compared_rows, result.all_rows, result.compared_stride, options.run.verify_seed,
            2 * result.compared_stride - 1, result.compared_stride - 1, result.compared_stride);
    if (result.codec_bound > 0)
      print(program, "sums went through a codec, which may change an element by at most {:.3g}", result.codec_bound);
    if (!result.verified) print_error("imbrex: " + result.message);
  }
}

// A line for each.
std::string operators() {
  std::string lines;
  for (const program::OperatorHelp& each : program::list_operators())
    lines += fmt::format("  {:<21} {}\n", each.name, each.about);
  return lines;
}

// `run` takes more than the operators that have a plan.
void expect_operator(const PlanOptions& plan) {
  const std::vector<std::string> known = operator_names(true);
  if (!plan.op.empty() && std::find(known.begin(), known.end(), plan.op) == known.end())
    throw Error(ErrorCode::invalid_input, fmt::format("'{}' is not an operator; it must be one of {}{}", plan.op,
                                                      fmt::join(known, ", "), program::did_you_mean(plan.op, known)));
}

int run(const Program& program, const RunArguments& options) {
  expect_operator(options.plan);
  if (const OwnOperator* asked = options.plan.asked_for()) return asked->run(program, options.plan, options.run);
  expect_timeline_path("--trace", options.trace);
  program::RunRequest request = options.run.request(options.plan);
  request.timeline = !options.trace.empty();
  return run_reporting(program, request, [&](const program::RunResult& result) { report(program, options, result); });
}

}  // namespace

void add_run(Program& program) {
  auto options = std::make_shared<RunArguments>();
  std::string examples;
  for (const auto& each : own_operators()) examples += fmt::format("\n{}", each->examples());
  CLI::App& command = add_command(
      program, "run",
      "Runs an operator over ranks of this machine.\n"
      "An operator is a GEMM and the collective that depends on it. Operands come from .npy files, or from a seed;\n"
      "they are whole, and the program gives each of the R ranks its part:\n" +
          operators() +
          "or the collective alone:\n"
          "  all_reduce            A R*M x N, stacked by rank  ->  M x N, exactly, or through a codec with a bound\n"
          "or a program that stands on the symmetric heap, with kernels that signal each other:\n"
          "  jacobi                sweeps of a five-point stencil over a field that PEs share as a grid\n"
          "  sparse_triangular_solve   T x = b, T sparse and triangular, its rows spread over the ranks",
      "Examples:\n"
      "  imbrex run gemm_reduce_scatter --ranks 4 --m 512 --n 512 --k 2048 --verify\n"
      "  imbrex run all_gather_gemm --a a.npy --b b.npy --type fp32 --out y --trace timeline.svg\n"
      "  imbrex run all_gather_gemm --m 4096 --n 4096 --k 4096 --device cuda --repeat 10 --verify\n"
      "  imbrex run all_gather_gemm --m 512 --n 4096 --k 4096 --more-n 1024,1024 --gathered-a --verify\n"
      "  imbrex run gemm_reduce_scatter --m 512 --n 512 --k 2048 --type e4m3 --scales row --verify\n"
      "  imbrex run gemm_all_to_all --m 512 --n 512 --k 2048 --verify\n"
      "  imbrex run gemm_all_reduce --plan plan.json --repeat 10 --json result.json\n"
      "  imbrex run gemm_all_reduce --m 512 --n 512 --k 2048 --codec int4+int8 --verify" +
          examples,
      [options, &program] { return run(program, *options); });
  options->plan.add_to(command);
  CLI::Option* op = command.get_option("OP");
  op->description(op->get_description() + ", or all_reduce, jacobi or sparse_triangular_solve");
  options->plan.add_plan_file(command);
  options->run.add_to(command);
  for (const auto& each : options->plan.own) each->add_run_to(command);
  command.add_option("--trace", options->trace, "Write the timeline: FILE.svg, or FILE.json for ui.perfetto.dev")
      ->type_name("FILE");
}

}  // namespace imbrex::cli
