#include "tune/tuning.hpp"

#include <cmath>
#include <ctime>
#include <filesystem>

#include "imbrex/error.hpp"

namespace imbrex::cli {
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

double microseconds(double seconds) { return std::round(seconds * 1e8) / 100; }

void write_table(const Program& program, const std::string& path, const Table& before, const std::string& table,
                 bool last) {
  if (path.empty() || (path == "-" && !last)) return;
  write_result(path, table);
  if (last && path != "-") print(program, "{}: {}", path, program::change_of_table(before.text, table));
}

Table table_at(const std::string& path) {
  if (path.empty()) return {};
  expect_writable("--out", path);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};  // what is printed there is not a table so far
  const std::string text = read_file(path);
  return {text, naming(fmt::format("--out '{}': ", path), [&] { return program::gpu_of_table(text); })};
}

}  // namespace imbrex::cli
