// imbrex simulate: what a plan would take on a machine described in a file.
#include <memory>

#include "command.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "output/chart.hpp"
#include "output/sweep.hpp"

namespace imbrex::cli {
namespace {

struct SimulateArguments {
  PlanOptions plan;
  std::string machine, trace, sweep, csv, plot;
  SimulateOptions simulate;
  std::int64_t skew_seed = 0;
};

// What goes with a sweep, and what does not.
SweepRequest sweep_of(const SimulateArguments& options) {
  const CLI::App& app = *options.plan.app;
  if (options.sweep.empty()) {
    for (const char* name : {"--csv", "--plot"})
      if (app.get_option(name)->count() > 0) refuse(fmt::format("{} is about --sweep, which is not given", name));
    return {};
  }
  SweepRequest request{parse_sweep(options.sweep), options.csv, options.plot};
  for (const std::string& name :
       {std::string("--plan"), std::string("--trace"), std::string("--max-skew"), "--" + request.sweep.name})
    if (app.get_option(name)->count() > 0) refuse(fmt::format("{} does not go with --sweep {}", name, options.sweep));
  if (options.plan.op.empty()) refuse("--sweep needs an operator, OP");
  if (options.plan.asked_for() != nullptr) refuse("--sweep is about operators with a GEMM, not " + options.plan.op);
  if (request.csv != "-") expect_named("--csv", request.csv, ".csv");
  expect_named("--plot", request.plot, ".svg");
  return request;
}

int simulate(const Program& program, const SimulateArguments& options) {
  const SweepRequest sweep = sweep_of(options);
  if (!options.sweep.empty()) return simulate_sweep(program, sweep, options.plan, load_machine(options.machine));
  expect_timeline_path("--trace", options.trace);
  const Machine machine = load_machine(options.machine);
  const Plan plan = options.plan.make(machine);
  Progress progress("simulating " + describe(plan));
  SimulateOptions how = options.simulate;
  how.timeline = !options.trace.empty();
  how.skew_seed = static_cast<std::uint64_t>(options.skew_seed);
  if (how.max_skew > 0 && how.skew_seed == 0)
    throw Error(ErrorCode::invalid_input, "--max-skew is of use with --skew-seed only, which is missing or 0");
  const Report report = make_simulator(machine, how)->prepare(plan)->run({});
  if (how.timeline) write_timeline(options.trace, report.timeline);
  const std::vector<std::string> caveats = program::caveats_of(plan, machine);
  Json json{{"machine", machine.name},
            {"problem", to_json_value(plan.problem)},
            {"strategy", name_of(plan.strategy)},
            {"seconds", report.seconds}};
  if (!caveats.empty()) json["notes"] = caveats;
  print_json(program, json);
  print(program, "{} on {}: {}", describe(plan), machine.name, readable_seconds(report.seconds));
  for (const std::string& line : caveats) print(program, "  {}", line);
  return 0;
}

}  // namespace

void add_simulate(Program& program) {
  auto options = std::make_shared<SimulateArguments>();
  CLI::App& command =
      add_command(program, "simulate",
                  "Predicts how long a plan takes on a machine described in a file.\n"
                  "Runs the plan in virtual time (docs/reference/machine-files.md describes the machines) and prints "
                  "what the slowest rank\n"
                  "takes. Needs no GPU. Compare strategies, or ask what a faster link would bring.",
                  fmt::format("Examples:\n"
                              "  imbrex simulate gemm_reduce_scatter --m 8192 --n 8192 --k 28672 --machine 4xh200\n"
                              "  imbrex simulate gemm_reduce_scatter --sweep m=1024:16384:x2 --n 8192 --k 28672 "
                              "--machine 4xh200 --plot sweep.svg\n"
                              "  imbrex simulate --plan plan.json --machine my-machine.json --trace timeline.svg\n\n"
                              "Machines that come with the program: {}",
                              fmt::join(machine_names(), ", ")),
                  [options, &program] { return simulate(program, *options); });
  options->plan.add_to(command);
  options->plan.add_plan_file(command);
  command.add_option("--machine", options->machine, "Name of a machine, or a machine file")
      ->type_name("NAME|FILE")
      ->required();
  command.add_option("--trace", options->trace, "Write the timeline: FILE.svg, or FILE.json for ui.perfetto.dev")
      ->type_name("FILE");
  command
      .add_option(
          "--sweep", options->sweep,
          "Predict every strategy for several values of m, n, k or ranks: m=1024:16384:x2, m=1000:5000:+1000 or "
          "m=64,96,4096. Prints a table")
      ->type_name("SIZE=VALUES");
  command.add_option("--csv", options->csv, "With --sweep: write the table to FILE.csv, a line for each strategy")
      ->type_name("FILE|-");
  command.add_option("--plot", options->plot, "With --sweep: write a plot of the speed-ups to FILE.svg")
      ->type_name("FILE");
  add_number(command, "--max-skew", options->simulate.max_skew, 0, 1e6, "Latest start of a rank, seconds (default 0)");
  add_integer(command, "--skew-seed", options->skew_seed, 0, std::int64_t{1} << 62,
              "Ranks start at random times of this seed; 0 (default): together");
}

}  // namespace imbrex::cli
