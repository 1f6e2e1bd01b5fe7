// The command line program: parses, runs one command, and turns every failure into a message and an exit code.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include <CLI/CLI.hpp>

#include "command.hpp"
#include "help.hpp"
#include "imbrex/error.hpp"
#include "output/colour.hpp"
#include "program/nccl_environment.hpp"
#include "program/run_ranks.hpp"
#include "program/suggestion.hpp"

namespace imbrex::cli {
namespace {

constexpr int bad_usage = static_cast<int>(ErrorCode::invalid_input);

/// `text` fit for a terminal: it may quote a hostile file. Bytes that are not UTF-8, and control bytes, become marks.
std::string printable(const std::string& text) {
  std::string result = Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  for (char& c : result)
    if ((c >= 0 && c < ' ' && c != '\n') || c == 0x7f) c = '?';
  return result;
}

int refuse_command(const Program& program, int code, const std::string& message) {
  print_error(coloured_error(Colour::bad, "imbrex:") + " " + printable(message));
  try {
    if (program.json_takes_errors) print_json(program, {{"exit_code", code}, {"error", message}});
  } catch (const std::exception&) {  // the first failure is the one to tell
  }
  return code;
}

void set_up(Program& program) {
  program.app.name("imbrex");
  program.app.set_help_flag("-h,--help", "Print this help and exit");
  program.app.set_help_all_flag("--help-all", "Print all options and exit");
  program.app.description(
      "Hides communication behind computation. Runs, plans, checks and simulates operators that\n"
      "pair a GEMM with a collective, over ranks that are processes of this machine.");
  program.app.footer(
      "Start with:\n"
      "  imbrex doctor                                                  what this machine offers\n"
      "  imbrex run gemm_reduce_scatter --m 512 --n 512 --k 512 --verify\n"
      "  imbrex COMMAND --help                        options that people need first; --help-all: all options\n"
      "\n"
      "Exit codes: 0 done (and right, if that was checked); 1 wrong or unsound; 2 bad usage or input;\n"
      "3 a failure at run time (a wait past its limit, a lost rank, a full disk).");
  program.app.require_subcommand(1);
  for (auto add : {add_run, add_plan, add_check, add_simulate, add_machine, add_trace, add_bench, add_tune, add_launch,
                   add_doctor, add_env, add_completion, add_version})
    add(program);
}

/// What is opened next must not get the number of a closed standard descriptor: what is printed would go there.
/// Standard output stays one that cannot be written to, so that a result asked for there is not lost without a word.
void occupy_standard_descriptors() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) == -1) ::open("/dev/null", number == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

/// Why the first argument is neither a command nor an option of the program; empty where it is.
std::string unknown_command(const Program& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const CLI::App* command : commands_of(program.app)) {
    if (!arguments.empty() && arguments.front() == command->get_name()) return {};
    known.push_back(command->get_name());
  }
  if (arguments.empty()) return fmt::format("a command is needed: {}", fmt::join(known, ", "));
  const std::string& first = arguments.front();
  if (first == "-h" || first == "--help" || first == "--help-all") return {};
  return fmt::format("'{}' is not a command; it must be one of {}{}", first, fmt::join(known, ", "),
                     program::did_you_mean(first, known));
}

/// The option of the command that the unknown one may stand for.
std::string suggested_option(const CLI::App& command, const std::string& unknown) {
  if (!unknown.starts_with("--")) return {};
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return program::did_you_mean(unknown.substr(0, unknown.find('=')), known);
}

/// An empty value comes of a variable that is not set, and two results do not fit one file.
void expect_values(const Program& program) {
  const auto refuse = [](const std::string& message) { throw Error(ErrorCode::invalid_input, message); };
  for (const CLI::App* command : program.app.get_subcommands())
    for (const CLI::Option* option : command->get_options())
      for (const std::string& value : option->results()) {
        if (value.empty()) refuse(fmt::format("{} '': a value is needed", option->get_name()));
        // What run writes has longer names.
        if (option->get_name() == "--out" && value == program.json && command->get_name() != "run")
          refuse(fmt::format("--out and --json '{}': they are written to files of their own", value));
      }
}

// Ranks that a launcher started are as many as it says.
void take_launched_ranks(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands()) {
    const std::string& name = command->get_name();
    const bool runs = name == "run" || name == "trace" || name == "bench" || name == "tune" || name == "shmem";
    if (!runs) continue;
    take_launched_ranks(*command);
    CLI::Option* const ranks = command->get_option_no_throw("--ranks");
    const CLI::Option* const plan = command->get_option_no_throw("--plan");
    if (ranks == nullptr || ranks->count() > 0 || (plan != nullptr && plan->count() > 0)) continue;
    if (const auto launched = program::launched_ranks()) {
      ranks->add_result(fmt::format("{}", *launched));
      ranks->run_callback();
    }
  }
}

// A file that may not grow is an error of the call that writes it, and no end of the program. A handler is not
// inherited by programs that this one starts.
void outlive_file_limits() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGXFSZ, &action, nullptr);
}

int run_program(std::vector<std::string> arguments) {
  Program program;
  set_up(program);
  // Everything after the first "--" is another program's; it is not to be parsed here.
  if (!arguments.empty() && arguments.front() == "launch") {
    const auto end = std::find(arguments.begin(), arguments.end(), "--");
    if (end != arguments.end()) {
      program.command.assign(end + 1, arguments.end());
      arguments.erase(end, arguments.end());
    }
  }
  if (arguments.size() == 1 && arguments.front() == "--version") arguments.front() = "version";
  if (const std::string why = unknown_command(program, arguments); !why.empty())
    return refuse_command(program, bad_usage, why + " (see 'imbrex --help')");
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    program.app.parse(arguments);
  } catch (const CLI::Success& success) {  // --help
    print_text(help_of(program, dynamic_cast<const CLI::CallForAllHelp*>(&success) != nullptr));
    return 0;
  } catch (const CLI::ParseError& error) {
    const CLI::App* chosen = &program.app;
    std::string command = "imbrex";
    for (auto next = chosen->get_subcommands(); !next.empty(); next = chosen->get_subcommands()) {
      chosen = next.front();
      command += " " + chosen->get_name();
    }
    const std::vector<std::string> unknown = program.app.remaining(true);
    // CLI11's own message has them from the last to the first.
    const bool extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !unknown.empty();
    const std::string why = extras ? fmt::format("{} takes no '{}'{}{}", command, fmt::join(unknown, " "),
                                                 chosen->get_name() != "launch" ? "" : "; the program comes after --",
                                                 suggested_option(*chosen, unknown.front()))
                                   : std::string(error.what());
    return refuse_command(program, bad_usage, fmt::format("{} (see '{} --help')", why, command));
  }
  try {
    expect_values(program);
    take_launched_ranks(program.app);
    expect_writable("--json", program.json);
    return program.action();
  } catch (const Error& error) {
    return refuse_command(program, static_cast<int>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return refuse_command(program, static_cast<int>(ErrorCode::runtime_failure), "out of memory");
  } catch (const std::exception& error) {
    return refuse_command(program, static_cast<int>(ErrorCode::runtime_failure), error.what());
  }
}

}  // namespace
}  // namespace imbrex::cli

int main(int argc, char** argv) {
  try {
    imbrex::cli::occupy_standard_descriptors();
    // Nothing waits in a buffer: a failure to write it would go unnoticed.
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    imbrex::cli::outlive_file_limits();
    imbrex::program::set_nccl_environment();
    return imbrex::cli::run_program({argv + std::min(argc, 1), argv + argc});
  } catch (const std::bad_alloc&) {
    std::fputs("imbrex: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "imbrex: %s\n", error.what());
  }
  return static_cast<int>(imbrex::ErrorCode::runtime_failure);
}
