// imbrex plan: makes a plan and writes it.
#include <map>
#include <memory>

#include "command.hpp"
#include "jobs/run.hpp"

namespace imbrex::cli {
namespace {

/// Bytes of workspace on one rank.
double workspace_bytes(const Plan& plan) {
  double bytes = 0;
  for (const Buffer& buffer : plan.buffers)
    if (buffer.role == BufferRole::workspace)
      bytes += static_cast<double>(buffer.rows) * static_cast<double>(buffer.cols) *
               static_cast<double>(size_of(buffer.type)) * buffer.copies;
  return bytes;
}

struct Options {
  PlanOptions plan;
  std::string device = "auto", machine;
};

// For a machine, or as a run here would choose.
Plan make(const Options& options, std::string& chosen_for) {
  const Device device = device_named(options.device);
  if (!options.machine.empty()) {
    if (device != Device::automatic)
      throw Error(ErrorCode::invalid_input, fmt::format("--device {} is about this machine; --machine {} names another",
                                                        options.device, options.machine));
    chosen_for = options.machine;
    return options.plan.make(load_machine(options.machine));
  }
  jobs::RunRequest request;
  request.device = device;
  request.problem = options.plan.problem(false);
  request.strategy = options.plan.chosen_strategy();
  request.knobs = options.plan.chosen_knobs(device);
  jobs::Choice choice = jobs::choose_device(request, request.problem);
  chosen_for = name_of(choice.device);
  return std::move(choice.plan);
}

void print_summary(const Program& program, const Plan& plan, const std::string& chosen_for) {
  std::map<std::string_view, std::size_t> kinds;
  int signals = 0;
  std::size_t queues = 0;
  for (const RankPlan& rank : plan.ranks) {
    signals += rank.signals;
    queues += rank.queues.size();
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks) ++kinds[kind_of(task)];
  }
  print(program, "{}, for {}", describe(plan), chosen_for);
  std::string parts;
  for (const auto& [kind, count] : kinds) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", count, kind);
  print(program, "  {} tasks on all ranks together: {}", count_tasks(plan), parts);
  print(program, "  {} queues, {} signals, {} of workspace a rank", queues, signals,
        readable_bytes(workspace_bytes(plan)));
  print(program, "  digest {}", jobs::digest_text(plan));
  if (program.json.empty()) print(program, "Write it with --json FILE; then: imbrex check FILE");
}

}  // namespace

void add_plan(Program& program) {
  auto options = std::make_shared<Options>();
  CLI::App& command =
      add_command(program, "plan",
                  "Makes the plan of an operator and writes it to a file.\n"
                  "It holds, for every rank, the queues of tasks, what each task waits for and whom it tells, as JSON\n"
                  "(docs/plan-format.md). `check`, `run`, `simulate` and `trace` take it. It is the plan that `run`\n"
                  "would run here, or the one that suits --machine.",
                  "Examples:\n"
                  "  imbrex plan gemm_reduce_scatter --m 4096 --n 4096 --k 8192 --ranks 4 --json plan.json\n"
                  "  imbrex plan all_gather_gemm --m 512 --n 512 --k 512 --transport pull --comm-rows 64 --json -",
                  [options, &program] {
                    program.json_takes_errors = false;  // a plan, or nothing
                    Progress progress("making the plan");
                    std::string chosen_for;
                    const Plan plan = make(*options, chosen_for);
                    print_summary(program, plan, chosen_for);
                    if (!program.json.empty()) write_result(program.json, to_json(plan) + "\n");
                    return 0;
                  });
  options->plan.add_to(command);
  add_device(command, options->device,
             "What the plan is chosen for: cpu, cuda, or auto (default): what `run` would take on this machine");
  command
      .add_option("--machine", options->machine,
                  "Choose the plan for this machine instead, by simulation: a name, or a machine file")
      ->type_name("NAME|FILE");
  command.get_option("--json")->description("Write the plan to this file; - is standard output");
}

}  // namespace imbrex::cli
