// What every command of the program shares: how it is registered, its result, its options, its progress.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
// NOTE: with CLI/CLI.hpp every file would compile CLI11's formatter and its reader of configuration files. Files that
// make an App include it.
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/timeline.hpp"
#include "program/explain.hpp"

namespace imbrex::cli {

using Json = nlohmann::ordered_json;

/// What the parsed command line asks for. Parsing fills it in; then `action` runs and returns the exit code.
struct Program {
  CLI::App app;
  std::function<int()> action;
  std::string json;                  ///< --json FILE, or "-"; empty: not asked for
  bool json_takes_errors = true;     ///< a failure goes there too, as {"exit_code", "error"}
  std::vector<std::string> command;  ///< launch: what follows "--"
};

// Each registers one command.
void add_run(Program& program);
void add_plan(Program& program);
void add_check(Program& program);
void add_simulate(Program& program);
void add_machine(Program& program);
void add_trace(Program& program);
void add_bench(Program& program);
void add_tune(Program& program);
void add_launch(Program& program);
void add_doctor(Program& program);
void add_env(Program& program);
void add_completion(Program& program);
void add_version(Program& program);

/// A command of `parent`'s, which makes an App in a file that includes CLI/CLI.hpp.
CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& about);

/// The commands that one has, in their order.
std::vector<const CLI::App*> commands_of(const CLI::App& command);

/// A command whose --help begins with `about` and ends with `examples`; it takes --json. The first line of `about`
/// stands for the command in `imbrex --help`.
CLI::App& add_command(Program& program, const std::string& name, const std::string& about, const std::string& examples,
                      std::function<int()> action);

/// What `action` returns. The message of an Error that it throws gets a `prefix` that names the option or the file.
template <typename Action>
auto naming(std::string_view prefix, Action&& action, std::string_view suffix = {}) -> decltype(action()) {
  try {
    return action();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}{}{}", prefix, error.what(), suffix));
  }
}

/// Throws Error(invalid_input).
[[noreturn]] void refuse(const std::string& message);

/// Writes all of it to standard output. Throws Error(runtime_failure), but does nothing where that is closed.
void print_text(std::string_view text);

/// Writes a line to standard error. A failure of that is not reported: nothing is left to report to.
void print_error(const std::string& line) noexcept;

/// Prints a line for people: on standard output, or on standard error where that carries the JSON. Throws as print_text
/// does.
void print_line(const Program& program, const std::string& line);

template <typename... Args>
void print(const Program& program, fmt::format_string<Args...> format, Args&&... args) {
  print_line(program, fmt::format(format, std::forward<Args>(args)...));
}

/// Writes `value` where --json says, if it was given.
void print_json(const Program& program, const Json& value);

/// write_file (imbrex/file.hpp); "-" is standard output, as of print_text.
void write_result(const std::string& path, std::string_view text);

/// The whole file; "-" is standard input. Throws Error(invalid_input).
std::string read_file(const std::string& path);

/// Writes a timeline as SVG (FILE.svg) or as Perfetto's JSON (FILE.json).
void write_timeline(const std::string& path, const Timeline& timeline);

/// Throws Error(invalid_input), naming the option, where write_result would refuse `path`; called before a long run,
/// not after it.
void expect_writable(std::string_view option, const std::string& path);

/// As expect_writable, and refuses a `path` that has another ending; an empty one is not asked for.
void expect_named(std::string_view option, const std::string& path, std::string_view ending);

/// As expect_writable, and refuses a `path` that does not end in .svg or .json.
void expect_timeline_path(std::string_view option, const std::string& path);

/// "1.234 ms".
std::string readable_seconds(double seconds);
std::string readable_bytes(double bytes);

/// An option of an integer or a number within [low, high]; anything else is refused with the value and the rule.
CLI::Option* add_integer(CLI::App& app, const std::string& name, std::int64_t& to, std::int64_t low, std::int64_t high,
                         const std::string& about);
CLI::Option* add_number(CLI::App& app, const std::string& name, double& to, double low, double high,
                        const std::string& about);

/// An option of one such number or several, which take the place of what `to` holds.
CLI::Option* add_integers(CLI::App& app, const std::string& name, std::vector<std::int64_t>& to, std::int64_t low,
                          std::int64_t high, const std::string& about);

/// The message of a refusal that ends with the names that are known, with "did you mean" where `text` is nearly one.
std::string with_suggestion(std::string_view text, const std::string& message);

/// An option whose text `parse` understands or refuses by an Error.
template <typename T>
CLI::Option* add_named(CLI::App& app, const std::string& name, T& to,
                       const std::type_identity_t<std::function<T(std::string_view)>>& parse,
                       const std::string& about) {
  auto set = [name, &to, parse](const std::string& text) {
    try {
      to = parse(text);
    } catch (const std::exception& error) {
      throw CLI::ValidationError(name, with_suggestion(text, error.what()));
    }
  };
  return app.add_option_function<std::string>(name, set, about)->type_name("NAME");
}

/// --device, whose `about` begins with what it decides.
CLI::Option* add_device(CLI::App& app, std::string& to, const std::string& about);

/// Throws Error(invalid_input) naming --device.
Device device_named(const std::string& name);

/// --scales.
void add_scales(CLI::App& app, std::optional<Scales>& to);

/// What --scales says, or what `type` goes with by itself. Throws Error(invalid_input) for scales of another type than
/// e4m3.
Scales chosen_scales(const std::optional<Scales>& given, Type type);

/// --b-layout.
void add_b_layout(CLI::App& app, std::optional<Layout>& to);

/// A problem's b_layout by what --b-layout says. Throws Error(invalid_input) for B of e4m3 by rows.
Layout chosen_b_layout(const std::optional<Layout>& given, Type type);

/// "kxn" or "nxk".
const char* name_of_b_layout(Layout layout);

class OwnOperator;  // own_operators.hpp

/// OP and its sizes, strategy and knobs, as `run`, `plan`, `simulate` and `trace` take them.
struct PlanOptions {
  std::string op, strategy = "auto", plan_file, codec = "exact", type_name;
  std::vector<std::int64_t> groups;
  std::int64_t m = 0, n = 0, k = 0, ranks = 4, cluster = 0, cluster_k = 1, group = 8, k_slices = 1, split_k = 1,
               chunks = 2, kept_free = 0, nodes = 1, library_tile = 0, library_parts = 1, own_shift = 0, abreast = 0;
  Type type = Type::bf16;
  std::optional<Scales> scales;
  std::optional<Layout> b_layout;
  std::vector<std::int64_t> more_n, more_ldb, more_ldo;
  std::int64_t lda = 0, ldb = 0, ldo = 0;
  bool bias = false, gathered_a = false;
  Knobs knobs;
  bool unchecked = false;
  std::vector<std::shared_ptr<OwnOperator>> own;  ///< all of them
  CLI::App* app = nullptr;

  void add_to(CLI::App& command);
  void add_plan_file(CLI::App& command);

  /// The operator with options of its own that OP names; null if it names none. Throws Error(invalid_input) for options
  /// of one operator that are given to another.
  const OwnOperator* asked_for() const;

  /// Throws Error(invalid_input) where --type names a type that neither `asked` nor any other operator knows.
  void expect_type(const OwnOperator* asked) const;

  bool has_sizes() const { return m > 0 || n > 0 || k > 0; }

  /// OP with its sizes; they may be left out (0) where `from_files` says that tensors give them.
  Problem problem(bool from_files) const;

  /// Empty: auto.
  std::optional<Strategy> chosen_strategy() const;

  /// The knobs that were given.
  plan::GivenKnobs chosen_knobs() const;

  /// The plan of --plan, proved sound unless --unchecked, or the one made from OP; what strategy auto means is decided
  /// for `machine`. Throws Error(unsound) naming fault and task.
  Plan make(const Machine& machine) const;

  /// The plan of --plan, if given; it must be of OP, sizes, ranks and type where those are given too. Not checked.
  std::optional<Plan> read_plan() const;
  /// That plan, proved sound, or with --unchecked well-formed; throws Error(unsound) where it is not.
  std::optional<Plan> read_checked_plan() const;
};

/// None: auto. Throws Error(invalid_input) naming --strategy.
std::optional<Strategy> strategy_named(const std::string& name);

/// None: exact. Throws Error(invalid_input) naming --codec.
std::optional<CodecPair> codec_named(const std::string& name);

/// The fields of a problem, a strategy and knobs, for results.
Json to_json_value(const Problem& problem);

/// "gemm_reduce_scatter 512 x 512 x 1024 bf16, 4 ranks, fused".
std::string describe(const Plan& plan);

/// Why strategy auto took `strategy`, on a line: "auto takes fused, 5.936 ms, simulated on 4xh200; decomposed 5.978
/// ms". Empty where it was not asked.
std::string describe(Strategy strategy, const program::Reason& reason);

/// Fault, rank, queue, task, message.
Json to_json_value(const Finding& finding);
std::string describe(const Finding& finding);

/// Says on standard error what is going on, from two seconds on, as long as the object lives; one at a time. A terminal
/// shows it in place, each second. Uses SIGALRM.
class Progress {
 public:
  /// `parts`: how many there are to do; 0: that is not known, and neither is how much is left.
  explicit Progress(const std::string& what, std::size_t parts = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One more part is done. In any process that was forked since; does nothing where there is no object.
  static void advance();
  /// Makes room on a terminal for what is printed next.
  static void clear() noexcept;

 private:
  bool running_ = false;
};

}  // namespace imbrex::cli
