// Who does not belong to a world and comes while its ranks meet: no rank is slowed by it, and it is not let in.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>

#include "runtime/hosts/gate.hpp"
#include "runtime/hosts/launch.hpp"
#include "runtime/hosts/reach.hpp"

namespace imbrex::test {
namespace {

using namespace runtime;
using Clock = std::chrono::steady_clock;

/// A process that does something until the test has what it needs.
class Stranger {
 public:
  explicit Stranger(const std::function<void()>& act) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      [[maybe_unused]] const auto begun = write(ends[1], "b", 1);
      try {
        while (true) act();
      } catch (...) {
      }
      _exit(1);
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]), close(ends[1]);
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

Endpoint endpoint(int port) { return *Endpoint::parse("127.0.0.1", static_cast<std::uint16_t>(port)); }

/// A connection to the rank of the launch that listens first.
Connection visit(const HostsLaunch& launch, Banner* banner = nullptr) {
  std::string why;
  for (int i = 0;; i = (i + 1) % ports_tried) {
    Connection connection(connect_tcp(endpoint(launch.port + i), std::nullopt, deadline_in(1), why));
    if (!connection) {
      usleep(500);
      continue;
    }
    if (!banner) return connection;
    const auto frame = await_frame(connection, deadline_in(1));
    if (!frame || !frame->as<Banner>()) continue;
    *banner = *frame->as<Banner>();
    return connection;
  }
}

void send_raw(const Connection& connection, std::string_view bytes) {
  [[maybe_unused]] const auto sent = ::send(connection.socket().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// A world of five ranks on three hosts meets in time, the last rank late.
void expect_meeting(const HostsLaunch& launch, double seconds = 6) {
  auto starts = launch.members("aabbc", {"join", "4096", "20"});
  starts[4].arguments[0] = "join-late";
  const auto begin = Clock::now();
  for (const Result& result : spawn(starts)) EXPECT_EQ(result.code, 0) << result.text;
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), seconds);
}

TEST(HostsStrangers, SayNothing) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    static std::vector<Connection> held;
    held.push_back(visit(launch));
    if (held.size() > 20) pause();
  });
  expect_meeting(launch);
}

TEST(HostsStrangers, SayNonsense) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    const Connection connection = visit(launch);
    send_raw(connection, "GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    usleep(1000);
  });
  expect_meeting(launch);
}

TEST(HostsStrangers, SayHalfAGreeting) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    static std::vector<Connection> held;
    Banner banner;
    held.push_back(visit(launch, &banner));
    FrameHead head;
    head.kind = static_cast<std::uint16_t>(FrameKind::hello);
    head.bytes = sizeof(RankHello);
    send_raw(held.back(), bytes_of(head));
    send_raw(held.back(), std::string(100, 'h'));
    if (held.size() > 20) pause();
  });
  expect_meeting(launch);
}

TEST(HostsStrangers, GuessTheProof) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    Banner banner;
    Connection connection = visit(launch, &banner);
    RankHello hello;
    hello.rank = 1;
    hello.size = 5;
    hello.heap_bytes = 4096;
    hello.challenge = random_proof();
    hello.proof = of_hello(Secret("a guess"), banner, hello);
    connection.send(FrameKind::hello, bytes_of(hello));
    usleep(1000);
  });
  expect_meeting(launch);
}

TEST(HostsStrangers, FloodTheGate) {
  const HostsLaunch launch;
  const auto flood = [&] {
    static std::vector<Connection> held;
    held.push_back(visit(launch));
    send_raw(held.back(), "i");  // the beginning of a frame
    if (held.size() > 500) held.erase(held.begin(), held.begin() + 250);
  };
  const Stranger one(flood), two(flood);
  expect_meeting(launch, 12);
}

TEST(HostsStrangers, FloodAConnection) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    Banner banner;
    const Connection connection = visit(launch, &banner);
    FrameHead head;
    head.kind = static_cast<std::uint16_t>(FrameKind::enter);
    head.bytes = most_frame_bytes;
    for (int i = 0; i < 50; ++i) send_raw(connection, std::string(bytes_of(head)) + std::string(60000, 'z'));
  });
  expect_meeting(launch);
}

/// Listens at the launch's first port, and does what it likes with who comes.
void hold_first_port(const HostsLaunch& launch, const std::function<void(Connection)>& act) {
  static const FileDescriptor listener = listen_tcp(endpoint(launch.port));
  pollfd entry{listener.get(), POLLIN, 0};
  poll(&entry, 1, -1);
  act(Connection(accept_tcp(listener)));
}

TEST(HostsStrangers, ListenAndSayNothing) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    static std::vector<Connection> held;
    hold_first_port(launch, [](Connection connection) { held.push_back(std::move(connection)); });
  });
  usleep(50000);
  expect_meeting(launch, 12);
}

TEST(HostsStrangers, ListenAndSayNonsense) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    hold_first_port(launch, [](const Connection& connection) { send_raw(connection, "220 mail ready\r\n"); });
  });
  usleep(50000);
  expect_meeting(launch);
}

TEST(HostsStrangers, ListenAndPoseAsRankZero) {
  const HostsLaunch launch;
  const Proof world = Secret("imbrex launch\n" + launch.secret).prove("hosts/0");  // as everybody may have seen it
  const Stranger stranger([&] {
    hold_first_port(launch, [&](Connection connection) {
      const Banner banner{world, random_proof()};
      connection.send(FrameKind::banner, bytes_of(banner));
      await_frame(connection, deadline_in(1));
      connection.send(FrameKind::refusal, "there is no world for you");
    });
  });
  usleep(50000);
  expect_meeting(launch);
}

}  // namespace
}  // namespace imbrex::test
