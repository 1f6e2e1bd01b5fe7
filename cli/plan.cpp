// imbrex plan: makes a plan and writes it.
#include <map>
#include <memory>
#include <optional>

#include "command.hpp"
#include "imbrex/machine.hpp"
#include "program/explain.hpp"
#include "program/host_messages.hpp"
#include "program/run.hpp"

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

struct PlanArguments {
  PlanOptions plan;
  std::string device = "auto", machine;
};

// For a machine, or as a run here would choose.
struct Made {
  Plan plan;
  program::Reason reason;  // why strategy auto took it
  std::string chosen_for;
  std::optional<Machine> machine;  // that it was chosen for by simulation
};

Made make(const PlanArguments& options) {
  const Device device = device_named(options.device);
  if (!options.machine.empty()) {
    if (device != Device::automatic)
      throw Error(ErrorCode::invalid_input, fmt::format("--device {} is about this machine; --machine {} names another",
                                                        options.device, options.machine));
    Machine machine = load_machine(options.machine);
    program::Explained made =
        program::choose_explained(options.plan.problem(false), options.plan.chosen_strategy(),
                                  options.plan.chosen_knobs(), machine, fmt::format("simulated on {}", machine.name));
    return {std::move(made.plan), std::move(made.reason), options.machine, std::move(machine)};
  }
  program::RunRequest request;
  request.device = device;
  request.problem = options.plan.problem(false);
  request.strategy = options.plan.chosen_strategy();
  request.knobs = options.plan.chosen_knobs();
  program::Choice choice = program::choose_device(request, request.problem);
  Made made{std::move(choice.plan), std::move(choice.reason), std::string(name_of(choice.device)), {}};
  if (choice.device == Device::cpu) made.machine = nominal_host_machine();
  return made;
}

void print_groups(const Program& program, const Plan& plan, const program::ExpectedGroups& expected) {
  const std::size_t count = expected.groups.size();
  print(program, "  {} group{}, of {}; {} SMs are kept free for their collectives", count, count == 1 ? "" : "s",
        plan.knobs.packed ? "tiles" : "rows of tiles", plan.knobs.kept_free);
  for (std::size_t g = 0; g < count; ++g) {
    const auto& [units, begins, ends] = expected.groups[g];
    print(program, "    group {}: {}, {} from {} to {}", g + 1, units,
          plan.problem.op == Operator::all_gather_gemm ? "gathered" : "its collective", readable_seconds(begins),
          readable_seconds(ends));
  }
  print(program, "    all done at {}, simulated", readable_seconds(expected.seconds));
}

void print_reasons(const Program& program, const Made& made) {
  if (const std::string why = describe(made.plan.strategy, made.reason); !why.empty()) print(program, "  {}", why);
  if (!made.machine) return;
  if (const auto groups = program::expected_groups(made.plan, *made.machine)) print_groups(program, made.plan, *groups);
  for (const std::string& line : program::caveats_of(made.plan, *made.machine)) print(program, "  {}", line);
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
  if (plan.knobs.nodes > 1) {
    const program::HostMessages sent = program::messages_between_hosts(plan, plan.knobs.nodes);
    print(program, "  {} messages between {} hosts an epoch, {} in all", sent.count, plan.knobs.nodes,
          readable_bytes(sent.bytes));
  }
  print(program, "  digest {}", program::digest_text(plan));
  if (program.json.empty()) print(program, "Write it with --json FILE; then: imbrex check FILE");
}

}  // namespace

void add_plan(Program& program) {
  auto options = std::make_shared<PlanArguments>();
  CLI::App& command = add_command(
      program, "plan",
      "Makes the plan of an operator and writes it to a file.\n"
      "It holds, for every rank, the queues of tasks, what each task waits for and whom it tells, as JSON\n"
      "(docs/dev/plan-format.md). `check`, `run`, `simulate` and `trace` take it. It is the plan that `run`\n"
      "would run here, or the one that suits --machine.",
      "Examples:\n"
      "  imbrex plan gemm_reduce_scatter --m 4096 --n 4096 --k 8192 --ranks 4 --json plan.json\n"
      "  imbrex plan all_gather_gemm --m 512 --n 512 --k 512 --transport pull --comm-rows 64 --json -",
      [options, &program] {
        program.json_takes_errors = false;  // a plan, or nothing
        Progress progress("making the plan");
        const Made made = make(*options);
        print_summary(program, made.plan, made.chosen_for);
        print_reasons(program, made);
        if (!program.json.empty()) write_result(program.json, to_json(made.plan) + "\n");
        return 0;
      });
  options->plan.add_to(command);
  add_device(
      command, options->device,
      "Device that the plan is for: cpu, cuda, or auto (default): the device that `run` would take on this machine");
  command
      .add_option("--machine", options->machine,
                  "Choose the plan for this machine instead, by simulation: a name, or a machine file")
      ->type_name("NAME|FILE");
  command.get_option("--json")->description("Write the plan to this file; - is standard output");
}

}  // namespace imbrex::cli
