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

/// Whether the ranks are on more hosts than this one.
bool spans_hosts(const Environment& e, const Bootstrap& bootstrap, Key size_key, Key local_key) {
  const std::int64_t local = e.integer(local_key).value_or(bootstrap.size);
  IMBREX_EXPECTS(local <= bootstrap.size, "{}={} contradicts {}={}: no host has more ranks than the world",
                 base::name_of(local_key), local, base::name_of(size_key), bootstrap.size);
  IMBREX_EXPECTS(local >= 1, "{}={}: a host has at least one rank", base::name_of(local_key), local);
  return local < bootstrap.size;
}

std::string required_text(const Environment& e, Key key, const std::string& launcher) {
  const auto value = e.text(key);
  IMBREX_EXPECTS(value, "{} is not set: {} has spread the ranks over several hosts, and it says where rank 0 is",
                 base::name_of(key), launcher);
  return *value;
}

/// Behind the port at which torchrun's own store listens.
Reach torch_reach(const Environment& e, const Bootstrap& bootstrap) {
  const std::string host = required_text(e, Key::torch_master_addr, bootstrap.launcher);
  required_text(e, Key::torch_master_port, bootstrap.launcher);
  const std::int64_t port = *e.integer(Key::torch_master_port);
  IMBREX_EXPECTS(port >= 1 && port < 65536 - ports_tried,
                 "{}={}: it must be 1 to {}, since the {} ports after it are tried",
                 base::name_of(Key::torch_master_port), port, 65535 - ports_tried, ports_tried);
  return {host, static_cast<std::uint16_t>(port + 1)};
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

std::optional<Reach> reach_of(const Environment& e, const Bootstrap& bootstrap, bool spans) {
  if (const auto address = e.text(Key::address))
    return parse_reach(base::name_of(Key::address), *address, bootstrap.key);
  if (!spans) return std::nullopt;
  if (bootstrap.launcher == "torchrun") return torch_reach(e, bootstrap);
  if (bootstrap.launcher == "Slurm") {
    const Key list = e.has(Key::slurm_step_nodelist) ? Key::slurm_step_nodelist : Key::slurm_nodelist;
    const std::string host = first_host(required_text(e, list, bootstrap.launcher));
    return parse_reach(base::name_of(list), host, bootstrap.key);
  }
  IMBREX_EXPECTS(
      false,
      "{} is not set: {} has spread the ranks over several hosts and does not say where rank 0 is; it must be "
      "the name or address of rank 0's host",
      base::name_of(Key::address), bootstrap.launcher);
}

}  // namespace

std::optional<Bootstrap> find_bootstrap(const Environment& e) {
  Bootstrap result;
  bool spans = false;
  if (has_imbrex(e)) {
    result = place(e, "imbrex launch", Key::rank, Key::world_size);
    identify(e, result, {Key::rendezvous}, 1);
  } else if (has_torch(e)) {
    result = place(e, "torchrun", Key::torch_rank, Key::torch_world_size);
    spans = spans_hosts(e, result, Key::torch_world_size, Key::torch_local_world_size);
    identify(
        e, result,
        {Key::torch_run_id, Key::torch_master_port, Key::torch_master_addr, Key::torch_restart_count, Key::rendezvous},
        2);
  } else if (has_ompi(e)) {
    result = place(e, "Open MPI", Key::ompi_rank, Key::ompi_size);
    spans = spans_hosts(e, result, Key::ompi_size, Key::ompi_local_size);
    identify(e, result, {Key::ompi_jobid, Key::pmix_namespace, Key::rendezvous}, 2);
  } else if (has_slurm(e)) {
    result = place(e, "Slurm", Key::slurm_procid, Key::slurm_ntasks);
    const Key nodes_key = e.has(Key::slurm_step_nodes) ? Key::slurm_step_nodes : Key::slurm_nodes;
    const std::int64_t nodes = e.integer(nodes_key).value_or(1);
    IMBREX_EXPECTS(nodes >= 1 && nodes <= result.size, "{}={} contradicts {}={}: a host has at least one rank",
                   base::name_of(nodes_key), nodes, base::name_of(Key::slurm_ntasks), result.size);
    spans = nodes > 1;
    identify(e, result, {Key::slurm_job_id, Key::slurm_step_id, Key::rendezvous}, 1);
  } else {
    return std::nullopt;
  }
  result.secret = e.has(Key::rendezvous);
  if (result.size > 1) result.reach = reach_of(e, result, spans);
  return result;
}

std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const std::size_t end = list.find(']');
    IMBREX_EXPECTS(end != list.npos, "list of hosts '{}' lacks a ']'", list);
    const std::string_view numbers = list.substr(1, end - 1);
    host += numbers.substr(0, numbers.find_first_of(",-"));
    list.remove_prefix(end + 1);
  }
  return host;
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
