// Registration, output and options common to all commands.
#include "command.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "program/suggestion.hpp"

namespace imbrex::cli {
namespace {

template <typename T>
T value_within(const std::string& name, const std::string& text, T low, T high, const char* kind) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // The negation also refuses NaN.
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= low && value <= high))
    throw CLI::ValidationError(name, fmt::format("'{}' is not {} from {} to {}", text, kind, low, high));
  return value;
}

template <typename T>
CLI::Option* add_range(CLI::App& app, const std::string& name, T& to, T low, T high, const std::string& about,
                       const char* kind) {
  auto set = [=, &to](const std::string& text) { to = value_within(name, text, low, high, kind); };
  return app.add_option_function<std::string>(name, set, about);
}

// Files that end nowhere (devices, pipes) must not fill the memory.
std::string read_all(std::istream& from, const std::string& path) {
  constexpr std::size_t most = std::size_t{1} << 30, step = std::size_t{1} << 20;
  std::string text;
  while (from) {
    if (text.size() > most) refuse(fmt::format("'{}' is larger than {} bytes", path, most));
    const std::size_t before = text.size();
    text.resize(before + step);
    from.read(text.data() + before, static_cast<std::streamsize>(step));
    text.resize(before + static_cast<std::size_t>(from.gcount()));
  }
  return text;
}

}  // namespace

void refuse(const std::string& message) { throw Error(ErrorCode::invalid_input, message); }

CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& about) {
  return *parent.add_subcommand(name, about);
}

std::vector<const CLI::App*> commands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

CLI::App& add_command(Program& program, const std::string& name, const std::string& about, const std::string& examples,
                      std::function<int()> action) {
  CLI::App& command = add_subcommand(program.app, name, about);
  command.footer(examples);
  command.add_option("--json", program.json, "Also write the result as JSON to this file; - is standard output")
      ->type_name("FILE|-");
  command.callback([&program, action = std::move(action)] { program.action = action; });
  return command;
}

std::string with_suggestion(std::string_view text, const std::string& message) {
  constexpr std::string_view rule = "it must be ";
  const std::size_t at = message.rfind(rule);
  if (at == std::string::npos || message.find("did you mean") != std::string::npos) return message;
  std::vector<std::string> names(1);
  for (const char c : message.substr(at + rule.size())) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-')
      names.back() += c;
    else if (!names.back().empty())
      names.emplace_back();
  }
  std::erase_if(names,
                [](const std::string& name) { return name.empty() || name == "one" || name == "of" || name == "or"; });
  return message + program::did_you_mean(text, names);
}

void print_text(std::string_view text) {
  Progress::clear();
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  // A caller that closed standard output needs none of it.
  if (errno != EBADF)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("standard output cannot be written to: {}", std::strerror(errno)));
}

void print_error(const std::string& line) noexcept {
  Progress::clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

void print_line(const Program& program, const std::string& line) {
  if (program.json == "-") return print_error(line);
  print_text(line + "\n");
}

void print_json(const Program& program, const Json& value) {
  if (!program.json.empty())
    write_result(program.json, value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_result(const std::string& path, std::string_view text) {
  if (path == "-") return print_text(text);
  write_file(path, text);
}

std::string read_file(const std::string& path) {
  if (path == "-") return read_all(std::cin, path);
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) refuse(fmt::format("'{}' is a folder, not a file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(fmt::format("'{}' cannot be opened: {}", path, std::strerror(errno)));
  std::string text = read_all(file, path);
  if (file.bad()) refuse(fmt::format("'{}' cannot be read", path));
  return text;
}

void expect_writable(std::string_view option, const std::string& path) {
  if (path.empty()) return;
  if (path == "-") {
    const int flags = ::fcntl(STDOUT_FILENO, F_GETFL);
    if (flags == -1 || (flags & O_ACCMODE) == O_RDONLY)
      refuse(fmt::format("{} '-': standard output cannot be written to", option));
    return;
  }
  naming(fmt::format("{} ", option), [&] { imbrex::expect_writable(path); });
}

void expect_named(std::string_view option, const std::string& path, std::string_view ending) {
  if (path.empty()) return;
  if (!path.ends_with(ending)) refuse(fmt::format("{} '{}': the name must end in {}", option, path, ending));
  expect_writable(option, path);
}

void expect_timeline_path(std::string_view option, const std::string& path) {
  expect_writable(option, path);
  if (path.empty() || path.ends_with(".svg") || path.ends_with(".json")) return;
  refuse(fmt::format("{} '{}': the name must end in .svg (a picture) or .json (for ui.perfetto.dev)", option, path));
}

void write_timeline(const std::string& path, const Timeline& timeline) {
  write_result(path, path.ends_with(".svg") ? to_svg(timeline) : to_perfetto(timeline));
}

std::string readable_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.3f} ms", seconds * 1e3) : fmt::format("{:.2f} us", seconds * 1e6);
}

std::string readable_bytes(double bytes) {
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  constexpr std::array<const char*, 5> names{"bytes", "KiB", "MiB", "GiB", "TiB"};
  return fmt::format("{:.{}f} {}", bytes, unit ? 1 : 0, names[static_cast<std::size_t>(unit)]);
}

CLI::Option* add_integer(CLI::App& app, const std::string& name, std::int64_t& to, std::int64_t low, std::int64_t high,
                         const std::string& about) {
  return add_range(app, name, to, low, high, about, "an integer")->type_name("INT");
}

CLI::Option* add_integers(CLI::App& app, const std::string& name, std::vector<std::int64_t>& to, std::int64_t low,
                          std::int64_t high, const std::string& about) {
  auto set = [=, &to](const std::vector<std::string>& texts) {
    to.clear();
    for (const std::string& text : texts) to.push_back(value_within(name, text, low, high, "an integer"));
  };
  return app.add_option_function<std::vector<std::string>>(name, set, about);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& to, double low, double high,
                        const std::string& about) {
  return add_range(app, name, to, low, high, about, "a number")->type_name("NUMBER");
}

}  // namespace imbrex::cli
