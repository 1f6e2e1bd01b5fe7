#include "runtime/bootstrap/nccl_hosts.hpp"

#include <algorithm>
#include <span>

#include "base/check.hpp"
#include "base/fixed_text.hpp"
#include "base/hash.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::runtime {
namespace {

using base::Environment, base::Key;

// What a rank tells the others.
struct Place {
  char gpu[64] = {}, host[64] = {};  // end with a zero byte
  std::uint64_t hash_of_host = 0;    // 0: no host was given
};

std::string set_to(const Environment& environment, Key key) {
  const auto value = environment.text(key);
  return value ? fmt::format("{}={}", base::name_of(key), *value) : fmt::format("{} is not set", base::name_of(key));
}

std::string captured_refusal(const std::string& is) {
  return fmt::format(
      "{}: with buffers of captured calls registered, NCCL's sends, in an all-to-all, have been seen to hang in "
      "graphs; set "
      "NCCL_GRAPH_REGISTER=0 before the process first uses NCCL, as `imbrex launch` does",
      is);
}

}  // namespace

Variables nccl_variables() {
  return {{std::string(base::name_of(Key::nccl_nvls_enable)), "0"},
          {std::string(base::name_of(Key::nccl_graph_register)), "0"}};
}

// NOTE: a communicator's configuration (ncclConfig_t, to NCCL 2.28) has no field that turns multicast or registration
// off: `nvlsCTAs` only says how many blocks multicast may use, `CTAPolicy` how many others. Only the environment does,
// of the whole process, and NCCL remembers what it read there first. Multicast on GPUs that are shared out between
// machines can cost a host its GPUs, so NCCL is not even loaded without the variable.
std::string refusal_of_nccl(const Environment& environment) {
  if (environment.text(Key::nccl_nvls_enable) == "0") return {};
  return fmt::format(
      "{}: Imbrex uses NCCL only where NVLink multicast is off; set NCCL_NVLS_ENABLE=0 before the process first uses "
      "NCCL, as `imbrex launch` does",
      set_to(environment, Key::nccl_nvls_enable));
}

// NOTE: an all-to-all of some MiB in a captured graph never ended (NCCL 2.28.3, four processes). NCCL makes it of
// sends.
std::string refusal_of_captured_sends(const Environment& environment) {
  if (environment.text(Key::nccl_graph_register) == "0") return {};
  return captured_refusal(set_to(environment, Key::nccl_graph_register));
}

std::string expect_nccl_environment(World& world) {
  const auto captures = agree(world, [] {
    const Environment environment = base::environment_now();
    const std::string refusal = refusal_of_nccl(environment);
    IMBREX_EXPECTS(refusal.empty(), "{}", refusal);
    return Terms("the use of NCCL").tell(refusal_of_captured_sends(environment).empty() ? 1 : 0);
  });
  const auto without = std::find(captures.begin(), captures.end(), 0);
  if (without == captures.end()) return {};
  return captured_refusal(fmt::format("rank {} has no NCCL_GRAPH_REGISTER=0", without - captures.begin()));
}

Variables own_nccl_host(std::string_view world, int rank) {
  return {{std::string(base::name_of(Key::nccl_hostid)), fmt::format("imbrex-{}-{}", world, rank)},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_NET", "Socket"},
          {"NCCL_IB_DISABLE", "1"}};
}

void expect_own_nccl_hosts(World& world, std::string_view gpu) {
  Place own;
  base::put_text(gpu, own.gpu);
  if (const auto given = base::environment_now().text(Key::nccl_hostid)) {
    base::put_text(*given, own.host);
    own.hash_of_host = base::hash_of(std::as_bytes(std::span(*given))) | 1;
  }
  std::vector<Place> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (std::string_view(all[a].gpu) != all[b].gpu) continue;
      const std::string who = fmt::format("ranks {} and {} share GPU {}", a, b, all[a].gpu);
      constexpr std::string_view rule = "NCCL takes no two ranks of one host on one GPU";
      for (const std::size_t rank : {a, b})
        IMBREX_EXPECTS(all[rank].hash_of_host != 0,
                       "{} and rank {} has no NCCL_HOSTID: {}; start them by `imbrex launch --ranks-per-gpu`, or give "
                       "each its own",
                       who, rank, rule);
      IMBREX_EXPECTS(all[a].hash_of_host != all[b].hash_of_host,
                     "{} and have the same NCCL_HOSTID, '{}': {}; give each its own", who, all[a].host, rule);
    }
}

}  // namespace imbrex::runtime
