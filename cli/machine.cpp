// imbrex machine: prints a machine file, checked and laid out, with constants changed.
#include <charconv>
#include <memory>

#include "command.hpp"
#include "imbrex/error.hpp"
#include "program/explain.hpp"

namespace imbrex::cli {
namespace {

struct MachineArguments {
  std::string machine, name, out;
  std::vector<std::string> changes;
  std::int64_t devices = 0;
};

[[noreturn]] void refuse_change(const std::string& change, const std::string& rule) {
  throw Error(ErrorCode::invalid_input, fmt::format("--set '{}': {}", change, rule));
}

// "PLACE=VALUE".
void set(Machine& machine, const std::string& change) {
  const std::size_t sign = change.find('=');
  if (sign == std::string::npos) refuse_change(change, "it must be PLACE=VALUE");
  double value = 0;
  const char *begin = change.data() + sign + 1, *const last = change.data() + change.size();
  const auto [end, error] = std::from_chars(begin, last, value);
  if (error != std::errc{} || end != last)
    refuse_change(change, fmt::format("'{}' is not a number", std::string(begin, last)));
  try {
    set_constant(machine, change.substr(0, sign), {value, Provenance::unverified, "set by `imbrex machine`"});
  } catch (const Error& why) {
    refuse_change(change, why.what());
  }
}

int machine(const Program& program, const MachineArguments& options) {
  expect_writable("--out", options.out);
  Machine machine = load_machine(options.machine);
  for (const std::string& change : options.changes) set(machine, change);
  if (!options.name.empty()) machine.name = options.name;
  if (options.devices > 0) machine.devices = static_cast<int>(options.devices);
  validate(machine);
  const std::string text = to_json(machine);
  print_json(program, Json::parse(text));
  if (options.out.empty()) {
    print(program, "{}", text.substr(0, text.size() - 1));
  } else {
    write_result(options.out, text);
    print(program, "{}: {}, {} devices", options.out, machine.name, machine.devices);
    if (const std::string_view scaling = program::scaling_of(machine.all_gather); !scaling.empty())
      print(program, "  the collectives' curves are {}", scaling);
  }
  return 0;
}

}  // namespace

void add_machine(Program& program) {
  auto options = std::make_shared<MachineArguments>();
  CLI::App& command = add_command(
      program, "machine",
      "Prints a machine file, one line a constant; constants may be changed.\n"
      "The file is checked as `simulate` checks it (docs/reference/machine-files.md). Make your own from one that "
      "comes with the\n"
      "program, and simulate plans on it: what would a faster link bring? Measured curves change with their constants: "
      "those of\n"
      "collectives with links, those of rows with the memory. links.peer_access=1 says that no device reaches "
      "another's "
      "memory by\n"
      "loads and stores, so that nothing fused runs there.",
      fmt::format("Examples:\n"
                  "  imbrex machine 4xh200\n"
                  "  imbrex machine 4xh200 --name fast-links --set links.egress_bandwidth=9e11 \\\n"
                  "    --set links.ingress_bandwidth=9e11 --out fast-links.json\n"
                  "  imbrex machine 4xh200 --name no-peers --set links.peer_access=1 --out no-peers.json\n"
                  "  imbrex machine 4xh200 --name two-hosts --devices 8 --set hosts.devices=4 \\\n"
                  "    --set hosts.bandwidth=5e10 --set hosts.latency=5e-6 --set hosts.message=1e-6\n\n"
                  "Machines that come with the program: {}",
                  fmt::join(machine_names(), ", ")),
      [options, &program] { return machine(program, *options); });
  command.add_option("MACHINE", options->machine, "Name of a machine, or a machine file")->type_name("")->required();
  command
      .add_option("--set", options->changes,
                  "Change a constant, named by its place (links.latency, compute.tiles.128x256.efficiency), in its "
                  "unit; its source becomes `unverified`")
      ->type_name("PLACE=VALUE")
      ->expected(1)
      ->take_all();
  command.add_option("--name", options->name, "Name of the machine that is printed")->type_name("NAME");
  add_integer(command, "--devices", options->devices, 1, 65536, "Most ranks that it holds");
  command.add_option("--out", options->out, "Write it to this file")->type_name("FILE");
}

}  // namespace imbrex::cli
