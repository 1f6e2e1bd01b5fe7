// The one typed registry of environment variables. No other file reads the environment.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace imbrex::base {

enum class Key : std::uint8_t {
  // Imbrex
  wait_limit,
  loss_detection,
  check_calls,
  peer_access,
  shmem_device,
  shmem_ranks_per_gpu,
  shmem_symmetric_size,
  fabric_provider,
  rank,
  world_size,
  rendezvous,
  address,
  interface,
  host,
  vllm,
  untuned_sizes,
  cache,
  // torchrun
  torch_rank,
  torch_world_size,
  torch_local_rank,
  torch_local_world_size,
  torch_master_addr,
  torch_master_port,
  torch_run_id,
  torch_restart_count,
  // Open MPI
  ompi_rank,
  ompi_size,
  ompi_local_size,
  ompi_jobid,
  pmix_namespace,
  pmix_rank,
  // PMI: MPICH, Intel MPI and other users of Hydra, PALS
  pmi_rank,
  pmi_size,
  pmi_fd,
  pmi_id,
  pmi_local_ranks,
  pals_rank,
  pals_apid,
  pals_local_size,
  // Flux
  flux_rank,
  flux_size,
  flux_nodes,
  flux_job_id,
  // Slurm
  slurm_procid,
  slurm_ntasks,
  slurm_job_id,
  slurm_step_id,
  slurm_step_nodes,
  slurm_nodes,
  slurm_step_nodelist,
  slurm_nodelist,
  // NCCL
  nccl_hostid,
  nccl_nvls_enable,
  nccl_graph_register,
  // CUDA
  cuda_mps_pipe_directory,
  // The user's folders
  xdg_cache_home,
  home,
  no_color,
  term,
  count_,
};

enum class ValueType : std::uint8_t { text, integer, number };

/// One line of the registry. A default is text here; the accessors do not apply it, so that code can tell set from
/// not set: it is what the code that asks does, said once more for people.
struct Variable {
  Key key;
  std::string_view name;
  ValueType type;
  std::string_view fallback;
  std::string_view description;
};

/// A snapshot of the registered variables. Values are parsed when asked for, so that a malformed variable of a launcher
/// stops only what needs it.
class Environment {
 public:
  using Lookup = std::function<const char*(const char* name)>;

  explicit Environment(const Lookup& lookup);

  bool has(Key key) const { return raw(key).has_value(); }
  std::optional<std::string> text(Key key) const { return raw(key); }

  /// Throw Error(invalid_input) naming variable and value where it is not an integer, or not a finite number.
  std::optional<std::int64_t> integer(Key key) const;
  std::optional<double> number(Key key) const;

  /// IMBREX_WAIT_LIMIT, where it is set. Throws Error(invalid_input) where it is no limit.
  std::optional<double> wait_limit() const;

  /// IMBREX_LOSS_DETECTION, or "auto". Throws Error(invalid_input) where it is no method.
  std::string loss_detection() const;

  /// IMBREX_CHECK_CALLS, or false. Throws Error(invalid_input) where it is neither 0 nor 1.
  bool check_calls() const;
  /// Whether IMBREX_PEER_ACCESS is not 0. Throws Error(invalid_input) where it is neither 0 nor 1.
  bool peer_access() const;

  /// IMBREX_SHMEM_DEVICE, or "cpu". Throws Error(invalid_input) where it is no place.
  std::string shmem_device() const;
  /// IMBREX_SHMEM_RANKS_PER_GPU, or 1. Throws Error(invalid_input) where it is not from 1 to 64.
  int shmem_ranks_per_gpu() const;
  /// SHMEM_SYMMETRIC_SIZE in bytes, or 512 MiB. Throws Error(invalid_input) where it is no size.
  std::size_t shmem_symmetric_size() const;

  /// Why the variable's value cannot be used; empty where it can, or is not set.
  std::string fault(Key key) const;

 private:
  const std::optional<std::string>& raw(Key key) const { return values_[static_cast<std::size_t>(key)]; }

  std::array<std::optional<std::string>, static_cast<std::size_t>(Key::count_)> values_;
};

/// Seconds: not more than what clocks can add to now.
inline constexpr double most_wait_limit = 1e9;

/// Name of a variable, for messages.
std::string_view name_of(Key key);

/// This process's environment, read once, at the first call.
const Environment& environment();

/// As it is now: for what the program may have set since.
Environment environment_now();

}  // namespace imbrex::base
