#include "machine/card_file.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "base/check.hpp"
#include "imbrex/error.hpp"
#include "imbrex/version.hpp"

namespace imbrex::machine {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const base::Environment& environment) {
  using base::Key;
  const auto given = [&](Key key) { return environment.text(key).value_or(""); };
  if (const std::string own = given(Key::cache); !own.empty()) return own;
  if (const std::string caches = given(Key::xdg_cache_home); !caches.empty()) return fs::path(caches) / "imbrex";
  if (const std::string home = given(Key::home); !home.empty()) return fs::path(home) / ".cache/imbrex";
  return {};
}

// Letters, digits and dots; what else there is becomes a line.
std::string plain(std::string_view text) {
  std::string made;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '.')
      made += static_cast<char>(std::tolower(byte));
    else if (!made.empty() && made.back() != '-')
      made += '-';
  }
  return made;
}

}  // namespace

// The first word that begins with a digit: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  ...".
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;)
    if (std::isdigit(static_cast<unsigned char>(word.front())) != 0) return word;
  return "none";
}

std::string card_file(std::string_view gpu, std::string_view driver, const base::Environment& environment) {
  const fs::path folder = folder_of(environment);
  if (folder.empty()) return {};
  return (folder / fmt::format("{}_{}_{}.{}.{}.json", plain(gpu), plain(driver.empty() ? driver_version() : driver),
                               IMBREX_VERSION_MAJOR, IMBREX_VERSION_MINOR, IMBREX_VERSION_PATCH))
      .string();
}

std::optional<Machine> measured_card(std::string_view gpu, const base::Environment& environment) {
  const std::string path = card_file(gpu, {}, environment);
  std::error_code ignored;
  if (path.empty() || !fs::exists(path, ignored)) return std::nullopt;
  Machine machine = load_machine(path);
  IMBREX_EXPECTS(std::find(machine.gpus.begin(), machine.gpus.end(), gpu) != machine.gpus.end(),
                 "machine file '{}' is not about {}; `imbrex tune --card` writes a new one", path, gpu);
  return machine;
}

std::string remove_broken_card(std::string_view gpu, const base::Environment& environment) try {
  static_cast<void>(measured_card(gpu, environment));
  return {};
} catch (const Error& error) {
  std::error_code ignored;
  fs::remove(card_file(gpu, {}, environment), ignored);
  return error.what();
}

}  // namespace imbrex::machine
