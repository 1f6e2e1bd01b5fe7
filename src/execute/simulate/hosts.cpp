#include "execute/simulate/hosts.hpp"

#include <algorithm>
#include <map>

namespace imbrex::simulate {

int host_of(const Machine& machine, int rank) {
  const int devices = static_cast<int>(machine.host_devices);
  return devices == 0 ? 0 : rank / devices;
}

CollectiveWire wire_of(const Machine& machine, CollectiveKind kind, const std::vector<int>& ranks, double whole) {
  std::map<int, int> on_host;
  for (const int rank : ranks) ++on_host[host_of(machine, rank)];
  int least = static_cast<int>(ranks.size()), most = 0;
  for (const auto& [host, count] : on_host) least = std::min(least, count), most = std::max(most, count);
  const auto all = static_cast<double>(ranks.size()), hosts = static_cast<double>(on_host.size());
  if (kind == CollectiveKind::send_receive)  // the slowest pair counts
    return {most > 1 ? whole : 0, hosts > 1 ? whole : 0, hosts > 1 ? 1.0 : 0.0};
  if (kind == CollectiveKind::all_to_all) {
    const double outside = all - least;
    return {whole * (most - 1) / all, whole * outside / all, outside};
  }
  const double passes = kind == CollectiveKind::all_reduce ? 2 : 1;
  const double wire = passes * whole * (all - 1) / all;
  if (hosts == 1) return {wire, 0, 0};
  return {most == 1 ? 0 : wire, passes * whole * (hosts - 1) / hosts / least, passes * (all - 1) / least};
}

double across_seconds(const Machine& machine, const CollectiveWire& wire, double launch) {
  if (wire.across == 0) return 0;
  return launch + machine.host_latency + wire.messages * machine.host_message + wire.across / machine.host_bandwidth;
}

}  // namespace imbrex::simulate
