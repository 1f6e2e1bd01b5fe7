// This machine's GPUs, as driver and kernel tell them, and what ranks that share one need.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "examination.hpp"
#include "imbrex/environment.hpp"

namespace imbrex::cli {
namespace {

namespace fs = std::filesystem;

void examine_cards(Examination& exam) {
  if (const int nodes = count_gpu_nodes(); nodes > 0) {
    const std::string driver = first_line("/proc/driver/nvidia/version");
    return exam.say(Verdict::good, "GPUs",
                    fmt::format("{} ({})", nodes, driver.empty() ? "driver version unknown" : driver));
  }
  int cards = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/bus/pci/devices", ignored))
    if (first_line(entry.path() / "vendor") == "0x10de" && first_line(entry.path() / "class").starts_with("0x03"))
      ++cards;
  if (cards > 0)
    exam.say(Verdict::note, "GPUs", fmt::format("{} NVIDIA card(s) on the bus, but no driver is loaded", cards),
             "load NVIDIA's driver; in a container, start it with --gpus all");
  else
    exam.say(Verdict::note, "GPUs", "none; ranks run on the CPU, and `imbrex simulate` predicts other machines");
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
             fmt::format("{}, {}", words, all ? "between all pairs" : fmt::format("between {}", list(pairs))),
             kind == GpuLink::nvlink ? "" : "IMBREX_PEER_ACCESS=0 leaves the wire to NCCL (docs/strategies.md)");
  }
}

// What plans are chosen by, a line a kind of GPU.
void examine_plans(Examination& exam, const GpuSurvey& survey) {
  std::vector<std::string> kinds;
  for (const Gpu& gpu : survey.gpus) {
    if (std::find(kinds.begin(), kinds.end(), gpu.name) != kinds.end()) continue;
    kinds.push_back(gpu.name);
    const program::Knowledge knowledge = program::knowledge_of(gpu.name, gpu.major);
    exam.say(knowledge.measured ? Verdict::good : Verdict::note, "plans", knowledge.words,
             knowledge.measured
                 ? ""
                 : "`imbrex tune --card` measures these GPUs, `imbrex tune` plans for your sizes (docs/tuning.md)");
  }
  if (kinds.size() > 1)
    exam.say(
        Verdict::note, "plans",
        fmt::format("GPUs of {} kinds: nothing was measured on them together; auto runs cuBLAS and NCCL", kinds.size()),
        "run ranks on GPUs of one kind: CUDA_VISIBLE_DEVICES");
}

// Processes that share a GPU work at once under MPS, and else in turns.
void examine_mps(Examination& exam) {
  std::string folder = "/tmp/nvidia-mps";
  for (const EnvironmentVariable& variable : environment_variables())
    if (variable.name == "CUDA_MPS_PIPE_DIRECTORY" && variable.value) folder = *variable.value;
  std::error_code ignored;
  if (fs::exists(folder + "/control", ignored))
    exam.say(Verdict::good, "MPS", fmt::format("runs ({}): ranks that share a GPU work at once", folder));
  else
    exam.say(Verdict::note, "MPS", "does not run: ranks that share a GPU (--ranks-per-gpu) take turns on it, slowly",
             "only for that: nvidia-cuda-mps-control -d");
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
             "NVLink multicast",
             "start programs by `imbrex launch`, or export NCCL_NVLS_ENABLE=0");
  if (!is_off("NCCL_GRAPH_REGISTER"))
    exam.say(Verdict::note, "NCCL",
             "NCCL_GRAPH_REGISTER=0 is not set: programs that use the library capture no all-to-all and no send of "
             "NCCL's",
             "start programs by `imbrex launch`, or export NCCL_GRAPH_REGISTER=0");
}

}  // namespace

int count_gpu_nodes() {
  int nodes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos)
      ++nodes;
  }
  return nodes;
}

/// What the driver says of each GPU, how they reach each other, and whether ranks on them can be processes.
Json examine_gpus(Examination& exam, const GpuSurvey& survey) {
  examine_cards(exam);
  if (survey.gpus.empty()) {
    if (IMBREX_HAVE_CUDA)
      exam.say(Verdict::note, "CUDA GPUs", fmt::format("none: {}; `imbrex run` takes the CPU", survey.reason),
               count_gpu_nodes() > 0
                   ? "nvidia-smi tells what the driver shows; a newer driver, or a build with an older "
                     "CUDA, may be needed"
                   : "");
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
  examine_plans(exam, survey);
  examine_mps(exam);
  examine_nccl(exam);
  return {{"gpus", gpus}};
}

}  // namespace imbrex::cli
