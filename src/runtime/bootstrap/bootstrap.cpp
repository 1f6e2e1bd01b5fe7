#include "runtime/bootstrap/bootstrap.hpp"

#include <sys/random.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <limits>

#include "base/check.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {
namespace {

using base::Environment;
using base::Key;

// Steps from here on are no srun steps but the batch script, an interactive shell and the like (SLURM_BATCH_SCRIPT
// ...).
constexpr std::int64_t first_special_slurm_step = 0xfffffff0;

/// What a launcher sets for each process.
struct Launcher {
  std::string_view name;
  Key rank, size;

  bool is_in(const Environment& e) const { return e.has(rank) || e.has(size); }
};
constexpr Launcher imbrex_launch{"imbrex launch", Key::rank, Key::world_size};
constexpr Launcher torch{"torchrun", Key::torch_rank, Key::torch_world_size};
constexpr Launcher ompi{"Open MPI", Key::ompi_rank, Key::ompi_size};
constexpr Launcher pmi{"PMI (MPICH, Intel MPI, Hydra)", Key::pmi_rank, Key::pmi_size};
constexpr Launcher flux{"Flux", Key::flux_rank, Key::flux_size};
constexpr Launcher slurm{"Slurm", Key::slurm_procid, Key::slurm_ntasks};

bool has_slurm(const Environment& e) {
  return e.has(Key::slurm_procid) && e.has(Key::slurm_step_id) &&
         e.integer(Key::slurm_step_id).value_or(0) < first_special_slurm_step;
}

bool alike(const Environment& e, const Launcher& one, const Launcher& other) {
  return e.text(one.rank) == e.text(other.rank) && e.text(one.size) == e.text(other.size);
}

/// Beside those that say more of the same ranks, PMI is what a launcher offers MPI's libraries.
bool has_pmi(const Environment& e) {
  return pmi.is_in(e) && !(has_slurm(e) && alike(e, pmi, slurm)) && !(flux.is_in(e) && alike(e, pmi, flux));
}

/// The innermost of those that start processes by themselves or by a resource manager.
std::optional<Launcher> find_started(const Environment& e) {
  if (ompi.is_in(e)) return ompi;
  if (has_pmi(e)) return pmi;
  if (flux.is_in(e)) return flux;
  if (has_slurm(e)) return slurm;
  return std::nullopt;
}

/// Refuses a rank without the number of ranks: its process would take itself for the only one.
void refuse_rank_without_size(const Environment& e) {
  for (const Key key : {Key::pmix_rank, Key::pmi_id, Key::pals_rank})
    IMBREX_EXPECTS(
        !e.has(key),
        "{}={}: the launcher that started this process does not say by variables how many ranks there are; "
        "use `imbrex launch`, torchrun, Open MPI's or MPICH's mpirun, srun or flux run, or set {}, {} and {}",
        base::name_of(key), *e.text(key), base::name_of(Key::rank), base::name_of(Key::world_size),
        base::name_of(Key::rendezvous));
}

/// The launcher by whose variables this process finds its place.
std::optional<Launcher> find_launcher(const Environment& e) {
  const auto started = find_started(e);
  std::optional<Launcher> found = started;
  // RANK and WORLD_SIZE alone may be a pod's, whatever starts processes in it; torchrun itself says more.
  const bool bare = !e.has(Key::torch_local_rank) && !e.has(Key::torch_local_world_size) && !e.has(Key::torch_run_id);
  if (imbrex_launch.is_in(e))
    found = imbrex_launch;
  else if (torch.is_in(e) && !(bare && e.integer(torch.size) == 1))
    found = torch;
  if (!found) refuse_rank_without_size(e);
  if (!found && torch.is_in(e)) found = torch;
  if (!found) return std::nullopt;

  for (const Launcher& other : {ompi, pmi}) {
    const bool is_in = other.size == pmi.size ? has_pmi(e) : other.is_in(e);
    if (!is_in || found->size == other.size || alike(e, *found, other)) continue;
    const bool of_one = e.integer(found->size) == 1 && e.integer(other.size) != 1;
    IMBREX_EXPECTS(!of_one && !(found->size == torch.size && bare),
                   "{}={} and {}={} contradict {}={} and {}={}: unset those of the launcher that did not start this "
                   "process",
                   base::name_of(found->rank), e.text(found->rank).value_or(""), base::name_of(found->size),
                   e.text(found->size).value_or(""), base::name_of(other.rank), e.text(other.rank).value_or(""),
                   base::name_of(other.size), e.text(other.size).value_or(""));
  }
  return found;
}

std::int64_t required(const Environment& e, Key key, const std::string& launcher) {
  const auto value = e.integer(key);
  IMBREX_EXPECTS(value, "{} is not set, though other variables of {} are", base::name_of(key), launcher);
  return *value;
}

Bootstrap place(const Environment& e, const Launcher& own_launcher) {
  const std::string launcher(own_launcher.name);
  const Key rank_key = own_launcher.rank, size_key = own_launcher.size;
  const std::int64_t rank = required(e, rank_key, launcher), size = required(e, size_key, launcher);
  IMBREX_EXPECTS(size >= 1 && size <= max_world_size, "{}={}: a world has 1 to {} ranks", base::name_of(size_key), size,
                 max_world_size);
  IMBREX_EXPECTS(rank >= 0 && rank < size, "{}={} contradicts {}={}: ranks are 0 to {}", base::name_of(rank_key), rank,
                 base::name_of(size_key), size, size - 1);
  return {launcher, static_cast<int>(rank), static_cast<int>(size), {}, false};
}

/// The process at the other end of the launcher's socket, which is one for all ranks of this host; nothing where the
/// descriptor is closed, or is another's.
std::optional<std::string> process_behind(const Environment& e, Key key) {
  const std::int64_t given = e.integer(key).value_or(-1);
  if (given < 0 || given > std::numeric_limits<int>::max()) return std::nullopt;
  const auto socket = static_cast<int>(given);
  int domain = 0;
  ucred peer{};
  socklen_t bytes = sizeof(domain);
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX) return std::nullopt;
  bytes = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid <= 0) return std::nullopt;
  return std::to_string(peer.pid);
}

/// Whether the ranks are on more hosts than this one.
bool spans_hosts(const Environment& e, const Bootstrap& bootstrap, Key size_key, Key local_key) {
  const std::int64_t local = e.integer(local_key).value_or(bootstrap.size);
  IMBREX_EXPECTS(local <= bootstrap.size, "{}={} contradicts {}={}: no host has more ranks than the world",
                 base::name_of(local_key), local, base::name_of(size_key), bootstrap.size);
  IMBREX_EXPECTS(local >= 1, "{}={}: a host has at least one rank", base::name_of(local_key), local);
  return local < bootstrap.size;
}

bool spans_nodes(const Environment& e, const Bootstrap& bootstrap, Key size_key, Key nodes_key) {
  const std::int64_t nodes = e.integer(nodes_key).value_or(1);
  IMBREX_EXPECTS(nodes >= 1 && nodes <= bootstrap.size, "{}={} contradicts {}={}: a host has at least one rank",
                 base::name_of(nodes_key), nodes, base::name_of(size_key), bootstrap.size);
  return nodes > 1;
}

std::string required_text(const Environment& e, Key key, const std::string& launcher) {
  const auto value = e.text(key);
  IMBREX_EXPECTS(value, "{} is not set: {} has spread the ranks over several hosts, and it says where rank 0 is",
                 base::name_of(key), launcher);
  return *value;
}

/// Behind the port at which torchrun's own store listens.
MeetingPlace torch_meeting_place(const Environment& e, const Bootstrap& bootstrap) {
  const std::string host = required_text(e, Key::torch_master_addr, bootstrap.launcher);
  required_text(e, Key::torch_master_port, bootstrap.launcher);
  const std::int64_t port = *e.integer(Key::torch_master_port);
  IMBREX_EXPECTS(port >= 1 && port < 65536 - ports_tried,
                 "{}={}: it must be 1 to {}, since the {} ports after it are tried",
                 base::name_of(Key::torch_master_port), port, 65535 - ports_tried, ports_tried);
  return {host, static_cast<std::uint16_t>(port + 1)};
}

/// Joins what identifies the launch; at least one of the first `needed` keys must be set if there are peers to find.
/// PMI_FD stands for the process `behind` it.
void identify(const Environment& e, Bootstrap& bootstrap, std::initializer_list<Key> keys, std::size_t needed,
              const std::optional<std::string>& behind = std::nullopt) {
  bool found = false;
  std::string names;
  bootstrap.key = bootstrap.launcher;
  std::size_t position = 0;
  for (const Key key : keys) {
    const auto value = key == Key::pmi_fd ? behind : e.text(key);
    bootstrap.key += '\n' + value.value_or("");
    if (position++ < needed) {
      found = found || value;
      names += fmt::format("{}{}{}", names.empty() ? "" : " nor ", base::name_of(key),
                           key == Key::pmi_fd ? " (the launcher's open socket, of one host)" : "");
    }
  }
  IMBREX_EXPECTS(found || bootstrap.size == 1 || needed > 1,
                 "{} is not set: it tells this launch from others on the host", names);
  IMBREX_EXPECTS(found || bootstrap.size == 1, "neither {} is set: they tell this launch from others on the host",
                 names);
}

/// What other launchers tell of a launch can be guessed, and who has it is a rank. A short text can be found by
/// trying, since each that knocks is shown what fits.
void expect_secret(const Environment& e, const Bootstrap& bootstrap) {
  const std::string text = e.text(Key::rendezvous).value_or("");
  if (text.size() >= least_secret) return;
  const std::string_view name = base::name_of(Key::rendezvous);
  const std::string now =
      text.empty() ? fmt::format("{} is not set", name) : fmt::format("{} has {} bytes", name, text.size());
  IMBREX_EXPECTS(
      false,
      "{}: the ranks that {} has started meet over a network. All that know this launch's key may join, and what {} "
      "says "
      "of it can be guessed. To make it safe, set {} to random text of at least {} bytes, the same on all ranks, for "
      "instance by "
      "`openssl rand -hex 16`, and have the launcher pass it on. Or hand an id of World::make_unique_id to the ranks, "
      "and call World::connect",
      now, bootstrap.launcher, bootstrap.launcher, name, least_secret);
}

std::optional<MeetingPlace> reach_of(const Environment& e, const Bootstrap& bootstrap, bool spans) {
  if (const auto address = e.text(Key::address))
    return parse_meeting_place(base::name_of(Key::address), *address, bootstrap.key);
  if (!spans) return std::nullopt;
  if (bootstrap.launcher == "torchrun") return torch_meeting_place(e, bootstrap);
  if (bootstrap.launcher == "Slurm") {
    const Key list = e.has(Key::slurm_step_nodelist) ? Key::slurm_step_nodelist : Key::slurm_nodelist;
    const std::string host = first_host(required_text(e, list, bootstrap.launcher));
    return parse_meeting_place(base::name_of(list), host, bootstrap.key);
  }
  IMBREX_EXPECTS(
      false,
      "{} is not set: {} has spread the ranks over several hosts and does not say where rank 0 is; it must be "
      "the name or address of rank 0's host",
      base::name_of(Key::address), bootstrap.launcher);
}

}  // namespace

std::optional<Bootstrap> find_bootstrap(const Environment& e) {
  const auto launcher = find_launcher(e);
  if (!launcher) return std::nullopt;
  Bootstrap result = place(e, *launcher);
  bool spans = false;
  if (launcher->size == imbrex_launch.size) {
    identify(e, result, {Key::rendezvous}, 1);
  } else if (launcher->size == torch.size) {
    spans = spans_hosts(e, result, Key::torch_world_size, Key::torch_local_world_size);
    identify(
        e, result,
        {Key::torch_run_id, Key::torch_master_port, Key::torch_master_addr, Key::torch_restart_count, Key::rendezvous},
        2);
  } else if (launcher->size == ompi.size) {
    spans = spans_hosts(e, result, Key::ompi_size, Key::ompi_local_size);
    identify(e, result, {Key::ompi_jobid, Key::pmix_namespace, Key::rendezvous}, 2);
  } else if (launcher->size == pmi.size) {
    const Key local = e.has(Key::pmi_local_ranks) ? Key::pmi_local_ranks : Key::pals_local_size;
    spans = spans_hosts(e, result, Key::pmi_size, local);
    // Each host has a process of its own at the other end.
    const auto behind = spans ? std::nullopt : process_behind(e, Key::pmi_fd);
    identify(e, result, {Key::pmi_fd, Key::pals_apid, Key::rendezvous}, 3, behind);
  } else if (launcher->size == flux.size) {
    spans = spans_nodes(e, result, Key::flux_size, Key::flux_nodes);
    identify(e, result, {Key::flux_job_id, Key::rendezvous}, 2);
  } else {
    const Key nodes = e.has(Key::slurm_step_nodes) ? Key::slurm_step_nodes : Key::slurm_nodes;
    spans = spans_nodes(e, result, Key::slurm_ntasks, nodes);
    identify(e, result, {Key::slurm_job_id, Key::slurm_step_id, Key::rendezvous}, 1);
  }
  result.secret = e.has(Key::rendezvous);
  if (result.size > 1) result.reach = reach_of(e, result, spans);
  if (result.reach) expect_secret(e, result);
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
