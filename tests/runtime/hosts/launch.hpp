// Ranks of a test's program that take this machine for several hosts.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/hosts/frames.hpp"
#include "runtime/hosts/tcp.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::test {

/// A connection, once it is made; an empty descriptor, and why, where no peer answers until the deadline.
inline runtime::FileDescriptor connect_tcp(const runtime::Endpoint& to, runtime::Deadline deadline, std::string& why) {
  runtime::FileDescriptor socket = runtime::begin_connect(to, std::nullopt, why);
  while (socket) {
    if (const auto connected = runtime::is_connected(socket, why))
      return *connected ? std::move(socket) : runtime::FileDescriptor();
    if (runtime::milliseconds_until(deadline) == 0) break;
    usleep(200);
  }
  return {};
}

/// One launch: a secret, and ports that no other launch of this test has.
struct HostsLaunch {
  std::string secret = runtime::random_id();
  int port = next_port();
  double limit = 20;

  /// `hosts`: a letter for each rank, the name of its host: "aab".
  Start member(const std::string& hosts, int rank, const std::vector<std::string>& arguments) const {
    const auto letter = static_cast<std::size_t>(rank);
    return {{fmt::format("IMBREX_RANK={}", rank), fmt::format("IMBREX_WORLD_SIZE={}", hosts.size()),
             "IMBREX_RENDEZVOUS=" + secret, fmt::format("IMBREX_ADDRESS=127.0.0.1:{}", port),
             fmt::format("IMBREX_HOST={}", hosts[letter]), fmt::format("IMBREX_WAIT_LIMIT={}", limit)},
            arguments};
  }

  std::vector<Start> members(const std::string& hosts, const std::vector<std::string>& arguments) const {
    std::vector<Start> starts;
    for (int rank = 0; rank < std::ssize(hosts); ++rank) starts.push_back(member(hosts, rank, arguments));
    return starts;
  }

  std::vector<Result> run(const std::string& hosts, const std::vector<std::string>& arguments) const {
    return spawn(members(hosts, arguments));
  }

 private:
  static int next_port() {
    static int launches = 0;
    return 20000 + (getpid() * 64 + launches++ * 8) % 10000;
  }
};

inline runtime::Endpoint endpoint(int port) {
  return *runtime::Endpoint::parse("127.0.0.1", static_cast<std::uint16_t>(port));
}

inline runtime::Secret secret_of(const HostsLaunch& launch) {
  return runtime::Secret("imbrex launch\n" + launch.secret);
}

/// The name of the launch's first world.
inline runtime::Proof world_of(const HostsLaunch& launch) { return secret_of(launch).prove("hosts/0"); }

inline void send_raw(const runtime::Connection& connection, std::string_view bytes) {
  [[maybe_unused]] const auto sent = ::send(connection.socket().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

}  // namespace imbrex::test
