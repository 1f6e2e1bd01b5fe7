#include "runtime/bootstrap/bootstrap.hpp"

#include <sys/random.h>

#include <array>
#include <cstdint>

#include "base/check.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {
namespace {

using base::Environment;
using base::Key;

// Steps from here on are no srun steps but the batch script, an interactive shell and the like (SLURM_BATCH_SCRIPT
// ...).
constexpr std::int64_t first_special_slurm_step = 0xfffffff0;

bool has_imbrex(const Environment& e) { return e.has(Key::rank) || e.has(Key::world_size); }
bool has_torch(const Environment& e) { return e.has(Key::torch_rank) || e.has(Key::torch_world_size); }
bool has_ompi(const Environment& e) { return e.has(Key::ompi_rank) || e.has(Key::ompi_size); }
bool has_slurm(const Environment& e) {
  return e.has(Key::slurm_procid) && e.has(Key::slurm_step_id) &&
         e.integer(Key::slurm_step_id).value_or(0) < first_special_slurm_step;
}

std::int64_t required(const Environment& e, Key key, const std::string& launcher) {
  const auto value = e.integer(key);
  IMBREX_EXPECTS(value, "{} is not set, though other variables of {} are", base::name_of(key), launcher);
  return *value;
}

Bootstrap place(const Environment& e, const std::string& launcher, Key rank_key, Key size_key) {
  const std::int64_t rank = required(e, rank_key, launcher), size = required(e, size_key, launcher);
  IMBREX_EXPECTS(size >= 1 && size <= max_world_size, "{}={}: a world has 1 to {} ranks", base::name_of(size_key), size,
                 max_world_size);
  IMBREX_EXPECTS(rank >= 0 && rank < size, "{}={} contradicts {}={}: ranks are 0 to {}", base::name_of(rank_key), rank,
                 base::name_of(size_key), size, size - 1);
  return {launcher, static_cast<int>(rank), static_cast<int>(size), {}, false};
}

void expect_one_host(const Environment& e, const Bootstrap& bootstrap, Key size_key, Key local_key) {
  const std::int64_t local = e.integer(local_key).value_or(bootstrap.size);
  IMBREX_EXPECTS(local <= bootstrap.size, "{}={} contradicts {}={}: no host has more ranks than the world",
                 base::name_of(local_key), local, base::name_of(size_key), bootstrap.size);
  IMBREX_EXPECTS(local == bootstrap.size,
                 "{}={}, but {}={}: the ranks are spread over several hosts, and a CPU world lives on one",
                 base::name_of(local_key), local, base::name_of(size_key), bootstrap.size);
}

/// Joins what identifies the launch; at least one of the first `needed` keys must be set if there are peers to find.
void identify(const Environment& e, Bootstrap& bootstrap, std::initializer_list<Key> keys, std::size_t needed) {
  bool found = false;
  std::string names;
  bootstrap.key = bootstrap.launcher;
  std::size_t position = 0;
  for (const Key key : keys) {
    const auto value = e.text(key);
    bootstrap.key += '\n' + value.value_or("");
    if (position++ < needed) {
      found = found || value;
      names += fmt::format("{}{}", names.empty() ? "" : " nor ", base::name_of(key));
    }
  }
  IMBREX_EXPECTS(found || bootstrap.size == 1, "neither {} is set: they tell this launch from others on the host",
                 names);
}

}  // namespace

std::optional<Bootstrap> find_bootstrap(const Environment& e) {
  Bootstrap result;
  if (has_imbrex(e)) {
    result = place(e, "imbrex launch", Key::rank, Key::world_size);
    identify(e, result, {Key::rendezvous}, 1);
    result.secret = true;
  } else if (has_torch(e)) {
    result = place(e, "torchrun", Key::torch_rank, Key::torch_world_size);
    expect_one_host(e, result, Key::torch_world_size, Key::torch_local_world_size);
    identify(e, result, {Key::torch_run_id, Key::torch_master_port, Key::torch_master_addr, Key::torch_restart_count},
             2);
  } else if (has_ompi(e)) {
    result = place(e, "Open MPI", Key::ompi_rank, Key::ompi_size);
    expect_one_host(e, result, Key::ompi_size, Key::ompi_local_size);
    identify(e, result, {Key::ompi_jobid, Key::pmix_namespace}, 2);
  } else if (has_slurm(e)) {
    result = place(e, "Slurm", Key::slurm_procid, Key::slurm_ntasks);
    const Key nodes_key = e.has(Key::slurm_step_nodes) ? Key::slurm_step_nodes : Key::slurm_nodes;
    const std::int64_t nodes = e.integer(nodes_key).value_or(1);
    IMBREX_EXPECTS(nodes == 1, "{}={}: the ranks are spread over several hosts, and a CPU world lives on one",
                   base::name_of(nodes_key), nodes);
    identify(e, result, {Key::slurm_job_id, Key::slurm_step_id}, 1);
  } else {
    return std::nullopt;
  }
  return result;
}

std::string random_id() {
  std::array<std::uint8_t, 16> bytes{};
  // Up to 256 bytes come whole once the system has entropy.
  while (IMBREX_SYSTEM(getrandom(bytes.data(), bytes.size(), 0)) != static_cast<ssize_t>(bytes.size())) {
  }
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace imbrex::runtime
