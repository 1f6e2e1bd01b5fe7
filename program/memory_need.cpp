#include "program/memory_need.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "base/check.hpp"
#include "imbrex/operands.hpp"
#include "program/reference.hpp"

namespace imbrex::program {
namespace {

// The number behind `name` in a file of lines "name[:] number"; without a name, the file's first.
std::optional<double> number_in(const std::string& path, std::string_view name = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    if (!name.empty() && !(words >> word && (word == name || word == std::string(name) + ":"))) continue;
    double value = 0;
    return words >> value ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

// The names of one version's files.
struct Group {
  std::string folder, limit, used;
  std::string_view inactive, active;
};

// The folders of this process' control groups for memory, of both versions: the group, and all that it is in.
std::vector<Group> groups_of(const std::string& root) {
  std::vector<Group> groups;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string kinds = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool unified = kinds == ",,", memory = kinds.find(",memory,") != std::string::npos;
    if (!unified && !memory) continue;
    const std::string base = root + (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      groups.push_back(unified ? Group{base + path, "/memory.max", "/memory.current", "inactive_file", "active_file"}
                               : Group{base + path, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                       "total_inactive_file", "total_active_file"});
      if (path.find('/') == std::string::npos) break;
    }
  }
  return groups;
}

std::string gib(double bytes) { return fmt::format("{:.1f} GiB", bytes / 0x1p30); }

}  // namespace

MemoryLeft memory_left(const std::string& root) {
  constexpr double kib = 1024;
  const std::string system = root + "/proc/meminfo";
  const double swap = kib * number_in(system, "SwapFree").value_or(0);
  MemoryLeft left{std::numeric_limits<double>::infinity(), "the system"};
  if (const auto available = number_in(system, "MemAvailable")) left.bytes = kib * *available + swap;
  for (const Group& group : groups_of(root)) {
    const auto limit = number_in(group.folder + group.limit), used = number_in(group.folder + group.used);
    if (!limit || !used) continue;
    const std::string stat = group.folder + "/memory.stat";
    const double kept = number_in(stat, group.inactive).value_or(0) + number_in(stat, group.active).value_or(0);
    if (const double room = std::max(*limit - *used, 0.0) + kept + swap; room < left.bytes)
      left = {room, "the control group's limit"};
  }
  return left;
}

void expect_memory(std::string_view job, double least, const MemoryLeft& left) {
  IMBREX_EXPECTS(least <= left.bytes, "{} needs {} of this host's memory at least, and {} are left by {}", job,
                 gib(least), gib(left.bytes), left.by);
}

double least_bytes_of(const Problem& problem, bool verify) {
  double all = 0;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    double largest_out = 0;
    for (const OperandInfo& info : operands_of(problem)) {
      const auto elements = static_cast<double>(info.rows) * static_cast<double>(info.cols);
      const double with_gaps = info.pitch == 0
                                   ? elements
                                   : static_cast<double>(info.lines() - 1) * static_cast<double>(info.pitch) +
                                         static_cast<double>(info.length());
      const double bytes = with_gaps * static_cast<double>(size_of(info.type));
      // Results are kept twice, to compare repeats.
      all += info.role == OperandRole::output ? 2 * bytes : bytes;
      if (info.role == OperandRole::output) largest_out = std::max(largest_out, elements);
    }
    // The result; of the rows that are compared, reference, bound and three sums of magnitudes.
    if (verify)
      all += largest_out * (sizeof(float) + 5 * sizeof(double) / static_cast<double>(compared_stride(problem)));
  }
  return all;
}

}  // namespace imbrex::program
