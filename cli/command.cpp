// Registration, output and options common to all commands.
#include "command.hpp"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "imbrex/error.hpp"

namespace imbrex::cli {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_input, message); }

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

/// A device, pipe or link is written to; a file is replaced whole, so that no reader sees half of it. What a link leads
/// to is not asked: /dev/stdout may lead to a file, and must stay a link.
bool written_in_place(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
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

CLI::App& add_command(Program& program, const std::string& name, const std::string& about, const std::string& examples,
                      std::function<int()> action) {
  CLI::App& command = *program.app.add_subcommand(name, about);
  command.formatter(program.app.get_formatter());
  command.footer(examples);
  command.add_option("--json", program.json, "Also write the result as JSON to this file; - is standard output")
      ->type_name("FILE|-");
  command.callback([&program, action = std::move(action)] { program.action = action; });
  return command;
}

void print_line(const Program& program, const std::string& line) {
  fmt::print(program.json == "-" ? stderr : stdout, "{}\n", line);
}

void print_json(const Program& program, const Json& value) {
  if (!program.json.empty()) write_file(program.json, value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_file(const std::string& path, std::string_view text) {
  const auto fail = [&] { refuse(fmt::format("'{}' cannot be written: {}", path, std::strerror(errno))); };
  const bool to_stdout = path == "-";
  const bool direct = to_stdout || written_in_place(path);
  const std::string target = direct ? path : fmt::format("{}.{}.partial", path, ::getpid());
  std::FILE* file = to_stdout ? stdout : std::fopen(target.c_str(), "w");
  if (!file) fail();
  bool good = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (!to_stdout) good = std::fclose(file) == 0 && good;
  if (good && !direct) good = std::rename(target.c_str(), path.c_str()) == 0;
  if (!good) {
    const int cause = errno;
    if (!direct) std::remove(target.c_str());
    errno = cause;
    fail();
  }
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
  if (path.empty() || path == "-") return;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse(fmt::format("{} '{}': it is a folder", option, path));
  if (written_in_place(path)) {
    if (::access(path.c_str(), W_OK) != 0)
      refuse(fmt::format("{} '{}': it cannot be written to: {}", option, path, std::strerror(errno)));
    return;
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (::access(folder.c_str(), W_OK) != 0 || !std::filesystem::is_directory(folder, ignored))
    refuse(fmt::format("{} '{}': '{}' is no folder that can be written to", option, path, folder));
}

void expect_timeline_path(std::string_view option, const std::string& path) {
  expect_writable(option, path);
  if (path.empty() || path.ends_with(".svg") || path.ends_with(".json")) return;
  refuse(fmt::format("{} '{}': the name must end in .svg (a picture) or .json (for ui.perfetto.dev)", option, path));
}

void write_timeline(const std::string& path, const Timeline& timeline) {
  write_file(path, path.ends_with(".svg") ? to_svg(timeline) : to_perfetto(timeline));
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
  return add_range(app, name, to, low, high, about, "a whole number")->type_name("INT");
}

CLI::Option* add_integers(CLI::App& app, const std::string& name, std::vector<std::int64_t>& to, std::int64_t low,
                          std::int64_t high, const std::string& about) {
  auto set = [=, &to](const std::vector<std::string>& texts) {
    to.clear();
    for (const std::string& text : texts) to.push_back(value_within(name, text, low, high, "a whole number"));
  };
  return app.add_option_function<std::vector<std::string>>(name, set, about);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& to, double low, double high,
                        const std::string& about) {
  return add_range(app, name, to, low, high, about, "a number")->type_name("NUMBER");
}

}  // namespace imbrex::cli
