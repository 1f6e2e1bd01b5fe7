#include "base/environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/check.hpp"
#include "imbrex/environment.hpp"

namespace imbrex::base {
namespace {

constexpr auto num_variables = static_cast<std::size_t>(Key::count_);
using enum ValueType;

constexpr std::array<Variable, num_variables> registry{{
    {Key::wait_limit, "IMBREX_WAIT_LIMIT", number, "30",
     "seconds that any wait may last, unless the program says otherwise; past this limit the operation fails on every "
     "rank. Not set: 30; for a rank that has not come to the call 600, in torch the group's timeout"},
    {Key::loss_detection, "IMBREX_LOSS_DETECTION", text, "auto",
     "how the end of a peer process is noticed: auto, pidfd, or lock (a record lock, for kernels without pidfd_open)"},
    {Key::check_calls, "IMBREX_CHECK_CALLS", integer, "0",
     "1 (for debugging): ranks compare the arguments of each call, and every rank refuses a call in which they differ. "
     "Each call then waits for all ranks. The same on every rank"},
    {Key::peer_access, "IMBREX_PEER_ACCESS", integer, "1",
     "0: plan and run as if ranks did not reach each other's memory, on every machine; the same on every rank"},
    {Key::shmem_device, "IMBREX_SHMEM_DEVICE", text, "cpu",
     "where programs that call imbrex/shmem.h have their symmetric heap: cpu, cuda, or auto; the same on every rank"},
    {Key::shmem_ranks_per_gpu, "IMBREX_SHMEM_RANKS_PER_GPU", integer, "1",
     "ranks that share each GPU on which such a heap lies; the same on every rank"},
    {Key::shmem_symmetric_size, "SHMEM_SYMMETRIC_SIZE", text, "512M",
     "OpenSHMEM: bytes of each PE's symmetric heap, where programs call imbrex/shmem.h; a number, which may have a "
     "fraction, and K, M, G or T for powers of 1024; the same on every rank"},
    {Key::fabric_provider, "IMBREX_FABRIC_PROVIDER", text, "tcp;ofi_rxm",
     "libfabric's provider, through which rings reach PEs of other hosts; `fi_info` lists them. The same on every "
     "rank"},
    {Key::rank, "IMBREX_RANK", integer, "", "this process's rank; set by `imbrex launch`"},
    {Key::world_size, "IMBREX_WORLD_SIZE", integer, "", "number of ranks; set by `imbrex launch`"},
    {Key::rendezvous, "IMBREX_RENDEZVOUS", text, "",
     "random text that all ranks of one launch have, and no others; set by `imbrex launch`. Ranks that meet over a "
     "network use it as their secret; it must then be set, with 16 bytes or more. No command prints it"},
    {Key::address, "IMBREX_ADDRESS", text, "",
     "name or address of rank 0's host for ranks of other hosts; ':' and a port may follow, and 8 ports from it on are "
     "tried. Ranks then meet by TCP. The same on every rank"},
    {Key::interface, "IMBREX_INTERFACE", text, "",
     "network interface of this host, such as eth0, for connections to other hosts"},
    {Key::host, "IMBREX_HOST", text, "",
     "name of this host in messages; ranks with different names count as on different hosts and share no memory"},
    {Key::vllm, "IMBREX_VLLM", integer, "0",
     "1: vLLM's tensor-parallel layers run on Imbrex, if its Python package is installed beside vLLM"},
    {Key::untuned_sizes, "IMBREX_UNTUNED_SIZES", text, "",
     "a file to which rank 0 adds each GEMM size that runs on GPUs and has no tuning entry; `imbrex tune --auto FILE` "
     "measures them"},
    {Key::cache, "IMBREX_CACHE", text, "XDG_CACHE_HOME/imbrex",
     "folder for the results of `imbrex tune --card` on this machine's GPUs. Not set, and XDG_CACHE_HOME not set "
     "either: .cache/imbrex in HOME"},

    {Key::torch_rank, "RANK", integer, "", "torchrun: this process's rank"},
    {Key::torch_world_size, "WORLD_SIZE", integer, "", "torchrun: number of ranks"},
    {Key::torch_local_rank, "LOCAL_RANK", text, "",
     "torchrun: this process's rank on its host. Without it, RANK and WORLD_SIZE=1 may belong to a pod in which "
     "another launcher started this process"},
    {Key::torch_local_world_size, "LOCAL_WORLD_SIZE", integer, "WORLD_SIZE", "torchrun: number of ranks on this host"},
    {Key::torch_master_addr, "MASTER_ADDR", text, "",
     "torchrun: with MASTER_PORT, tells this job from others; where rank 0 is reached from other hosts"},
    {Key::torch_master_port, "MASTER_PORT", text, "",
     "torchrun: with MASTER_ADDR, tells this job from others. Rank 0 listens for other hosts at the first free one of "
     "the next 8 ports"},
    {Key::torch_run_id, "TORCHELASTIC_RUN_ID", text, "", "torchrun: tells this job from others"},
    {Key::torch_restart_count, "TORCHELASTIC_RESTART_COUNT", text, "", "torchrun: tells restarts of a job apart"},

    {Key::ompi_rank, "OMPI_COMM_WORLD_RANK", integer, "", "Open MPI: this process's rank"},
    {Key::ompi_size, "OMPI_COMM_WORLD_SIZE", integer, "", "Open MPI: number of ranks"},
    {Key::ompi_local_size, "OMPI_COMM_WORLD_LOCAL_SIZE", integer, "OMPI_COMM_WORLD_SIZE",
     "Open MPI: number of ranks on this host"},
    {Key::ompi_jobid, "OMPI_MCA_ess_base_jobid", text, "", "Open MPI 4: tells this job from others"},
    {Key::pmix_namespace, "PMIX_NAMESPACE", text, "", "Open MPI 5, PMIx: tells this job from others"},
    {Key::pmix_rank, "PMIX_RANK", integer, "",
     "PMIx: this process's rank; the number of ranks is not in the environment, so by itself it is refused"},

    {Key::pmi_rank, "PMI_RANK", integer, "", "MPICH, Intel MPI, Hydra, PALS: this process's rank"},
    {Key::pmi_size, "PMI_SIZE", integer, "", "MPICH, Intel MPI, Hydra, PALS: number of ranks"},
    {Key::pmi_fd, "PMI_FD", integer, "",
     "MPICH, Intel MPI, Hydra: the launcher's socket, by whose owner this job is told from others on this host"},
    {Key::pmi_id, "PMI_ID", integer, "",
     "Hydra with -pmi-port: this process's rank; the number of ranks is not in the environment, so it is refused"},
    {Key::pmi_local_ranks, "MPI_LOCALNRANKS", integer, "PMI_SIZE", "Hydra: number of ranks on this host"},
    {Key::pals_rank, "PALS_RANKID", integer, "", "PALS: this process's rank; refused without PMI_RANK and PMI_SIZE"},
    {Key::pals_apid, "PALS_APID", text, "", "PALS: tells this job from others"},
    {Key::pals_local_size, "PALS_LOCAL_SIZE", integer, "PMI_SIZE", "PALS: number of ranks on this host"},

    {Key::flux_rank, "FLUX_TASK_RANK", integer, "", "Flux: this process's rank"},
    {Key::flux_size, "FLUX_JOB_SIZE", integer, "", "Flux: number of ranks"},
    {Key::flux_nodes, "FLUX_JOB_NNODES", integer, "1", "Flux: number of hosts"},
    {Key::flux_job_id, "FLUX_JOB_ID", text, "", "Flux: tells this job from others"},

    {Key::slurm_procid, "SLURM_PROCID", integer, "", "Slurm: this process's rank"},
    {Key::slurm_ntasks, "SLURM_NTASKS", integer, "", "Slurm: number of ranks"},
    {Key::slurm_job_id, "SLURM_JOB_ID", text, "", "Slurm: with SLURM_STEP_ID, tells this job from others"},
    {Key::slurm_step_id, "SLURM_STEP_ID", integer, "",
     "Slurm: step within the job; without it (a batch script) Slurm's variables are not used"},
    {Key::slurm_step_nodes, "SLURM_STEP_NUM_NODES", integer, "SLURM_NNODES", "Slurm: number of hosts of the step"},
    {Key::slurm_nodes, "SLURM_NNODES", integer, "1", "Slurm: number of hosts of the job"},
    {Key::slurm_step_nodelist, "SLURM_STEP_NODELIST", text, "SLURM_NODELIST",
     "Slurm: hosts of the step, the first of which has rank 0"},
    {Key::slurm_nodelist, "SLURM_NODELIST", text, "", "Slurm: hosts of the job"},

    {Key::nccl_hostid, "NCCL_HOSTID", text, "",
     "NCCL: the host that a rank counts for. Processes that share a GPU each need their own. Set by `imbrex launch "
     "--ranks-per-gpu`"},
    {Key::nccl_nvls_enable, "NCCL_NVLS_ENABLE", text, "",
     "NCCL: 0 turns NVLink multicast off; Imbrex uses NCCL only then. Set by `imbrex launch`"},
    {Key::nccl_graph_register, "NCCL_GRAPH_REGISTER", text, "",
     "NCCL: 0 turns registration of captured calls' buffers off; Imbrex captures NCCL's all-to-alls only then. Set by "
     "`imbrex launch`"},

    {Key::cuda_mps_pipe_directory, "CUDA_MPS_PIPE_DIRECTORY", text, "/tmp/nvidia-mps",
     "CUDA: folder of MPS, under which processes that share a GPU work concurrently; `imbrex doctor` looks there"},

    {Key::xdg_cache_home, "XDG_CACHE_HOME", text, "", "the user's folder of caches"},
    {Key::home, "HOME", text, "", "the user's folder"},
    {Key::no_color, "NO_COLOR", text, "", "not empty: the program prints no colours"},
    {Key::term, "TERM", text, "", "the terminal; dumb: it shows no colours"},
}};

// The registry is indexed by key.
constexpr bool in_order() {
  for (std::size_t i = 0; i < num_variables; ++i)
    if (static_cast<std::size_t>(registry[i].key) != i) return false;
  return true;
}
static_assert(in_order(), "the registry lists the keys in the order of their declaration");

const Variable& entry(Key key) { return registry[static_cast<std::size_t>(key)]; }

std::string_view type_name(ValueType type) {
  return type == ValueType::text ? "text" : type == ValueType::integer ? "integer" : "number";
}

template <typename T>
std::optional<T> parse(Key key, const std::optional<std::string>& value, std::string_view what) {
  if (!value) return std::nullopt;
  T result{};
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), result);
  IMBREX_EXPECTS(error == std::errc{} && end == value->data() + value->size(), "{}='{}' is not {}", name_of(key),
                 *value, what);
  return result;
}

}  // namespace

Environment::Environment(const Lookup& lookup) {
  for (const Variable& variable : registry) {
    const char* value = lookup(std::string(variable.name).c_str());
    if (value && *value) values_[static_cast<std::size_t>(variable.key)] = value;
  }
}

std::optional<std::int64_t> Environment::integer(Key key) const {
  return parse<std::int64_t>(key, raw(key), "an integer");
}

std::optional<double> Environment::number(Key key) const {
  const auto value = parse<double>(key, raw(key), "a number");
  IMBREX_EXPECTS(!value || std::isfinite(*value), "{}='{}' is not finite", name_of(key), *raw(key));
  return value;
}

std::optional<double> Environment::wait_limit() const {
  const std::optional<double> limit = number(Key::wait_limit);
  IMBREX_EXPECTS(!limit || (*limit > 0 && *limit <= most_wait_limit), "{}='{}' must be more than 0 and at most {} s",
                 name_of(Key::wait_limit), *raw(Key::wait_limit), most_wait_limit);
  return limit;
}

std::string Environment::loss_detection() const {
  std::string method = raw(Key::loss_detection).value_or("auto");
  IMBREX_EXPECTS(method == "auto" || method == "pidfd" || method == "lock", "{}='{}' must be auto, pidfd or lock",
                 name_of(Key::loss_detection), method);
  return method;
}

bool Environment::check_calls() const {
  const std::int64_t value = integer(Key::check_calls).value_or(0);
  IMBREX_EXPECTS(value == 0 || value == 1, "{}='{}' must be 0 or 1", name_of(Key::check_calls), *raw(Key::check_calls));
  return value == 1;
}

bool Environment::peer_access() const {
  const std::int64_t value = integer(Key::peer_access).value_or(1);
  IMBREX_EXPECTS(value == 0 || value == 1, "{}='{}' must be 0 or 1", name_of(Key::peer_access), *raw(Key::peer_access));
  return value == 1;
}

std::string Environment::shmem_device() const {
  std::string device = raw(Key::shmem_device).value_or("cpu");
  IMBREX_EXPECTS(device == "auto" || device == "cpu" || device == "cuda", "{}='{}' must be auto, cpu or cuda",
                 name_of(Key::shmem_device), device);
  return device;
}

int Environment::shmem_ranks_per_gpu() const {
  const std::int64_t ranks = integer(Key::shmem_ranks_per_gpu).value_or(1);
  IMBREX_EXPECTS(ranks >= 1 && ranks <= 64, "{}='{}' must be from 1 to 64", name_of(Key::shmem_ranks_per_gpu),
                 *raw(Key::shmem_ranks_per_gpu));
  return static_cast<int>(ranks);
}

std::size_t Environment::shmem_symmetric_size() const {
  const std::string said = raw(Key::shmem_symmetric_size).value_or("512M");
  double size = 0;
  const char* const last = said.data() + said.size();
  const auto [end, error] = std::from_chars(said.data(), last, size, std::chars_format::fixed);
  constexpr std::string_view units = "KMGT";
  const std::size_t unit =
      end == last ? 0 : units.find(static_cast<char>(std::toupper(static_cast<unsigned char>(*end))));
  const bool has_unit = end + 1 == last && unit != units.npos;
  if (has_unit) size = std::ldexp(size, static_cast<int>(10 * (unit + 1)));
  // A world's heap is not larger.
  IMBREX_EXPECTS(error == std::errc{} && (end == last || has_unit) && size >= 1 && size <= std::ldexp(1, 39),
                 "{}='{}' must be a size from 1 byte to 512 GiB, such as 4096, 512M or 1.5G",
                 name_of(Key::shmem_symmetric_size), said);
  return static_cast<std::size_t>(std::ceil(size));
}

std::string Environment::fault(Key key) const {
  try {
    if (key == Key::shmem_device) static_cast<void>(shmem_device());
    if (key == Key::shmem_ranks_per_gpu) static_cast<void>(shmem_ranks_per_gpu());
    if (key == Key::shmem_symmetric_size) static_cast<void>(shmem_symmetric_size());
    if (key == Key::wait_limit) static_cast<void>(wait_limit());
    if (key == Key::loss_detection) static_cast<void>(loss_detection());
    if (key == Key::check_calls) static_cast<void>(check_calls());
    if (key == Key::peer_access) static_cast<void>(peer_access());
    if (entry(key).type == ValueType::integer) static_cast<void>(integer(key));
    if (entry(key).type == ValueType::number) static_cast<void>(number(key));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string_view name_of(Key key) { return entry(key).name; }

Environment environment_now() {
  return Environment([](const char* name) { return std::getenv(name); });
}

const Environment& environment() {
  static const Environment instance = environment_now();
  return instance;
}

}  // namespace imbrex::base

namespace imbrex {

std::vector<EnvironmentVariable> environment_variables() {
  std::vector<EnvironmentVariable> result;
  for (const base::Variable& variable : base::registry) {
    auto value = base::environment().text(variable.key);
    if (value && variable.key == base::Key::rendezvous)
      value = fmt::format("(a secret of {} bytes, not shown)", value->size());
    result.push_back({std::string(variable.name), std::string(base::type_name(variable.type)),
                      std::string(variable.fallback), std::string(variable.description), std::move(value),
                      base::environment().fault(variable.key)});
  }
  return result;
}

std::vector<std::string> unread_variables() {
  std::vector<std::string> result;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view line = *each;
    const std::string_view name = line.substr(0, line.find('='));
    const bool known = std::any_of(base::registry.begin(), base::registry.end(),
                                   [&](const base::Variable& variable) { return variable.name == name; });
    if (name.starts_with("IMBREX_") && !known) result.emplace_back(name);
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace imbrex
