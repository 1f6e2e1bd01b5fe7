// Processes that are no ranks, at the sockets where ranks meet: other users', squatters, and ranks that die on the way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>

#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/greeting.hpp"
#include "runtime/bootstrap/rendezvous.hpp"
#include "runtime/bootstrap/socket.hpp"
#include "runtime/host_world.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::runtime {
namespace {

using test::Result;
using test::spawn;
using test::Start;
using Clock = std::chrono::steady_clock;

constexpr uid_t another_user = 54321;

/// A rank of `imbrex launch`, whose key no other process can know.
Start launched(const std::string& id, int rank, double limit = 10) {
  return {{fmt::format("IMBREX_RANK={}", rank), "IMBREX_WORLD_SIZE=2", "IMBREX_RENDEZVOUS=" + id},
          {"join", "4096", std::to_string(limit)}};
}
std::string key_of_launched(const std::string& id) { return launch_key(id); }

/// A rank of torchrun, whose key everybody can guess.
Start torchrun(const std::string& id, int rank, double limit = 10) {
  return {{fmt::format("RANK={}", rank), "WORLD_SIZE=2", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=" + id},
          {"join", "4096", std::to_string(limit)}};
}
std::string key_of_torchrun(const std::string& id) {
  const std::vector<std::string> variables = torchrun(id, 0).variables;
  const base::Environment environment([&](const char* name) {
    const std::string begin = std::string(name) + '=';
    for (const std::string& variable : variables)
      if (variable.starts_with(begin)) return variable.c_str() + begin.size();
    return static_cast<const char*>(nullptr);
  });
  return find_bootstrap(environment)->key;
}

/// The name under which processes of `uid` meet.
std::string name_of(const std::string& key, uid_t uid = geteuid()) {
  const std::string own = socket_name(key, 0);
  return fmt::format("imbrex/{}/{}", uid, own.substr(own.rfind('/') + 1));
}

/// Exit code of a process that runs `body`.
class Process {
 public:
  explicit Process(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      alarm(60);
      int code = 99;
      try {
        code = body();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(code);
    }
  }
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    if (pid_ > 0) waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

bool become_another_user() { return setresuid(another_user, another_user, another_user) == 0; }

/// Root of a container may know no other user.
bool may_become_another_user() {
  return Process([] { return become_another_user() ? 0 : 1; }).wait() == 0;
}

FileDescriptor connect_to(const std::string& name) {
  FileDescriptor socket;
  for (const Deadline end = deadline_in(10); !(socket = try_connect(name)) && milliseconds_until(end) > 0;)
    usleep(1000);
  return socket;
}

Hello greeting(const std::string& key, const std::string& name) {
  Hello hello;
  hello.rank = 1;
  hello.size = 2;
  hello.pid = getpid();
  hello.heap_bytes = 4096;
  hello.challenge = 7;
  hello.proof = of_guest(Secret(key), name, hello);
  return hello;
}

/// Answer to a rank's greeting; `files`: number of descriptors that came with it.
Verdict answer_on(const FileDescriptor& socket, std::size_t& files) {
  pollfd entry{socket.get(), POLLIN, 0};
  poll(&entry, 1, 10000);
  Verdict verdict;
  std::vector<FileDescriptor> received;
  const std::size_t bytes = receive_message(socket, &verdict, sizeof verdict, &received);
  if (bytes != sizeof verdict) verdict = {0, 0, 0, {}, "no answer"};
  files = received.size();
  return verdict;
}

/// Receives one rank at `listener`, and answers as rank 0 would, with these files.
void play_host(const FileDescriptor& listener, const std::string& key, const std::string& name,
               const FileDescriptor& control, const FileDescriptor& heap) {
  pollfd entry{listener.get(), POLLIN, 0};
  poll(&entry, 1, 10000);
  const FileDescriptor guest = try_accept(listener);
  entry.fd = guest.get();
  poll(&entry, 1, 10000);
  Hello hello;
  receive_message(guest, &hello, sizeof hello);
  Verdict verdict;
  verdict.accepted = 1;
  verdict.proof = of_host(Secret(key), name, hello);
  send_message(guest, &verdict, sizeof verdict, {control.get(), heap.get()});
}

void expect_refused(const Result& result, const std::string& part) {
  EXPECT_EQ(result.code, 3) << result.text;
  EXPECT_NE(result.text.find(part), std::string::npos) << result.text << "\nexpected: " << part;
}

TEST(Strangers, AShortGreetingIsCalledShort) {
  const std::string id = random_id(), name = name_of(key_of_launched(id));
  const Process guest([&] {
    const FileDescriptor socket = connect_to(name);
    const Hello hello = greeting(key_of_launched(id), name);
    send_message(socket, &hello, sizeof hello - 8);
    usleep(300000);
    return 0;
  });
  expect_refused(
      spawn({launched(id, 0)}).front(),
      fmt::format("a process (pid {}) says {} bytes as its greeting; version {} of the rendezvous protocol has {}",
                  guest.pid(), sizeof(Hello) - 8, protocol_version, sizeof(Hello)));
}

TEST(Strangers, WhoDoesNotKnowTheKeyIsNoRank) {
  const std::string id = random_id(), name = name_of(key_of_launched(id));
  {
    const Process guest([&] {
      const FileDescriptor socket = connect_to(name);
      const Hello hello = greeting("another key", name);
      send_message(socket, &hello, sizeof hello);
      std::size_t files = 0;
      return answer_on(socket, files).accepted == 0 && files == 0 ? 0 : 1;
    });
    expect_refused(spawn({launched(id, 0)}).front(), "says that it is rank 1, but does not know the launch's key");
  }
  const FileDescriptor listener = listen_at(name);
  ASSERT_TRUE(listener);
  const Process host([&] {
    const auto segment = Segment::create(2, {.heap_bytes = 4096, .wait_limit = 1});
    play_host(listener, "another key", name, segment->control_file, segment->heap_file);
    return 0;
  });
  expect_refused(spawn({launched(id, 1)}).front(),
                 "listens at the address of rank 0, but does not know the launch's key");
}

TEST(Strangers, AHostThatKeepsItsFilesOpenToResizingIsRefused) {
  for (const bool shrunk : {false, true}) {
    const std::string id = random_id(), key = key_of_torchrun(id), name = name_of(key);
    const FileDescriptor listener = listen_at(name);
    ASSERT_TRUE(listener);
    const Process host([&] {
      const auto segment = Segment::create(2, {.heap_bytes = 4096, .wait_limit = 1});
      const FileDescriptor control(memfd_create("rogue", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      if (write(control.get(), segment->control.data(), segment->control.bytes()) < 0) return 1;
      play_host(listener, key, name, control, segment->heap_file);
      if (shrunk && ftruncate(control.get(), 0) != 0) return 1;
      usleep(500000);
      return 0;
    });
    expect_refused(spawn({torchrun(id, 1)}).front(), "a shared memory file is not sealed");
  }
}

/// Within ten seconds.
bool is_held(const std::string& name) {
  for (const Deadline end = deadline_in(10); holder_of(name).empty() && milliseconds_until(end) > 0;) usleep(1000);
  return !holder_of(name).empty();
}

/// Binds a socket of `type` to `name`, and listens or not, until it is killed.
int squat(const std::string& name, int type, bool listens) {
  const int socket = ::socket(AF_UNIX, type, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0) return 1;
  if (listens && listen(socket, 8) != 0) return 1;
  while (true) pause();
}

TEST(Strangers, WhoHoldsTheAddressIsNamed) {
  const std::string id = random_id(), name = name_of(key_of_torchrun(id));
  const Process squatter([&] { return squat(name, SOCK_SEQPACKET, false); });
  ASSERT_TRUE(is_held(name));
  const auto begin = Clock::now();
  for (const Result& result : spawn({torchrun(id, 0), torchrun(id, 1)}))
    expect_refused(result, fmt::format("somebody else, user {} (pid {}), holds the address '@{}'", geteuid(),
                                       squatter.pid(), name));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST(Strangers, SocketsOfOtherKindsDoNotDisturb) {
  const std::string id = random_id(), name = name_of(key_of_torchrun(id));
  const Process stream([&] { return squat(name, SOCK_STREAM, true); });
  const Process packets([&] { return squat(name, SOCK_DGRAM, false); });
  usleep(100000);
  EXPECT_EQ(holder_of(name), "");
  for (const Result& result : spawn({torchrun(id, 0), torchrun(id, 1)})) EXPECT_EQ(result.code, 0) << result.text;
}

TEST(Strangers, AnAddressThatIsLetGoIsTakenByRankZero) {
  const std::string id = random_id(), name = name_of(key_of_torchrun(id));
  const Process squatter([&] {
    alarm(1);
    return squat(name, SOCK_SEQPACKET, false);
  });
  ASSERT_TRUE(is_held(name));
  usleep(600000);
  for (const Result& result : spawn({torchrun(id, 0), torchrun(id, 1)})) EXPECT_EQ(result.code, 0) << result.text;
}

TEST(Strangers, AnotherUserWhoHoldsTheAddressIsNamed) {
  if (!may_become_another_user()) GTEST_SKIP() << "only root can be another user";
  const std::string id = random_id(), name = name_of(key_of_torchrun(id));
  const Process squatter([&] {
    if (!become_another_user()) return 1;
    return squat(name, SOCK_SEQPACKET, true);
  });
  ASSERT_TRUE(is_held(name));
  for (const Result& result : spawn({torchrun(id, 0), torchrun(id, 1)}))
    expect_refused(result,
                   fmt::format("somebody else, user {} (pid {}), holds the address", another_user, squatter.pid()));
}

bool may_unshare() {
  return Process([] { return unshare(CLONE_NEWUSER) == 0 ? 0 : 1; }).wait() == 0;
}

uid_t overflow_uid() {
  uid_t uid = 0;
  if (std::FILE* file = std::fopen("/proc/sys/kernel/overflowuid", "r")) {
    EXPECT_EQ(std::fscanf(file, "%u", &uid), 1);
    std::fclose(file);
  }
  return uid;
}

class UnmappedUsers : public testing::Test {
 protected:
  void SetUp() override {
    if (!may_unshare()) GTEST_SKIP() << "user namespaces are not permitted here";
  }
};

/// Every user outside has the number that the ranks inside have, so the kernel's word about it is worth nothing.
TEST_F(UnmappedUsers, AreNotThisUser) {
  for (const bool another : {false, true}) {
    if (another && !may_become_another_user()) {
      std::puts("not tried with another user: only root can be one");
      continue;
    }
    const std::string id = random_id(), key = key_of_torchrun(id), name = name_of(key, overflow_uid());
    Process guest([&] {
      if (another && !become_another_user()) return 1;
      const FileDescriptor socket = connect_to(name);
      const Hello hello = greeting(key, name);
      send_message(socket, &hello, sizeof hello);
      std::size_t files = 0;
      const Verdict verdict = answer_on(socket, files);
      if (verdict.accepted || files > 0) return 2;
      return std::string_view(verdict.message).find("cannot tell whose process") == std::string_view::npos ? 3 : 0;
    });
    Start inside = torchrun(id, 0, 1);
    inside.unmapped = true;
    expect_refused(spawn({inside}).front(),
                   fmt::format("rank 1 of 2 did not arrive within 1 s of rank 0; a process of user "
                               "{} (pid {}) was turned away",
                               overflow_uid(), guest.pid()));
    EXPECT_EQ(guest.wait(), 0) << "2: another user's process got the world's memory";
  }
}

TEST_F(UnmappedUsers, AreNotRankZeroEither) {
  const std::string id = random_id(), key = key_of_torchrun(id), name = name_of(key, overflow_uid());
  const FileDescriptor listener = listen_at(name);
  ASSERT_TRUE(listener);
  Start inside = torchrun(id, 1);
  inside.unmapped = true;
  expect_refused(spawn({inside}).front(),
                 fmt::format("cannot tell whose process listens at the address of rank 0, pid {}: "
                             "all users that this user namespace does not map read as user {}",
                             getpid(), overflow_uid()));
}

TEST_F(UnmappedUsers, OfOneNamespaceMeet) {
  const std::string id = random_id();
  Process both([&] {
    if (unshare(CLONE_NEWUSER) != 0) return 1;
    int sum = 0;
    for (const Result& result : spawn({torchrun(id, 0), torchrun(id, 1)})) {
      std::fputs(result.text.c_str(), stderr);
      sum += result.code;
    }
    return sum;
  });
  EXPECT_EQ(both.wait(), 0);
}

TEST_F(UnmappedUsers, MeetByASecret) {
  const std::string id = random_id();
  std::vector<Start> starts{launched(id, 0), launched(id, 1)};
  for (Start& start : starts) start.unmapped = true;  // each in a namespace of its own
  for (const Result& result : spawn(starts)) EXPECT_EQ(result.code, 0) << result.text;
}

TEST_F(UnmappedUsers, DoNotEndAMeetingWhoseSecretTheyDoNotKnow) {
  const std::string id = random_id(), key = key_of_launched(id), name = name_of(key, overflow_uid());
  Process guest([&] {
    become_another_user();  // where it may; outside the namespace it is somebody else in any case
    std::vector<FileDescriptor> sockets;
    for (int i = 0; i < 3; ++i) sockets.push_back(connect_to(name));
    Hello hello = greeting("another key", name);
    send_message(sockets[0], &hello, sizeof hello);
    send_message(sockets[1], &hello, sizeof hello - 8);
    hello.version = 99;
    send_message(sockets[2], &hello, sizeof hello);
    int admitted = 0;
    for (const FileDescriptor& socket : sockets) {
      std::size_t files = 0;
      admitted += answer_on(socket, files).accepted != 0 || files > 0;
    }
    return admitted;
  });
  std::vector<Start> starts{launched(id, 0), launched(id, 1)};
  for (Start& start : starts) start.unmapped = true;
  starts[1].arguments.front() = "join-late";
  for (const Result& result : spawn(starts)) EXPECT_EQ(result.code, 0) << result.text;
  EXPECT_EQ(guest.wait(), 0);
}

/// A rank that dies between the verdict and the lock that tells of its life.
TEST(LossWhileJoining, OfAGuestIsNoticedAtOnceWithLocks) {
  const std::string id = random_id(), key = key_of_launched(id), name = name_of(key);
  const Process guest([&] {
    const FileDescriptor socket = connect_to(name);
    const Hello hello = greeting(key, name);
    send_message(socket, &hello, sizeof hello);
    std::size_t files = 0;
    return answer_on(socket, files).accepted == 1 && files == 2 ? 0 : 1;
  });
  Start host = launched(id, 0);
  host.variables.push_back("IMBREX_LOSS_DETECTION=lock");
  const auto begin = Clock::now();
  expect_refused(spawn({host}).front(), fmt::format("rank 1 (pid {}) was lost", guest.pid()));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
}

TEST(LossWhileJoining, OfRankZeroIsNoticedAtOnceWithLocks) {
  const std::string id = random_id(), key = key_of_launched(id), name = name_of(key);
  const FileDescriptor listener = listen_at(name);
  ASSERT_TRUE(listener);
  const Process host([&] {
    const auto segment = Segment::create(2, {.heap_bytes = 4096, .wait_limit = 1});
    Control(segment->block(), 0).set_pid(0, getpid());
    play_host(listener, key, name, segment->control_file, segment->heap_file);
    return 0;
  });
  Start guest = launched(id, 1);
  guest.variables.push_back("IMBREX_LOSS_DETECTION=lock");
  const auto begin = Clock::now();
  expect_refused(spawn({guest}).front(), fmt::format("rank 0 (pid {}) was lost", host.pid()));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
}

}  // namespace
}  // namespace imbrex::runtime
