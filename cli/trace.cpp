// imbrex trace: draws what runs when, on every rank and resource.
#include <algorithm>
#include <memory>

#include "command.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "run_options.hpp"

namespace imbrex::cli {
namespace {

struct TraceArguments {
  PlanOptions plan;
  RunOptions run;
  std::string machine, out;
  bool measured = false;
};

int finish(const Program& program, const TraceArguments& options, const Timeline& timeline) {
  write_timeline(options.out, timeline);
  double end = 0;
  for (const Span& span : timeline.spans) end = std::max(end, span.end);
  print_json(program, {{"title", timeline.title},
                       {"source", timeline.source},
                       {"seconds", end},
                       {"spans", timeline.spans.size()},
                       {"out", options.out}});
  print(program, "{}: {}, {}, {} spans", options.out, timeline.source, readable_seconds(end), timeline.spans.size());
  return 0;
}

int trace(const Program& program, const TraceArguments& options) {
  expect_timeline_path("--out", options.out);
  if (options.measured == !options.machine.empty())
    throw Error(ErrorCode::invalid_input,
                "give one of --machine (a prediction) and --measured (a run on this machine)");
  if (options.measured) {
    program::RunRequest request = options.run.request(options.plan);
    request.timeline = true;
    return run_reporting(program, request,
                         [&](const program::RunResult& result) { finish(program, options, result.timeline); });
  }
  const Machine machine = load_machine(options.machine);
  const Plan plan = options.plan.make(machine);
  Progress progress("simulating " + describe(plan));
  return finish(program, options, make_simulator(machine, {.timeline = true})->prepare(plan)->run({}).timeline);
}

}  // namespace

void add_trace(Program& program) {
  auto options = std::make_shared<TraceArguments>();
  CLI::App& command = add_command(
      program, "trace",
      "Draws what runs when: one row a resource, grouped by rank, waits visible.\n"
      "Either as predicted for a machine (--machine), or as measured by a run on this one (--measured).",
      "Examples:\n"
      "  imbrex trace gemm_reduce_scatter --m 8192 --n 8192 --k 28672 --machine 4xh200 --out predicted.svg\n"
      "  imbrex trace --plan plan.json --measured --out measured.json      (open it at ui.perfetto.dev)",
      [options, &program] { return trace(program, *options); });
  options->plan.add_to(command);
  options->plan.add_plan_file(command);
  command.add_option("--machine", options->machine, "Predict for this machine: a name, or a machine file")
      ->type_name("NAME|FILE");
  command.add_flag("--measured", options->measured, "Run it here, and draw what was measured");
  options->run.add_to(command);
  // A trace writes its picture to --out; the operator's output is `run`'s.
  command.remove_option(command.get_option("--out"));
  command.remove_option(command.get_option("--verify"));
  command.remove_option(command.get_option("--repeat"));
  command.add_option("--out", options->out, "FILE.svg, a picture, or FILE.json, for ui.perfetto.dev")
      ->type_name("FILE")
      ->required();
}

}  // namespace imbrex::cli
