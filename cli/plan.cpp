// imbrex plan: makes a plan and writes it.
#include <map>
#include <memory>

#include "command.hpp"

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

void print_summary(const Program& program, const Plan& plan) {
  std::map<std::string_view, std::size_t> kinds;
  int signals = 0;
  std::size_t queues = 0;
  for (const RankPlan& rank : plan.ranks) {
    signals += rank.signals;
    queues += rank.queues.size();
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks) ++kinds[kind_of(task)];
  }
  print(program, "{}", describe(plan));
  std::string parts;
  for (const auto& [kind, count] : kinds) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", count, kind);
  print(program, "  {} tasks on all ranks together: {}", count_tasks(plan), parts);
  print(program, "  {} queues, {} signals, {} of workspace a rank", queues, signals,
        readable_bytes(workspace_bytes(plan)));
  if (program.json.empty()) print(program, "Write it with --json FILE; then: imbrex check FILE");
}

}  // namespace

void add_plan(Program& program) {
  auto options = std::make_shared<PlanOptions>();
  auto machine = std::make_shared<std::string>();
  CLI::App& command =
      add_command(program, "plan",
                  "Makes the plan of an operator and writes it to a file.\n"
                  "It holds, for every rank, the queues of tasks, what each task waits for and whom it tells, as JSON\n"
                  "(docs/plan-format.md). `check`, `run`, `simulate` and `trace` take it. What strategy auto means is\n"
                  "decided for this kind of host, as `run` does it, or for --machine.",
                  "Examples:\n"
                  "  imbrex plan gemm_reduce_scatter --m 4096 --n 4096 --k 8192 --ranks 4 --json plan.json\n"
                  "  imbrex plan all_gather_gemm --m 512 --n 512 --k 512 --transport pull --comm-rows 64 --json -",
                  [options, machine, &program] {
                    program.json_takes_errors = false;  // a plan, or nothing
                    Progress progress("making the plan");
                    const Plan plan = options->make(machine->empty() ? nominal_host_machine() : load_machine(*machine));
                    print_summary(program, plan);
                    if (!program.json.empty()) write_result(program.json, to_json(plan) + "\n");
                    return 0;
                  });
  options->add_to(command);
  command.add_option("--machine", *machine, "Machine that strategy auto is decided for (default: a host like this)")
      ->type_name("NAME|FILE");
  command.get_option("--json")->description("Write the plan to this file; - is standard output");
}

}  // namespace imbrex::cli
