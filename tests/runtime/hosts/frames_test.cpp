// What goes over a connection, and who comes through a gate.
#include "runtime/hosts/frames.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "imbrex/error.hpp"
#include "runtime/hosts/knock.hpp"
#include "runtime/hosts/launch.hpp"
#include "runtime/hosts/meeting_place.hpp"

namespace imbrex::runtime {
namespace {

const Secret secret("the secret");

/// The keys of both ends of one connection.
struct Keys {
  KeyPair guest, gate;
  Session of(End end, std::string_view transcript = "transcript", const Secret& known = secret) const {
    const auto shared = end == End::guest ? guest.shared_with(gate.own()) : gate.shared_with(guest.own());
    return Session(known, *shared, transcript, end);
  }
};

/// A connection of which the end here writes what it likes, and the end there has keys.
struct Pair {
  Connection here, there;
  Keys keys;
  Session session = keys.of(End::gate);  // of this end

  explicit Pair(bool sealed = true) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    here = Connection(FileDescriptor(ends[0]));
    there = Connection(FileDescriptor(ends[1]));
    if (sealed) there.protect(keys.of(End::guest));
  }
  void write(std::string_view bytes) {
    EXPECT_EQ(::write(here.socket().get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  /// What the other end sees of that.
  std::string fault_after(std::string_view bytes) {
    write(bytes);
    there.receive();
    while (there.next()) {
    }
    return there.fault();
  }
};

std::string frame_text(FrameKind kind, std::string_view payload) {
  FrameHead head;
  head.kind = static_cast<std::uint16_t>(kind);
  head.bytes = static_cast<std::uint32_t>(payload.size());
  return std::string(bytes_of(head)) + std::string(payload);
}

std::string sealed_text(Session& session, FrameKind kind, std::string_view payload) {
  FrameHead head;
  head.kind = static_cast<std::uint16_t>(kind);
  head.bytes = static_cast<std::uint32_t>(payload.size() + Session::tag_bytes);
  std::string text(bytes_of(head));
  session.seal(bytes_of(head), payload, text);
  return text;
}

constexpr std::string_view no_frame = "it sent what is no frame of this protocol";
constexpr std::string_view not_sealed = "what came was not sealed by it for this connection, or was changed on its way";

TEST(Frames, ComeWholeHoweverTheyAreCut) {
  for (const std::size_t piece : {1, 7, 12, 13, 5000}) {
    Pair pair;
    std::string text = sealed_text(pair.session, FrameKind::failure, "one");
    text += sealed_text(pair.session, FrameKind::alive, "");
    text += sealed_text(pair.session, FrameKind::failure, std::string(most_frame_bytes, 'x'));
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
  for (const bool sealed : {false, true}) {
    std::string foreign = frame_text(FrameKind::alive, ""), long_one = foreign, other = foreign;
    foreign[0] = 'X';
    long_one[10] = 1;  // 65536 bytes and more
    other[4] = 99;
    for (const std::string& text : {foreign, long_one, other, std::string("GET / HTTP/1.1\r\n\r\n")}) {
      Pair pair(sealed);
      EXPECT_EQ(pair.fault_after(text), no_frame);
      EXPECT_FALSE(pair.there.receive());
      EXPECT_EQ(pair.there.other_version().value_or(0), text == other ? 99 : 0);
    }
  }
}

// Memory is taken for what comes, not for what is announced; of strangers, for a greeting.
TEST(Frames, LengthsAreBounded) {
  for (const auto& [sealed, most] :
       {std::pair{false, most_greeting_bytes}, std::pair{true, most_frame_bytes + Session::tag_bytes}})
    for (const std::size_t more : {0u, 1u}) {
      Pair pair(sealed);
      FrameHead head;
      head.bytes = static_cast<std::uint32_t>(most + more);
      EXPECT_EQ(pair.fault_after(bytes_of(head)), more ? no_frame : "");
    }
}

TEST(Frames, WhatIsNotSealedByTheOtherEndIsAFault) {
  const auto expect = [](const char* what, auto make) {
    SCOPED_TRACE(what);
    Pair pair;
    EXPECT_EQ(pair.fault_after(make(pair)), not_sealed);
    // Nothing that comes later is believed.
    EXPECT_EQ(pair.fault_after(sealed_text(pair.session, FrameKind::alive, "")), not_sealed);
    EXPECT_FALSE(pair.there.receive());
  };
  const auto one = [](Pair& pair) { return sealed_text(pair.session, FrameKind::failure, "text"); };
  for (std::size_t i = 0; i < sizeof(FrameHead) + 4 + Session::tag_bytes; ++i)
    if (i == 6 || i == 7 || i >= sizeof(FrameHead))  // magic, version and length have faults of their own
      expect("a changed byte", [&](Pair& pair) {
        std::string text = one(pair);
        text[i] = static_cast<char>(text[i] ^ 1);
        return text;
      });
  expect("in the clear", [](Pair&) { return frame_text(FrameKind::failure, "a text in the clear, of some length"); });
  expect("shorter than a tag", [](Pair&) { return frame_text(FrameKind::alive, "short"); });
  expect("twice", [&](Pair& pair) {
    const std::string text = one(pair);
    return text + text;
  });
  expect("one left out", [&](Pair& pair) {
    one(pair);
    return one(pair);
  });
  expect("another order", [&](Pair& pair) {
    const std::string first = one(pair);
    return one(pair) + first;
  });
  expect("cut short", [&](Pair& pair) {
    std::string text = one(pair);
    text.erase(text.size() - 1);
    --text[8];
    return text;
  });
  expect("another connection's", [&](Pair&) {
    Pair other;
    return one(other);
  });
  expect("after another greeting", [](Pair& pair) {
    Session session = pair.keys.of(End::gate, "another transcript");
    return sealed_text(session, FrameKind::alive, "");
  });
  expect("by who does not know the secret", [](Pair& pair) {
    Session session = pair.keys.of(End::gate, "transcript", Secret("another"));
    return sealed_text(session, FrameKind::alive, "");
  });
  expect("sent back", [](Pair& pair) {
    Session own = pair.keys.of(End::guest);
    return sealed_text(own, FrameKind::alive, "");
  });
}

TEST(Frames, KeysThatGiveEverybodyTheSameAreNone) {
  EXPECT_FALSE(KeyPair().shared_with(PublicKey{}));
  PublicKey one{};
  one[0] = 1;
  EXPECT_FALSE(KeyPair().shared_with(one));
}

TEST(Frames, WhatTheSystemDoesNotTakeIsKept) {
  Pair pair;
  pair.here.protect(pair.keys.of(End::gate));
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
  pair.here.protect(pair.keys.of(End::gate));
  pair.here.send(FrameKind::failure, "last words");
  pair.here = Connection();
  EXPECT_TRUE(pair.there.receive());
  EXPECT_EQ(pair.there.next()->payload, "last words");
  EXPECT_FALSE(pair.there.receive());
  EXPECT_TRUE(pair.there.was_closed());
}

/// Two ends of one connection between hosts.
struct TcpPair {
  FileDescriptor listener = listen_tcp(*Endpoint::parse("127.0.0.1", 0));
  std::string why;
  Connection here{test::connect_tcp(own_end(listener), deadline_in(5), why)}, there;

  TcpPair() {
    int error = 0;
    pollfd entry{listener.get(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, 5000), 1) << why;
    there = Connection(accept_tcp(listener, error));
    EXPECT_TRUE(there) << std::strerror(error);
  }
  /// The other end leaves without having read what it has: its system resets the connection, and that has come here.
  void reset() {
    here.send(FrameKind::alive, {});
    pollfd entry{there.socket().get(), POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 5000), 1);
    there = Connection();
    entry = {here.socket().get(), 0, 0};
    ASSERT_EQ(poll(&entry, 1, 5000), 1);
    ASSERT_TRUE(entry.revents & POLLERR);
  }
};

TEST(Frames, AnEndIsFinishedOnceTheOtherHasEverything) {
  TcpPair pair;
  const std::string payload(most_frame_bytes, 'y');
  std::size_t left = 0;
  for (; !pair.here.has_unsent(); left += sizeof(FrameHead) + payload.size())
    pair.here.send(FrameKind::failure, payload);
  EXPECT_FALSE(pair.here.finish());
  bool finished = false;
  std::vector<char> buffer(1 << 20);
  for (const Deadline end = deadline_in(5); left > 0 && milliseconds_until(end) > 0;) {
    const ssize_t bytes = recv(pair.there.socket().get(), buffer.data(), buffer.size(), 0);
    if (bytes > 0) left -= static_cast<std::size_t>(bytes);
    finished = pair.here.finish();
    EXPECT_FALSE(finished && pair.here.has_unsent());
  }
  ASSERT_EQ(left, 0u);
  for (const Deadline end = deadline_in(5); !finished && milliseconds_until(end) > 0; usleep(1000))
    finished = pair.here.finish();
  EXPECT_TRUE(finished);
  EXPECT_EQ(recv(pair.there.socket().get(), buffer.data(), buffer.size(), 0), 0) << "the end itself";
}

// There is no end any more that could take anything.
TEST(Frames, AnEndIsFinishedOnceTheOtherHasLeft) {
  TcpPair reset;
  ASSERT_NO_FATAL_FAILURE(reset.reset());
  EXPECT_TRUE(reset.here.finish());
  TcpPair closed;
  closed.there = Connection();
  pollfd entry{closed.here.socket().get(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 5000), 1);
  EXPECT_TRUE(closed.here.finish());
}

TEST(Frames, AResetIsAClose) {
  TcpPair pair;
  ASSERT_NO_FATAL_FAILURE(pair.reset());
  EXPECT_FALSE(pair.here.receive());
  EXPECT_TRUE(pair.here.was_closed());
  EXPECT_EQ(pair.here.fault(), "the connection was closed");
}

class Gates : public testing::Test {
 protected:
  Proof world = secret.prove("world");
  FileDescriptor listener = listen_tcp(*Endpoint::parse("127.0.0.1", 0));
  Endpoint at = own_end(listener);

  /// A connection, its banner, and a greeting for it.
  struct Visitor {
    Connection connection;
    Banner banner;
    KeyPair keys;
    RankHello hello;
    RankClaim claim;
  };
  Visitor visit(Admission& gate, const Secret& known = secret) {
    std::string why;
    Visitor result{Connection(test::connect_tcp(at, deadline_in(5), why)), {}, {}, {}, {}};
    EXPECT_TRUE(result.connection) << why;
    gate.admit();
    result.banner = await_frame(result.connection, deadline_in(5))->as<Banner>().value();
    result.hello.key = result.keys.own();
    result.hello.port = at.port();
    result.hello.proof = of_hello(known, result.banner, result.hello);
    result.claim.rank = 3;
    return result;
  }
  /// Greets; what follows is sealed.
  void greet(Visitor& visitor, const Secret& known = secret) {
    visitor.connection.send(FrameKind::hello, bytes_of(visitor.hello));
    if (const auto shared = visitor.keys.shared_with(visitor.banner.key))
      visitor.connection.protect(Session(known, *shared, transcript_of(visitor.banner, visitor.hello), End::guest));
  }
  /// What the gate says once it has turned this visitor away.
  std::string turned_away(Admission& gate, Visitor& visitor) {
    for (const Deadline end = deadline_in(5); milliseconds_until(end) > 0; usleep(1000)) {
      EXPECT_TRUE(gate.admit().empty());
      if (!visitor.connection.receive()) break;
    }
    const std::string_view begin = "a connection from 127.0.0.1 was turned away: ", text = gate.turned_away();
    return std::string(text.starts_with(begin) ? text.substr(begin.size()) : text);
  }
};

TEST_F(Gates, WhoKnowsTheSecretIsTakenAndLearnsThatTheOtherDoes) {
  Admission gate(std::move(listener), secret, world);
  Visitor good = visit(gate);
  greet(good);
  good.connection.send(FrameKind::claim, bytes_of(good.claim));
  std::optional<Frame> receipt;
  for (const Deadline end = deadline_in(5); !receipt && milliseconds_until(end) > 0;) {
    EXPECT_TRUE(gate.admit().empty());
    receipt = await_frame(good.connection, deadline_in(0.01));
  }
  ASSERT_TRUE(receipt);
  EXPECT_EQ(receipt->kind, FrameKind::receipt);
  // It is a guest once it has seen that.
  good.connection.send(FrameKind::alive, {});
  std::vector<Guest> guests;
  for (const Deadline end = deadline_in(5); guests.empty() && milliseconds_until(end) > 0;) guests = gate.admit();
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_EQ(guests[0].claim.rank, 3);
  guests[0].connection.send(FrameKind::failure, "to it alone");
  EXPECT_EQ(await_frame(good.connection, deadline_in(5))->payload, "to it alone");
  EXPECT_EQ(gate.turned_away(), "");
}

TEST_F(Gates, OthersAreTurnedAway) {
  Admission gate(std::move(listener), secret, world);
  constexpr std::string_view unknown = "it does not know the launch's key";
  Visitor other = visit(gate, Secret("another"));
  greet(other, Secret("another"));
  EXPECT_EQ(turned_away(gate, other), unknown);

  // A greeting that was good elsewhere, and ones of which a word was changed after its proof.
  Visitor heard = visit(gate), replayed = visit(gate);
  replayed.connection.send(FrameKind::hello, bytes_of(heard.hello));
  EXPECT_EQ(turned_away(gate, replayed), unknown);
  heard.hello.key = KeyPair().own();
  greet(heard);
  EXPECT_EQ(turned_away(gate, heard), unknown);
  Visitor moved = visit(gate);
  moved.hello.port += 1;
  greet(moved);
  EXPECT_EQ(turned_away(gate, moved), unknown);

  Visitor early = visit(gate);
  early.connection.send(FrameKind::alive, {});
  EXPECT_EQ(turned_away(gate, early), "it sent what is no greeting");
}

// Who hands a greeting on from another port has the right proof: that of who meant the other port.
TEST_F(Gates, WhoMeantAnotherPortIsTurnedAway) {
  Admission gate(std::move(listener), secret, world);
  Visitor handed_on = visit(gate);
  handed_on.hello.port = at.port() - 1u;
  handed_on.hello.proof = of_hello(secret, handed_on.banner, handed_on.hello);
  greet(handed_on);
  EXPECT_EQ(turned_away(gate, handed_on),
            fmt::format("it meant to reach port {}, and this rank listens at port {}: somebody there hands its "
                        "connections on",
                        at.port() - 1, at.port()));
}

TEST_F(Gates, WhoKnowsTheSecretAndHasNoKeysIsTurnedAway) {
  Admission gate(std::move(listener), secret, world);
  Visitor without = visit(gate);
  without.hello.key = {};
  without.hello.proof = of_hello(secret, without.banner, without.hello);
  greet(without);
  EXPECT_EQ(turned_away(gate, without), "its key for the connection is none");

  // The hello is somebody's, and what follows is not.
  Visitor other = visit(gate);
  greet(other, Secret("another"));
  other.connection.send(FrameKind::claim, bytes_of(other.claim));
  EXPECT_EQ(turned_away(gate, other), not_sealed);

  Visitor hasty = visit(gate);
  greet(hasty);
  hasty.connection.send(FrameKind::claim, bytes_of(hasty.claim));
  hasty.connection.send(FrameKind::claim, bytes_of(hasty.claim));
  EXPECT_EQ(turned_away(gate, hasty), "it did not wait for the answer");
  Visitor nameless = visit(gate);
  greet(nameless);
  nameless.connection.send(FrameKind::alive, {});
  EXPECT_EQ(turned_away(gate, nameless), "it does not say who it is");
}

TEST_F(Gates, WhoSaysNothingHasASecond) {
  Admission gate(std::move(listener), secret, world);
  const Visitor silent = visit(gate);
  usleep(1100000);
  gate.admit();
  EXPECT_EQ(gate.turned_away(), "a connection from 127.0.0.1 was turned away: it did not greet within 1 s");
}

TEST(Knocks, WhatEachPlaceAnsweredIsSaid) {
  const auto place = [](int port) { return *Endpoint::parse("10.0.0.1", static_cast<std::uint16_t>(port)); };
  Answers answers({place(7), place(8), place(9), place(11)});
  using Weight = Reason::Weight;
  for (std::size_t i = 0; i < 4; ++i) answers.note(i, {Weight::absent, "refused"});
  answers.note(1, {Weight::false_one, "a false one"});
  answers.note(1, {Weight::absent, "refused"});  // says less
  EXPECT_EQ(answers.text(), "10.0.0.1 port 8: a false one; 10.0.0.1 ports 7, 9, 11: refused");
  answers.note(1, {Weight::false_one, "refused"});
  EXPECT_EQ(answers.text(), "10.0.0.1 ports 7 to 9, 11: refused");
}

TEST(MeetingPlace, TextsAreTakenApart) {
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
  EXPECT_EQ(parse_meeting_place("x", "node1", "key").first_port, parse_meeting_place("x", "node2", "key").first_port);
}

}  // namespace
}  // namespace imbrex::runtime
