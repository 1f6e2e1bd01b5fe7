#include "tuning.hpp"

#include <unistd.h>

#include <cmath>
#include <ctime>
#include <filesystem>

#include "imbrex/error.hpp"

namespace imbrex::cli {
namespace {

std::string for_table(const std::string& path, const std::function<std::string()>& call) {
  try {
    return call();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--out '{}': {}", path, error.what()));
  }
}

}  // namespace

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

double microseconds(double seconds) { return std::round(seconds * 1e8) / 100; }

std::string table_at(const std::string& path) {
  if (path.empty()) return {};
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (::access(folder.c_str(), W_OK) != 0 || !std::filesystem::is_directory(folder))
    throw Error(ErrorCode::invalid_input,
                fmt::format("--out '{}': '{}' is no folder that can be written to", path, folder));
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  std::string text = read_file(path);
  for_table(path, [&] { return gpu_of_table(text); });
  return text;
}

void write_table(const std::string& path, bool last, const std::function<std::string()>& make) {
  if (path.empty()) return;
  const std::string text = for_table(path, make);
  if (last) write_file(path, text);
}

}  // namespace imbrex::cli
