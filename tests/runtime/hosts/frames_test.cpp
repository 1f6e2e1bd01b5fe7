// What goes over a connection, and who comes through a gate.
#include "runtime/hosts/frames.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "imbrex/error.hpp"
#include "runtime/hosts/gate.hpp"
#include "runtime/hosts/reach.hpp"

namespace imbrex::runtime {
namespace {

struct Pair {
  Connection here, there;
  Pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    here = Connection(FileDescriptor(ends[0]));
    there = Connection(FileDescriptor(ends[1]));
  }
  void write(std::string_view bytes) {
    EXPECT_EQ(::write(here.socket().get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
};

std::string frame_text(FrameKind kind, std::string_view payload) {
  FrameHead head;
  head.kind = static_cast<std::uint16_t>(kind);
  head.bytes = static_cast<std::uint32_t>(payload.size());
  return std::string(bytes_of(head)) + std::string(payload);
}

TEST(Frames, ComeWholeHoweverTheyAreCut) {
  const std::string text = frame_text(FrameKind::failure, "one") + frame_text(FrameKind::alive, "") +
                           frame_text(FrameKind::failure, std::string(most_frame_bytes, 'x'));
  for (const std::size_t piece : {1, 7, 12, 13, 5000}) {
    Pair pair;
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      pair.write(std::string_view(text).substr(at, piece));
      ASSERT_TRUE(pair.there.receive());
      while (auto frame = pair.there.next()) frames.push_back(*frame);
    }
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].payload, "one");
    EXPECT_EQ(frames[1].kind, FrameKind::alive);
    EXPECT_EQ(frames[2].payload.size(), most_frame_bytes);
  }
}

TEST(Frames, WhatIsNoneIsAFault) {
  std::string foreign = frame_text(FrameKind::alive, ""), long_one = foreign, other = foreign;
  foreign[0] = 'X';
  long_one[10] = 1;  // 65536 bytes and more
  other[4] = 99;
  for (const std::string& text : {foreign, long_one, other, std::string("GET / HTTP/1.1\r\n\r\n")}) {
    Pair pair;
    pair.write(text);
    EXPECT_TRUE(pair.there.receive());
    EXPECT_FALSE(pair.there.next());
    EXPECT_EQ(pair.there.fault(), "it sent what is no frame of this protocol");
    EXPECT_FALSE(pair.there.receive());
    EXPECT_EQ(pair.there.other_version().value_or(0), text == other ? 99 : 0);
  }
}

TEST(Frames, WhatTheSystemDoesNotTakeIsKept) {
  Pair pair;
  const std::string payload(most_frame_bytes, 'y');
  int sent = 0;
  while (!pair.here.has_unsent() && sent < 1000) pair.here.send(FrameKind::failure, payload), ++sent;
  ASSERT_TRUE(pair.here.has_unsent());
  int received = 0;
  while (received < sent) {
    ASSERT_TRUE(pair.there.receive());
    while (const auto frame = pair.there.next()) {
      EXPECT_EQ(frame->payload, payload);
      ++received;
    }
    pair.here.flush();
  }
  EXPECT_FALSE(pair.here.has_unsent());
}

TEST(Frames, ACloseIsSeenBehindWhatCameBefore) {
  Pair pair;
  pair.here.send(FrameKind::failure, "last words");
  pair.here = Connection();
  EXPECT_TRUE(pair.there.receive());
  EXPECT_EQ(pair.there.next()->payload, "last words");
  EXPECT_FALSE(pair.there.receive());
  EXPECT_TRUE(pair.there.was_closed());
}

class Gates : public testing::Test {
 protected:
  Secret secret{"the secret"};
  Proof world = secret.prove("world");
  FileDescriptor listener = listen_tcp(*Endpoint::parse("127.0.0.1", 0));
  Endpoint at = own_end(listener);

  /// A connection, its banner, and a greeting for it.
  struct Visit {
    Connection connection;
    Banner banner;
    RankHello hello;
  };
  Visit visit(Gate& gate, const Secret& known) {
    std::string why;
    Visit result{Connection(connect_tcp(at, std::nullopt, deadline_in(5), why)), {}, {}};
    EXPECT_TRUE(result.connection) << why;
    gate.admit();
    result.banner = await_frame(result.connection, deadline_in(5))->as<Banner>().value();
    result.hello.rank = 3;
    result.hello.challenge = random_proof();
    result.hello.proof = of_hello(known, result.banner, result.hello);
    return result;
  }
  /// Until the visitor is taken or turned away.
  std::vector<Guest> admit(Gate& gate, Visit& visitor) {
    for (const Deadline end = deadline_in(5); milliseconds_until(end) > 0; usleep(1000))
      if (auto guests = gate.admit(); !guests.empty() || !visitor.connection.receive()) return guests;
    return {};
  }
};

TEST_F(Gates, WhoKnowsTheSecretIsTakenAndLearnsThatTheOtherDoes) {
  Gate gate(std::move(listener), secret, world);
  Visit good = visit(gate, secret);
  good.connection.send(FrameKind::hello, bytes_of(good.hello));
  auto guests = admit(gate, good);
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_EQ(guests[0].hello.rank, 3);
  gate.welcome(guests[0]);
  const auto receipt = await_frame(good.connection, deadline_in(5))->as<Receipt>();
  EXPECT_EQ(receipt->proof, of_receipt(secret, world, good.hello));
  EXPECT_NE(receipt->proof, of_receipt(Secret("another"), world, good.hello));
  EXPECT_EQ(gate.turned_away(), "");
}

TEST_F(Gates, OthersAreTurnedAway) {
  Gate gate(std::move(listener), secret, world);
  Visit other = visit(gate, Secret("another"));
  other.connection.send(FrameKind::hello, bytes_of(other.hello));
  EXPECT_TRUE(admit(gate, other).empty());
  EXPECT_EQ(gate.turned_away(), "a connection from 127.0.0.1 was turned away: it does not know the launch's key");

  // A greeting that was good elsewhere, and one of which a word was changed after its proof.
  Visit heard = visit(gate, secret), replayed = visit(gate, secret);
  replayed.connection.send(FrameKind::hello, bytes_of(heard.hello));
  EXPECT_TRUE(admit(gate, replayed).empty());
  heard.hello.rank = 2;
  heard.connection.send(FrameKind::hello, bytes_of(heard.hello));
  EXPECT_TRUE(admit(gate, heard).empty());

  Visit early = visit(gate, secret);
  early.connection.send(FrameKind::enter, bytes_of(Entry()));
  EXPECT_TRUE(admit(gate, early).empty());
  EXPECT_EQ(gate.turned_away(), "a connection from 127.0.0.1 was turned away: it sent what is no greeting");
}

TEST_F(Gates, WhoSaysNothingHasASecond) {
  Gate gate(std::move(listener), secret, world);
  const Visit silent = visit(gate, secret);
  usleep(1100000);
  gate.admit();
  EXPECT_EQ(gate.turned_away(), "a connection from 127.0.0.1 was turned away: it did not greet within 1 s");
}

TEST(Reach, TextsAreTakenApart) {
  const auto expect = [](const std::string& text, const std::string& host, int port) {
    const HostPort parsed = parse_host_port("x", text);
    EXPECT_EQ(parsed.host, host);
    EXPECT_EQ(parsed.port, port);
  };
  expect("node1", "node1", 0);
  expect("node1:29500", "node1", 29500);
  expect("10.0.0.1:1", "10.0.0.1", 1);
  expect("fe80::1", "fe80::1", 0);
  expect("[fe80::1]", "fe80::1", 0);
  expect("[fe80::1]:7", "fe80::1", 7);
  for (const char* wrong : {"", ":", ":7", "a:", "a:0", "a:65536", "a:7x", "[]:7", "[a]7", "[a]:"})
    EXPECT_THROW(parse_host_port("x", wrong), Error) << wrong;
  EXPECT_EQ(parse_reach("x", "node1", "key").first_port, parse_reach("x", "node2", "key").first_port);
}

}  // namespace
}  // namespace imbrex::runtime
