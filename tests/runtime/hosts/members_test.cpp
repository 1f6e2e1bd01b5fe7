// A member of a world that does what no rank does: the others notice, say so, and end in time.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>
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

/// Rank 1 of two, which knows the secret, up to where rank 0 takes it for one.
Connection join_as_member(const HostsLaunch& launch) {
  std::vector<Endpoint> places;
  for (int i = 0; i < ports_tried; ++i) places.push_back(endpoint(launch.port + i));
  RankClaim claim;
  claim.rank = 1;
  claim.size = 2;
  claim.pid = getpid();
  claim.heap_bytes = 4096;
  claim.wait_limit = launch.limit;
  put_text(claim.host_name, "b");
  const Secret secret = secret_of(launch);
  Answers answers(places);
  auto taken = knock(answers, {}, {secret, world_of(launch), claim}, deadline_in(10), true);
  EXPECT_TRUE(taken) << answers.text();
  Connection connection = std::move(taken->connection);
  const auto roster = await_frame(connection, deadline_in(10));
  EXPECT_TRUE(roster && roster->kind == FrameKind::roster);
  return connection;
}

/// What rank 0 ends with, once a member has entered one barrier and sent that.
std::string end_after(const std::function<void(Connection&)>& act) {
  const HostsLaunch launch;
  Result result;
  std::thread rank([&] { result = spawn({launch.member("ab", 0, {"join", "4096", "20"})})[0]; });
  Connection connection = join_as_member(launch);
  const Entry first{1, no_gather, 0};
  connection.send(FrameKind::enter, bytes_of(first));
  act(connection);
  await_frame(connection, deadline_in(0.1));
  rank.join();
  EXPECT_EQ(result.code, 3) << result.text;
  return result.text;
}

TEST(HostsMembers, ThatSendWhatNoRankSendsAreLost) {
  const auto expect = [](const std::function<void(Connection&)>& act) {
    const std::string text = end_after(act);
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("was lost: it sent what no rank sends"), std::string::npos) << text;
  };
  // The second barrier is next.
  for (const std::uint64_t number : {0, 1, 3})
    expect([&](Connection& connection) { connection.send(FrameKind::enter, bytes_of(Entry{number, no_gather, 0})); });
  expect([](Connection& connection) { connection.send(FrameKind::enter, bytes_of(Entry{2, 5, 0}), "four"); });
  expect([](Connection& connection) { connection.send(FrameKind::enter, "x"); });
  expect([](Connection& connection) { connection.send(FrameKind::state, "finished"); });
  expect([](Connection& connection) { connection.send(FrameKind::refused, "x"); });
  expect([](Connection& connection) { connection.send(FrameKind::roster, {}); });
  expect([](Connection& connection) { connection.send(FrameKind::word, bytes_of(PutWord{4, 1})); });
}

// One of two places closes each connection at once; the other one is silent, so that the knock goes on.
TEST(HostsMembers, KnockOnceAtEachPlaceUnlessAskedToGoOn) {
  const HostsLaunch launch;
  const Secret secret = secret_of(launch);
  for (const bool again : {false, true}) {
    const FileDescriptor closes = listen_tcp(*Endpoint::parse("127.0.0.1", 0)),
                         silent = listen_tcp(*Endpoint::parse("127.0.0.1", 0));
    int came = 0;
    Answers answers({own_end(closes), own_end(silent)});
    const auto meanwhile = [&] {
      int error = 0;
      while (accept_tcp(closes, error)) ++came;
    };
    EXPECT_FALSE(knock(answers, {}, {secret, world_of(launch), {}}, deadline_in(0.6), again, meanwhile));
    meanwhile();
    EXPECT_EQ(came > 1, again) << came;
    EXPECT_GT(came, 0);
  }
}

// Its connection's thread tells them, or the rank when it leaves, and not both.
TEST(HostsMembers, HearOfAFailureOnce) {
  HostsLaunch launch;
  launch.limit = 3;
  Result result;
  std::thread rank([&] { result = spawn({launch.member("ab", 0, {"join", "4096", "3"})})[0]; });
  Connection connection = join_as_member(launch);
  std::vector<std::string> told;
  while (const auto frame = await_frame(connection, deadline_in(30)))
    if (frame->kind == FrameKind::failure) told.push_back(frame->payload);
  rank.join();
  EXPECT_EQ(result.code, 3) << result.text;
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("rank 0"), std::string::npos) << told[0];
}

/// From here on the system acknowledges nothing that comes, as if the network took it.
void lose_what_comes(const Connection& connection) {
  sock_filter none{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &none};
  EXPECT_EQ(setsockopt(connection.socket().get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

// Whom a rank's last words do not reach holds it up for a second, not for its limit.
TEST(HostsMembers, OutOfReachHoldNobodyUp) {
  const HostsLaunch launch;
  Result result;
  std::thread rank([&] { result = spawn({launch.member("ab", 0, {"join", "4096", "20"})})[0]; });
  Connection connection = join_as_member(launch);
  lose_what_comes(connection);
  const auto begin = Clock::now();
  connection.send(FrameKind::failure, "rank 1 failed: it is enough");
  rank.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  EXPECT_GT(seconds, 0.9);
  EXPECT_LT(seconds, launch.limit / 2);
  EXPECT_EQ(result.code, 3) << result.text;
  EXPECT_NE(result.text.find("rank 1 failed: it is enough"), std::string::npos) << result.text;
}

// Who gets into the connection of a member: what is not sealed ends it.
TEST(HostsMembers, WhoseConnectionIsWrittenToByOthersAreLost) {
  for (const std::string& text : {std::string("nonsense, and enough of it"), std::string(40, '\0')}) {
    const std::string end = end_after([&](Connection& connection) { send_raw(connection, text); });
    EXPECT_NE(end.find("was lost: it sent what is no frame of this protocol"), std::string::npos) << end;
  }
  const std::string end = end_after([&](Connection& connection) {
    FrameHead head;
    head.kind = static_cast<std::uint16_t>(FrameKind::failure);
    head.bytes = 40;
    std::string frame(bytes_of(head));
    frame.append(40, 'f');
    send_raw(connection, frame);
  });
  EXPECT_NE(end.find("was lost: what came was not sealed by it for this connection"), std::string::npos) << end;
}

}  // namespace
}  // namespace imbrex::test
