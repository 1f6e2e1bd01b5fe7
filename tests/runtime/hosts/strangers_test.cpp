// Who does not belong to a world and comes while its ranks meet: no rank is slowed by it, and it is not let in.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "runtime/hosts/knock.hpp"
#include "runtime/hosts/launch.hpp"
#include "runtime/hosts/meeting_place.hpp"

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

/// A connection to the rank of the launch that listens first.
Connection visit(const HostsLaunch& launch, Banner* banner = nullptr) {
  std::string why;
  for (int i = 0;; i = (i + 1) % ports_tried) {
    Connection connection(connect_tcp(endpoint(launch.port + i), deadline_in(1), why));
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

std::uint32_t far_port(const Connection& connection) { return far_end(connection.socket()).port(); }

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
    send_raw(held.back(), std::string(40, 'h'));
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
    hello.key = KeyPair().own();
    hello.port = far_port(connection);
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
  int error = 0;
  act(Connection(accept_tcp(listener, error)));
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

/// The world's name, as everybody may have seen it.
/// Shows a copied banner, and answers the greeting by `answer`.
void pose(const HostsLaunch& launch, const std::function<void(Connection&)>& answer) {
  static std::vector<Connection> held;
  hold_first_port(launch, [&](Connection connection) {
    connection.send(FrameKind::banner, bytes_of(Banner{world_of(launch), KeyPair().own()}));
    await_frame(connection, deadline_in(1));
    answer(connection);
    held.push_back(std::move(connection));
  });
}

TEST(HostsStrangers, ListenAndPoseAsRankZero) {
  const HostsLaunch launch;
  const Stranger stranger([&] {
    pose(launch, [](Connection& connection) {
      connection.send(FrameKind::refusal, "there is no world for you");
      connection = Connection();
    });
  });
  usleep(50000);
  expect_meeting(launch);
}

// It has the name, and not the key: in the clear, by keys of its own, or as long as a sealed one.
TEST(HostsStrangers, ListenAndSendAReceipt) {
  for (const char* how : {"clear", "own", "long"}) {
    SCOPED_TRACE(how);
    const HostsLaunch launch;
    const Stranger stranger([&] {
      pose(launch, [&](Connection& connection) {
        if (*how == 'o')
          connection.protect(Session(Secret("a guess"), *KeyPair().shared_with(KeyPair().own()), "", End::gate));
        connection.send(FrameKind::receipt, *how == 'l' ? std::string(Session::tag_bytes, 'r') : "");
      });
    });
    usleep(50000);
    expect_meeting(launch);
  }
}

// The wait limit is 20 s, and no rank waits for it.
TEST(HostsStrangers, ListenAndShowACopiedBannerAndNoMore) {
  const HostsLaunch launch;
  const Stranger stranger([&] { pose(launch, [](Connection&) {}); });
  usleep(50000);
  expect_meeting(launch, 12);
}

TEST(HostsStrangers, WhoHoldsAPortIsNamedWithIt) {
  HostsLaunch launch;
  launch.limit = 2.5;
  const Stranger stranger([&] { pose(launch, [](Connection&) {}); });
  usleep(50000);
  const auto results = spawn({launch.member("ab", 1, {"join", "4096", "2.5"})});
  EXPECT_EQ(results[0].code, 3);
  const std::string held = fmt::format(
      "127.0.0.1 port {}: who listens there shows this world's name and did not take "
      "the greeting within 1 s; 127.0.0.1 ports {} to {}: Connection refused",
      launch.port, launch.port + 1, launch.port + 7);
  EXPECT_NE(results[0].text.find(held), std::string::npos) << results[0].text;
}

// Seven ports of the eight: the meeting takes a second more for all of them together, and keeps to its limit.
TEST(HostsStrangers, SilentPortsDoNotAddUp) {
  HostsLaunch launch;
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < ports_tried - 1; ++i) silent.push_back(listen_tcp(endpoint(launch.port + i)));
  expect_meeting(launch, 5);
  const auto begin = Clock::now();
  const auto results = spawn({launch.member("ab", 0, {"join", "4096", "2"})});
  EXPECT_EQ(results[0].code, 3);
  EXPECT_NE(results[0].text.find("rank 1 of 2 did not arrive within 2 s"), std::string::npos) << results[0].text;
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
}

/// Listens, and hands on whatever comes, to another place and back. `change` has each part first.
void relay(const Endpoint& from, const Endpoint& to, const std::function<void(std::string&)>& change) {
  static const FileDescriptor listener = listen_tcp(from);
  pollfd entry{listener.get(), POLLIN, 0};
  poll(&entry, 1, -1);
  int error = 0;
  std::string why;
  const FileDescriptor guest = accept_tcp(listener, error), host = connect_tcp(to, deadline_in(1), why);
  if (!host) return;
  pollfd polls[] = {{guest.get(), POLLIN, 0}, {host.get(), POLLIN, 0}};
  while (poll(polls, 2, 30000) > 0)
    for (int i = 0; i < 2; ++i) {
      if (!polls[i].revents) continue;
      std::string part(16384, 0);
      const ssize_t bytes = recv(polls[i].fd, part.data(), part.size(), 0);
      if (bytes <= 0) return;
      part.resize(static_cast<std::size_t>(bytes));
      change(part);
      [[maybe_unused]] const auto sent = ::send(polls[1 - i].fd, part.data(), part.size(), MSG_NOSIGNAL);
    }
}

// Rank 0 turns it away, and its guests find the port where rank 0 is.
TEST(HostsStrangers, HandAGreetingOn) {
  const HostsLaunch launch;
  const Stranger stranger([&] { relay(endpoint(launch.port), endpoint(launch.port + 1), [](std::string&) {}); });
  usleep(50000);
  expect_meeting(launch, 12);
}

// The guest is sent to where the stranger is, and to no port of rank 0: rank 0 says why the guest did not arrive.
TEST(HostsStrangers, WhoHandAGreetingOnAreNamed) {
  const HostsLaunch launch;
  HostsLaunch elsewhere;
  elsewhere.secret = launch.secret;
  const Stranger stranger([&] { relay(endpoint(elsewhere.port), endpoint(launch.port), [](std::string&) {}); });
  usleep(50000);
  const auto results =
      spawn({launch.member("ab", 0, {"join", "4096", "2"}), elsewhere.member("ab", 1, {"join", "4096", "2"})});
  EXPECT_NE(results[0].text.find(fmt::format("it meant to reach port {}, and this rank listens at port {}",
                                             elsewhere.port, launch.port)),
            std::string::npos)
      << results[0].text;
}

// Rank 0 listens at one address, and somebody at the same port of another one, to which the guest is sent: nothing
// tells the two apart. Once the ranks work, it reads, changes a bit, says a frame of its own, or one that it has heard.
TEST(HostsStrangers, StandBetweenRanksAndAreFoundOut) {
  for (const std::string how : {"change", "say", "repeat", "leave out"}) {
    SCOPED_TRACE(how);
    const HostsLaunch launch;
    const Endpoint other = *Endpoint::parse("127.0.0.2", static_cast<std::uint16_t>(launch.port));
    const Stranger stranger([&] {
      int parts = 0;
      relay(other, endpoint(launch.port), [&](std::string& part) {
        if (++parts < 40) return;
        if (how == "change") part.back() = static_cast<char>(part.back() ^ 1);
        if (how == "repeat") part += part;
        if (how == "leave out" && parts == 40) part.clear();
        if (how != "say") return;
        FrameHead head;
        head.kind = static_cast<std::uint16_t>(FrameKind::failure);
        head.bytes = 32;
        part.append(bytes_of(head)).append("written by who has not the secret");
      });
    });
    auto starts = launch.members("ab", {"work"});
    starts[0].variables.push_back("IMBREX_INTERFACE=lo");
    starts[1].variables[3] = fmt::format("IMBREX_ADDRESS=127.0.0.2:{}", launch.port);
    usleep(50000);
    const auto begin = Clock::now();
    std::string all;
    for (const Result& result : spawn(starts)) {
      EXPECT_EQ(result.code, 3) << result.text;
      all += result.text;
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    EXPECT_NE(all.find("was lost: what came was not sealed by it for this connection"), std::string::npos) << all;
    EXPECT_EQ(all.find("written by"), std::string::npos) << all;
  }
}

/// A rank 0 with few descriptors forms a world while strangers hold connections, and makes more.
TEST(HostsStrangers, TakeAllDescriptors) {
  for (const int most : {24, 40, 64, 100}) {
    SCOPED_TRACE(most);
    const HostsLaunch launch;
    const auto flood = [&] {
      static std::vector<Connection> held;
      held.push_back(visit(launch));
      if (held.size() > 500) held.erase(held.begin(), held.begin() + 250);
    };
    const Stranger one(flood), two(flood);
    auto starts = launch.members("ab", {"join-few", "4096", "20", std::to_string(most)});
    starts[1].arguments = {"join-late", "4096", "20"};
    for (const Result& result : spawn(starts)) EXPECT_EQ(result.code, 0) << result.text;
  }
}

/// A member's connection to the test, which is rank 0 of the launch's world, and what the member claimed.
Guest receive_member(const HostsLaunch& launch) {
  const Secret secret = secret_of(launch);
  Admission gate(listen_tcp(endpoint(launch.port)), secret, world_of(launch));
  std::vector<Guest> guests;
  for (const Deadline end = deadline_in(10); guests.empty() && milliseconds_until(end) > 0; usleep(1000))
    guests = gate.admit();
  EXPECT_EQ(guests.size(), 1u) << gate.turned_away();
  return std::move(guests.at(0));
}

// A rank looks after its strangers also while no rank says anything: each has its second, not the ranks' limit.
TEST(HostsStrangers, SayNothingToARankThatWaitsForLaterOnes) {
  const HostsLaunch launch;
  Result result;
  std::thread rank([&] { result = spawn({launch.member("abc", 1, {"join", "4096", "20"})})[0]; });
  {
    Guest member = receive_member(launch);
    std::string entries;
    for (int host = 0; host < 3; ++host) {
      RosterEntry entry;
      entry.host = host;
      entry.pid = getpid();
      put_text(entry.host_name, std::string(1, static_cast<char>('a' + host)));
      entries += bytes_of(entry);
    }
    member.connection.send(FrameKind::roster, bytes_of(RosterHead{random_proof()}), entries);
    std::string why;
    Connection silent(connect_tcp(endpoint(static_cast<int>(member.claim.port)), deadline_in(5), why));
    EXPECT_TRUE(silent) << why;
    bool open = true;
    for (const Deadline end = deadline_in(launch.limit / 2); open && milliseconds_until(end) > 0; usleep(1000))
      open = silent.receive();
    EXPECT_FALSE(open) << "it is still let in after " << launch.limit / 2 << " s";
  }
  rank.join();
  EXPECT_EQ(result.code, 3) << result.text;
  EXPECT_NE(result.text.find("rank 0 ended before the world was complete"), std::string::npos) << result.text;
}

}  // namespace
}  // namespace imbrex::test
