// imbrex bench all: everything on this machine. A script does it (bench/all/measure.py), since it starts ranks, torch,
// NVSHMEM's programs and other scripts; here it is found and started.
#include "bench/bench_all.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "imbrex/error.hpp"

namespace imbrex::cli {
namespace {

namespace fs = std::filesystem;

// Beside an installed program, beside a copied one, in the tree around a build, and in the one that was compiled.
std::vector<fs::path> places(const fs::path& bin) {
  const fs::path above = bin.parent_path();
  return {above / "share/imbrex/bench", above / "bench", above.parent_path() / "bench", IMBREX_SOURCE_BENCH};
}

// Does not return, but by an exception: this process becomes Python's.
int become_script(const std::vector<std::string>& arguments) {
  const fs::path bin = fs::canonical("/proc/self/exe").parent_path();
  std::string looked;
  for (const fs::path& place : places(bin)) {
    const fs::path script = place / "all/measure.py";
    std::error_code none;
    if (!fs::exists(script, none)) {
      looked += fmt::format("{}{}", looked.empty() ? "" : ", ", script.string());
      continue;
    }
    std::vector<std::string> words{"python3", "-B", script.string(), "--bin", bin.string()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execvp(pointers.front(), pointers.data());
    throw Error(ErrorCode::runtime_failure, fmt::format("python3 does not start: {}", std::strerror(errno)));
  }
  throw Error(ErrorCode::invalid_input, fmt::format("bench all: its script is in none of {}", looked));
}

}  // namespace

std::function<int()> add_bench_all(CLI::App& bench_command) {
  CLI::App& command = add_subcommand(bench_command, "all",
                                     "Measures everything on this machine in ten minutes, compares it with its peers, "
                                     "and makes a page of the results.");
  command.prefix_command();  // all that follows is the script's, --help too
  command.set_help_flag();
  command.set_help_all_flag();
  return [&command] { return become_script(command.remaining()); };
}

}  // namespace imbrex::cli
