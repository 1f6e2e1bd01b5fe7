#include "runtime/bootstrap/nccl_hosts.hpp"

#include <cstdlib>
#include <span>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "base/fixed_text.hpp"
#include "base/hash.hpp"
#include "runtime/bootstrap/bootstrap.hpp"

namespace imbrex::runtime {
namespace {

// What a rank tells the others.
struct Place {
  char gpu[64] = {}, host[64] = {};  // end with a zero byte
  std::uint64_t hash_of_host = 0;    // 0: nobody gave it a host
};

}  // namespace

std::vector<std::pair<std::string, std::string>> own_nccl_host(std::string_view world, int rank) {
  return {{std::string(base::name_of(base::Key::nccl_hostid)), fmt::format("imbrex-{}-{}", world, rank)},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_NET", "Socket"},
          {"NCCL_IB_DISABLE", "1"},
          {"NCCL_NVLS_ENABLE", "0"}};
}

void take_own_nccl_host(World& world, std::string_view gpu) {
  Place own;
  base::put_text(gpu, own.gpu);
  if (const auto given = base::environment().text(base::Key::nccl_hostid)) {
    base::put_text(*given, own.host);
    own.hash_of_host = base::hash_of(std::as_bytes(std::span(*given))) | 1;
  }
  std::vector<Place> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  bool shared = false;
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (std::string_view(all[a].gpu) != all[b].gpu) continue;
      shared = true;
      IMBREX_EXPECTS(all[a].hash_of_host == 0 || all[a].hash_of_host != all[b].hash_of_host,
                     "ranks {} and {} share GPU {} and have the same NCCL_HOSTID, '{}': NCCL takes no two ranks of one "
                     "host on one GPU; give each its own, or none",
                     a, b, all[a].gpu, all[a].host);
    }
  if (!shared) return;
  for (const auto& [name, value] : own_nccl_host(random_id(), world.rank())) setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace imbrex::runtime
