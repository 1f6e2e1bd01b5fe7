// Finding machine files by name.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/check.hpp"
#include "base/text.hpp"
#include "imbrex/machine.hpp"

namespace imbrex {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view extension = ".json";

std::vector<std::string> search_path(const std::vector<std::string>& folders) {
  std::vector<std::string> result = folders;
  for (std::string& folder : machine_folders()) result.push_back(std::move(folder));
  return result;
}

std::string read(const fs::path& path) {
  std::error_code error;
  IMBREX_EXPECTS(fs::is_regular_file(path, error), "machine file '{}' does not exist or is not a file", path.string());
  const auto size = fs::file_size(path, error);
  IMBREX_EXPECTS(!error && size <= (1u << 20), "machine file '{}' is larger than 1 MiB or cannot be read",
                 path.string());
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  IMBREX_EXPECTS(file.good() || (file.eof() && size == 0), "machine file '{}' cannot be read", path.string());
  return text;
}

Machine load_file(const fs::path& path) { return parse_machine(read(path), path.string()); }

// In an order that every rank finds them in.
std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == extension) files.push_back(it->path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

// Folders that came with the library: beside the library and beside an installed program, each of which may have been
// copied; in the tree it was built from; and where it was configured to be installed. A Python package is run by a
// program that lies elsewhere.
std::vector<std::string> machine_folders() {
  std::vector<std::string> folders;
  const auto beside = [&](const fs::path& file) {
    std::error_code error;
    const fs::path real = fs::canonical(file, error);
    if (error) return;
    std::string folder = (real.parent_path().parent_path() / "share/imbrex/machines").string();
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(std::move(folder));
  };
  if (Dl_info own{}; dladdr(reinterpret_cast<const void*>(&machine_folders), &own) != 0 && own.dli_fname != nullptr)
    beside(own.dli_fname);
  beside("/proc/self/exe");
  folders.emplace_back(IMBREX_SOURCE_MACHINES);
  folders.emplace_back(IMBREX_INSTALLED_MACHINES);
  return folders;
}

std::vector<std::string> machine_names(const std::vector<std::string>& folders) {
  std::set<std::string> names;
  for (const std::string& folder : search_path(folders))
    for (const fs::path& file : files_in(folder)) names.insert(file.stem().string());
  return {names.begin(), names.end()};
}

Machine load_machine(std::string_view name_or_path, const std::vector<std::string>& folders) {
  IMBREX_EXPECTS(!name_or_path.empty() && name_or_path.find('\0') == std::string_view::npos,
                 "a machine's name or path must not be empty or hold a zero byte");
  if (name_or_path.find('/') != std::string_view::npos || name_or_path.ends_with(extension))
    return load_file(name_or_path);
  const std::vector<std::string> path = search_path(folders);
  for (const std::string& folder : path) {
    std::error_code error;
    const fs::path file = fs::path(folder) / (std::string(name_or_path) + std::string(extension));
    if (fs::is_regular_file(file, error)) return load_file(file);
  }
  const std::vector<std::string> names = machine_names(folders);
  IMBREX_EXPECTS(false, "no machine is called '{}'; known are {}{} (looked in {})", name_or_path,
                 fmt::join(names, ", "),
                 base::did_you_mean(name_or_path, std::vector<std::string_view>(names.begin(), names.end())),
                 fmt::join(path, ", "));
  return {};
}

std::optional<Machine> find_machine_of(std::string_view gpu, const std::vector<std::string>& folders) {
  for (const std::string& folder : search_path(folders))
    for (const fs::path& file : files_in(folder)) {
      const std::string text = read(file);
      if (text.find(gpu) == std::string::npos) continue;  // most files: reading one takes a tenth of parsing it
      Machine machine = parse_machine(text, file.string());
      if (std::find(machine.gpus.begin(), machine.gpus.end(), gpu) != machine.gpus.end()) return machine;
    }
  return std::nullopt;
}

}  // namespace imbrex
