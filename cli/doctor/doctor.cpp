// imbrex doctor: what this machine offers, and what is missing, in words.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "command.hpp"
#include "imbrex/environment.hpp"
#include "imbrex/error.hpp"
#include "imbrex/gpu.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/world.hpp"
#include "jobs/limits/limits.hpp"
#include "jobs/limits/strategies_here.hpp"

namespace imbrex::cli {
namespace {

namespace fs = std::filesystem;

enum class Verdict { good, note, missing };

/// Collects findings, prints them, and knows whether something needed is missing.
class Examination {
 public:
  explicit Examination(const Program& program) : program_(program) {}

  void say(Verdict verdict, const std::string& what, const std::string& words) {
    constexpr std::array<const char*, 3> marks{"ok", "note", "missing"};
    const char* mark = marks[static_cast<std::size_t>(verdict)];
    print(program_, "{:<8} {:<11} {}", mark, what, words);
    findings_.push_back({{"verdict", mark}, {"what", what}, {"words", words}});
    missing_ |= verdict == Verdict::missing;
  }

  Json findings_ = Json::array();
  bool missing_ = false;

 private:
  const Program& program_;
};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  return known ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

/// The value in kB of a line of /proc/meminfo, in bytes; 0 where there is none.
double memory_line(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return 1024 * std::strtod(line.c_str() + name.size() + 1, nullptr);
  return 0;
}

void examine_cpu(Examination& exam) {
  utsname system{};
  uname(&system);
  const int cores = usable_cores();
  exam.say(Verdict::good, "cores",
           fmt::format("{} usable; more ranks than that share them and are slower than real ones would be", cores));
  // "200000 100000": 2 cores' worth of time in every period.
  const std::string quota = first_line("/sys/fs/cgroup/cpu.max");
  double limit = 0, period = 0;
  if (std::sscanf(quota.c_str(), "%lf %lf", &limit, &period) == 2 && period > 0 && limit / period < cores)
    exam.say(Verdict::note, "cores", fmt::format("a control group allows {:.1f} cores' worth of time", limit / period));
  exam.say(Verdict::good, "memory",
           fmt::format("{}, {} of it free", readable_bytes(memory_line("MemTotal")),
                       readable_bytes(memory_line("MemAvailable"))));
  const std::string cap = first_line("/sys/fs/cgroup/memory.max");
  if (!cap.empty() && cap != "max")
    exam.say(Verdict::note, "memory",
             fmt::format("a control group allows {}", readable_bytes(std::strtod(cap.c_str(), nullptr))));
  const Machine host = probe_machine();
  const double rate = host.sm_rate.at(Type::fp32) * host.sms;
  exam.say(Verdict::good, "BLAS", fmt::format("{}: {:.0f} GFLOP/s in fp32 on all cores", IMBREX_BLAS, rate / 1e9));
  exam.say(Verdict::good, "system", fmt::format("{} {}", system.sysname, system.release));
}

void examine_kernel(Examination& exam) {
  const long memory = memfd_create("imbrex-doctor", MFD_CLOEXEC);
  if (memory >= 0) {
    close(static_cast<int>(memory));
    exam.say(Verdict::good, "memfd", "symmetric heaps can be shared between processes");
  } else {
    exam.say(Verdict::missing, "memfd",
             fmt::format("{}; ranks can't be processes, only threads", std::strerror(errno)));
  }
  const long process = syscall(SYS_pidfd_open, getpid(), 0);
  if (process >= 0) {
    close(static_cast<int>(process));
    exam.say(Verdict::good, "pidfd", "a lost rank is noticed at once");
  } else {
    exam.say(Verdict::note, "pidfd",
             fmt::format("{}; a lost rank is noticed by its record lock instead", std::strerror(errno)));
  }
}

void examine_gpus(Examination& exam) {
  constexpr bool built = IMBREX_HAVE_CUDA;
  exam.say(built ? Verdict::good : Verdict::note, "CUDA",
           built
               ? "this program was configured with a CUDA toolkit"
               : "this program was built without a CUDA toolkit; put nvcc on PATH and build again for the CUDA parts");
  std::error_code ignored;
  int nodes = 0, cards = 0;
  for (const auto& entry : fs::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos)
      ++nodes;
  }
  for (const auto& entry : fs::directory_iterator("/sys/bus/pci/devices", ignored))
    if (first_line(entry.path() / "vendor") == "0x10de" && first_line(entry.path() / "class").starts_with("0x03"))
      ++cards;
  if (nodes > 0) {
    const std::string driver = first_line("/proc/driver/nvidia/version");
    exam.say(Verdict::good, "GPUs", fmt::format("{} ({})", nodes, driver.empty() ? "driver version unknown" : driver));
  } else if (cards > 0) {
    exam.say(Verdict::note, "GPUs", fmt::format("{} NVIDIA card(s) on the bus, but no driver is loaded", cards));
  } else {
    exam.say(Verdict::note, "GPUs", "none; ranks run on the CPU, and `imbrex simulate` predicts other machines");
  }
}

std::string list(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

/// Pairs of GPUs by how they are linked; a kind that all pairs share is said once.
void examine_links(Examination& exam, const GpuSurvey& survey) {
  constexpr std::array<std::pair<GpuLink, const char*>, 3> kinds{
      {{GpuLink::nvlink, "NVLink: peer access with native atomics"},
       {GpuLink::pcie, "PCIe: peer access without native atomics, too little for the CUDA executor"},
       {GpuLink::none, "no peer access"}}};
  const std::size_t count = survey.gpus.size();
  for (const auto& [kind, words] : kinds) {
    std::vector<std::string> pairs;
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t j = i + 1; j < count; ++j)
        // A pair is as good as its worse direction.
        if (std::min(survey.link(i, j), survey.link(j, i)) == kind) pairs.push_back(fmt::format("{}-{}", i, j));
    if (pairs.empty()) continue;
    const bool all = 2 * pairs.size() == count * (count - 1);
    exam.say(kind == GpuLink::nvlink ? Verdict::good : Verdict::note, "GPU links",
             fmt::format("{}, {}", words, all ? "between all pairs" : fmt::format("between {}", list(pairs))));
  }
}

/// Which strategies run here, with what of the machine, or what keeps them from it.
Json examine_strategies(Examination& exam, const GpuSurvey& survey) {
  Json strategies = Json::array();
  for (const jobs::StrategyHere& strategy : jobs::strategies_here(survey)) {
    exam.say(strategy.runs ? Verdict::good : Verdict::note, "strategy",
             fmt::format("{} {}: {}", strategy.name, strategy.runs ? "runs" : "does not run", strategy.why));
    strategies.push_back({{"name", strategy.name}, {"runs", strategy.runs}, {"why", strategy.why}});
  }
  return strategies;
}

/// What the driver says of each GPU, how they reach each other, and whether ranks on them can be processes.
Json examine_cuda(Examination& exam, const GpuSurvey& survey) {
  if (survey.gpus.empty()) {
    if (IMBREX_HAVE_CUDA)
      exam.say(Verdict::note, "CUDA GPUs", fmt::format("none: {}; `imbrex run` takes the CPU", survey.reason));
    return {{"gpus", Json::array()}, {"reason", survey.reason}};
  }
  Json gpus = Json::array();
  std::vector<std::string> no_mapping, no_export;
  for (std::size_t i = 0; i < survey.gpus.size(); ++i) {
    const Gpu& gpu = survey.gpus[i];
    exam.say(
        Verdict::good, fmt::format("GPU {}", i),
        fmt::format("{}, {}, {} SMs, compute capability {}.{}, {}", gpu.name,
                    readable_bytes(static_cast<double>(gpu.memory_bytes)), gpu.sms, gpu.major, gpu.minor, gpu.uuid));
    Json links = Json::array();
    for (std::size_t j = 0; j < survey.gpus.size(); ++j) links.push_back(i == j ? "self" : name_of(survey.link(i, j)));
    gpus.push_back({{"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"memory_bytes", gpu.memory_bytes},
                    {"sms", gpu.sms},
                    {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                    {"virtual_memory_management", gpu.maps_memory},
                    {"posix_descriptors", gpu.exports_memory},
                    {"links", links}});
    if (!gpu.maps_memory) no_mapping.push_back(fmt::to_string(i));
    if (!gpu.exports_memory) no_export.push_back(fmt::to_string(i));
  }
  examine_links(exam, survey);
  if (!no_mapping.empty())
    exam.say(Verdict::note, "GPU memory",
             fmt::format("GPU {}: no virtual memory management, so no symmetric heap", list(no_mapping)));
  else if (!no_export.empty())
    exam.say(Verdict::note, "GPU memory",
             fmt::format("GPU {}: allocations do not travel as POSIX file descriptors; ranks on it can only be threads",
                         list(no_export)));
  else
    exam.say(Verdict::good, "GPU memory",
             "allocations travel between processes as POSIX file descriptors; ranks can be processes or threads");
  return {{"gpus", gpus}};
}

void examine_launchers(Examination& exam) {
  for (const EnvironmentVariable& variable : environment_variables())
    if (variable.fault.starts_with("IMBREX_"))
      exam.say(Verdict::missing, "environment", fmt::format("{}; every run is refused", variable.fault));
    else if (variable.value)
      exam.say(Verdict::note, "environment",
               fmt::format("{}={} ({})", variable.name, *variable.value, variable.description));
  try {
    exam.say(Verdict::good, "launcher",
             World::launched() ? "a launcher's variables are set; this process is one of its ranks"
                               : "none; `imbrex launch -n 4 -- program` starts ranks here");
  } catch (const Error& error) {
    exam.say(Verdict::missing, "launcher", error.what());
  }
}

/// What a program of this environment could not do with NCCL; this one sets for itself what is missing.
void examine_nccl(Examination& exam) {
  const auto is_off = [](const std::string& name) {
    for (const EnvironmentVariable& variable : environment_variables())
      if (variable.name == name) return variable.value == "0";
    return false;
  };
  if (!is_off("NCCL_NVLS_ENABLE"))
    exam.say(Verdict::note, "NCCL",
             "NCCL_NVLS_ENABLE=0 is not set: programs that use the library run no plans that need NCCL, lest it uses "
             "NVLink multicast; `imbrex launch` sets it");
  if (!is_off("NCCL_GRAPH_REGISTER"))
    exam.say(Verdict::note, "NCCL",
             "NCCL_GRAPH_REGISTER=0 is not set: programs that use the library capture no all-to-all and no send of "
             "NCCL's; `imbrex launch` sets it");
}

}  // namespace

void add_doctor(Program& program) {
  const auto limits = std::make_shared<bool>(false);
  CLI::App& doctor = add_command(
      program, "doctor",
      "Says what this machine offers to Imbrex, and what is missing.\n"
      "Cores, memory, BLAS, the kernel's means of sharing memory, GPUs and how they are linked, which strategies run,\n"
      "and launchers. Takes about a quarter of a second, and some more to start the driver of GPUs. Exits 0 if ranks "
      "can\n"
      "run here, else 3.",
      "Examples:\n"
      "  imbrex doctor\n"
      "  imbrex doctor --json report.json\n"
      "  imbrex doctor --limits > limits.md",
      [&program, limits] {
        if (*limits) {
          print_text(jobs::limits_page());
          return 0;
        }
        Examination exam(program);
        examine_cpu(exam);
        examine_kernel(exam);
        examine_gpus(exam);
        Json report{{"version", IMBREX_VERSION}};
        const GpuSurvey survey = survey_gpus();
        report.update(examine_cuda(exam, survey));
        if (!report["gpus"].empty()) examine_nccl(exam);
        report["strategies"] = examine_strategies(exam, survey);
        examine_launchers(exam);
        report.update({{"findings", exam.findings_}, {"able", !exam.missing_}});
        print_json(program, report);
        return exam.missing_ ? static_cast<int>(ErrorCode::runtime_failure) : 0;
      });
  doctor.add_flag("--limits", *limits,
                  "Print docs/reference/limits.md instead: which operators run with what, by the code's own checks");
}

}  // namespace imbrex::cli
