#include "base/files/file.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <regex>
#include <set>
#include <thread>
#include <vector>

#include "base/npy_files.hpp"
#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/npy.hpp"

namespace imbrex::base {
namespace {

namespace fs = std::filesystem;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;
using enum NewFile::Unborn;

std::set<std::string> names_in(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.insert(entry.path().filename().string());
  return names;
}

void write_named(const std::string& path, std::string_view text, NewFile::Unborn unborn = named) {
  NewFile file(path, unborn);
  file.write(text.data(), text.size());
  file.appear();
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status;
}

unsigned mode_of(const std::string& path) { return status_of(path).st_mode & 07777; }

/// The Error of `action`; fails where there is none.
std::optional<Error> error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return std::nullopt;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  mode_t before_;
};

/// A child process that runs `body`, which must not return before it is killed.
class Child {
 public:
  explicit Child(const std::function<void(int ready)>& body) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      body(ends[1]);
      ::_exit(99);
    }
    ::close(ends[1]);
    ready_ = ends[0];
  }
  ~Child() { ::close(ready_); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Waits until it said that it is ready, or for its end and that of all its children: then false.
  bool wait_ready() const {
    char byte;
    return ::read(ready_, &byte, 1) == 1;
  }
  void kill(int signal) const { ::kill(pid_, signal); }
  int wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return status;
  }

 private:
  pid_t pid_;
  int ready_;
};

void say(int ready) { static_cast<void>(!::write(ready, "x", 1)); }

TEST(File, AppearsWholeAndOnce) {
  for (const auto unborn : {nameless, named}) {
    TemporaryFolder folder;
    {
      NewFile file(folder.file("x"), unborn);
      file.write("whole", 5);
      for (const std::string& name : names_in(folder)) EXPECT_EQ(name.find("x"), name.find("imbrex") + 5) << name;
      EXPECT_FALSE(fs::exists(folder.file("x")));
      file.appear();
    }
    EXPECT_EQ(read_bytes(folder.file("x")), "whole");
    write_named(folder.file("x"), "another", unborn);
    EXPECT_EQ(read_bytes(folder.file("x")), "another");
    EXPECT_EQ(names_in(folder), std::set<std::string>{"x"});
  }
}

TEST(File, WhatIsNotFinishedLeavesNothing) {
  for (const auto unborn : {nameless, named}) {
    TemporaryFolder folder;
    write_bytes(folder.file("x"), "before");
    try {
      NewFile file(folder.file("x"), unborn);
      file.write("half", 4);
      throw 1;
    } catch (int) {
    }
    EXPECT_EQ(names_in(folder), std::set<std::string>{"x"});
    EXPECT_EQ(read_bytes(folder.file("x")), "before");
  }
}

TEST(File, TemporaryNamesCannotBeGuessed) {
  TemporaryFolder folder;
  std::set<std::string> seen;
  for (int i = 0; i < 20; ++i) {
    const NewFile one(folder.file("x"), named), other(folder.file("x"), named);
    const std::set<std::string> names = names_in(folder);
    EXPECT_EQ(names.size(), 2u);
    for (const std::string& name : names) {
      EXPECT_TRUE(std::regex_match(name, std::regex("\\.imbrex-[0-9a-f]{32}\\.partial"))) << name;
      EXPECT_TRUE(seen.insert(name).second) << name;
    }
  }
}

TEST(File, PermissionsAreTheUmasksOrTheOldFiles) {
  const Umask mask(027);
  for (const auto unborn : {nameless, named})
    for (const unsigned mode : {0u, 0600u, 0444u, 0666u, 0755u, 04755u}) {
      TemporaryFolder folder;
      if (mode != 0) {
        write_bytes(folder.file("x"), "before");
        ASSERT_EQ(::chmod(folder.file("x").c_str(), mode), 0);
      }
      write_named(folder.file("x"), "after", unborn);
      EXPECT_EQ(mode_of(folder.file("x")), mode == 0 ? 0640u : mode & 0777) << std::oct << mode;
    }
}

TEST(File, AnotherUsersFileIsReplacedAndGrantsNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to other users";
  const Umask mask(022);
  for (const auto& [mode, becomes] : {std::pair{0666u, 0644u}, {0640u, 0640u}, {0u, 0600u}, {04777u, 0644u}}) {
    TemporaryFolder folder;
    write_bytes(folder.file("x"), "theirs");
    ASSERT_EQ(::chown(folder.file("x").c_str(), 12345, 12345), 0);
    ASSERT_EQ(::chmod(folder.file("x").c_str(), mode), 0);
    fs::create_hard_link(folder.file("x"), folder.file("kept"));
    write_file(folder.file("x"), "mine");
    EXPECT_EQ(status_of(folder.file("x")).st_uid, 0u);
    EXPECT_EQ(mode_of(folder.file("x")), becomes) << std::oct << mode;
    EXPECT_EQ(read_bytes(folder.file("kept")), "theirs");
  }
}

TEST(File, ALinkIsFollowedOnlyWhereTheUserNamedIt) {
  TemporaryFolder folder;
  write_bytes(folder.file("target"), "a longer text than the next");
  fs::create_symlink("target", folder.file("link"));
  write_file(folder.file("link"), "through");
  EXPECT_EQ(read_bytes(folder.file("target")), "through");
  EXPECT_TRUE(fs::is_symlink(folder.file("link")));
  write_npy(folder.file("link"), 1, 1, std::vector<float>(1));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder.file("link"))));
  EXPECT_EQ(read_bytes(folder.file("target")), "through");
  EXPECT_EQ(names_in(folder), (std::set<std::string>{"link", "target"}));

  fs::create_symlink("absent", folder.file("dangling"));
  const auto error = error_of([&] { write_file(folder.file("dangling"), "x"); });
  EXPECT_EQ(error->code(), ErrorCode::invalid_input);
  EXPECT_THROW(expect_writable(folder.file("dangling")), Error);
  EXPECT_FALSE(fs::exists(folder.file("absent")));
}

TEST(File, AnotherUsersLinksAndPipesAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to other users";
  for (const unsigned mode : {01777u, 0775u}) {
    TemporaryFolder folder;
    ASSERT_EQ(::chmod(folder.path().c_str(), mode), 0);
    write_bytes(folder.file("victim"), "mine");
    fs::create_symlink("victim", folder.file("link"));
    ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0666), 0);
    for (const char* name : {"link", "pipe"}) {
      ASSERT_EQ(::lchown(folder.file(name).c_str(), 12345, 12345), 0);
      for (const auto& action : {std::function<void()>([&] { write_file(folder.file(name), "x"); }),
                                 std::function<void()>([&] { expect_writable(folder.file(name)); })}) {
        const auto error = error_of(action);
        EXPECT_EQ(error->code(), ErrorCode::invalid_input);
        EXPECT_NE(std::string(error->what()).find("another user's"), std::string::npos) << error->what();
      }
      write_npy(folder.file(name), 1, 1, std::vector<float>(1));  // replaces it
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder.file(name))));
    }
    EXPECT_EQ(read_bytes(folder.file("victim")), "mine");
  }
  // Where no other user may write, the owner of a device or a link was trusted by the folder's owner.
  TemporaryFolder folder;
  write_bytes(folder.file("target"), "");
  fs::create_symlink("target", folder.file("link"));
  ASSERT_EQ(::lchown(folder.file("link").c_str(), 12345, 12345), 0);
  write_file(folder.file("link"), "x");
  EXPECT_EQ(read_bytes(folder.file("target")), "x");
}

TEST(File, APipeIsWrittenTo) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = read_bytes(folder.file("pipe")); });
  const std::string sent(1 << 20, 'x');
  write_file(folder.file("pipe"), sent);
  reader.join();
  EXPECT_EQ(got, sent);
}

TEST(File, ErrorsSayWhoseFaultItIs) {
  TemporaryFolder folder;
  fs::create_directory(folder.file("folder"));
  write_bytes(folder.file("file"), "");
  for (const std::string& path : {folder.file("no/x"), folder.file("folder"), folder.file("folder/"),
                                  folder.file("file/x"), folder.file(std::string(300, 'n'))}) {
    for (const auto& action :
         {std::function<void()>([&] { write_file(path, "x"); }), std::function<void()>([&] { expect_writable(path); }),
          std::function<void()>([&] { write_npy(path, 1, 1, std::vector<float>(1)); }),
          std::function<void()>([&] { expect_npy_writable(path); })}) {
      const auto error = error_of(action);
      EXPECT_EQ(error->code(), ErrorCode::invalid_input) << error->what();
      EXPECT_NE(std::string(error->what()).find("'" + path + "'"), std::string::npos) << error->what();
    }
  }
  EXPECT_EQ(names_in(folder), (std::set<std::string>{"file", "folder"}));
  const auto full = error_of([&] { write_file("/dev/full", "x"); });
  EXPECT_EQ(full->code(), ErrorCode::runtime_failure);
  EXPECT_STREQ(full->what(), "'/dev/full' cannot be written: No space left on device");
  EXPECT_NO_THROW(expect_writable("/dev/full"));
}

TEST(File, TheLimitOnSizesIsAnErrorAndNoSignal) {
  for (const auto unborn : {nameless, named}) {
    TemporaryFolder folder;
    write_bytes(folder.file("x"), "before");
    const Child child([&](int) {
      const rlimit limit{1000, 1000};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      const std::string text(2000, 'x');
      try {
        write_named(folder.file("x"), text, unborn);
      } catch (const Error& error) {
        const bool names = std::string(error.what()).find(folder.file("x")) != std::string::npos;
        ::_exit(names && error.code() == ErrorCode::runtime_failure ? 0 : 2);
      }
      ::_exit(1);
    });
    const int status = child.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(names_in(folder), std::set<std::string>{"x"});
    EXPECT_EQ(read_bytes(folder.file("x")), "before");
  }
}

TEST(File, ASignalThatEndsTheProcessLeavesNothing) {
  for (const auto unborn : {nameless, named})
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
      TemporaryFolder folder;
      const Child child([&](int ready) {
        for (const int ends : {SIGTERM, SIGINT, SIGHUP}) ::signal(ends, SIG_DFL);  // nohup's, for one
        NewFile one(folder.file("x"), unborn), other(folder.file("y"), unborn);
        one.write("half", 4);
        say(ready);
        for (;;) ::pause();
      });
      ASSERT_TRUE(child.wait_ready());
      EXPECT_EQ(names_in(folder).size(), unborn == named ? 2u : 0u);
      child.kill(signal);
      const int status = child.wait();
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
      EXPECT_EQ(names_in(folder), std::set<std::string>{});
    }
}

TEST(File, AParentsEndLeavesNothing) {
  TemporaryFolder folder;
  const Child parent([&](int ready) {
    ::signal(SIGTERM, SIG_DFL);
    if (::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      NewFile file(folder.file("x"), named);
      say(ready);
      for (;;) ::pause();
    }
    for (;;) ::pause();
  });
  ASSERT_TRUE(parent.wait_ready());
  EXPECT_EQ(names_in(folder).size(), 1u);
  parent.kill(SIGKILL);
  parent.wait();
  EXPECT_FALSE(parent.wait_ready());  // the child has ended too
  EXPECT_EQ(names_in(folder), std::set<std::string>{});
}

TEST(File, WhatWasAskedOfAParentsEndIsKept) {
  TemporaryFolder folder;
  ASSERT_EQ(::prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
  write_named(folder.file("x"), "x");
  int signal = 0;
  ::prctl(PR_GET_PDEATHSIG, &signal);
  ::prctl(PR_SET_PDEATHSIG, 0);
  EXPECT_EQ(signal, SIGKILL);
}

volatile sig_atomic_t handled = 0;

TEST(File, SignalsThatTheProgramHandlesAreItsOwn) {
  TemporaryFolder folder;
  struct sigaction own {
  }, before{}, now{};
  own.sa_handler = [](int) { handled = handled + 1; };
  ::sigaction(SIGTERM, &own, &before);
  {
    NewFile file(folder.file("x"), named);
    ::raise(SIGTERM);
    EXPECT_EQ(handled, 1);
    file.appear();
  }
  ::sigaction(SIGTERM, &before, nullptr);
  EXPECT_TRUE(fs::exists(folder.file("x")));
  { NewFile file(folder.file("y"), named); }
  ::sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, before.sa_handler);
}

TEST(File, AForkedChildsEndLeavesItsParentsFileAlone) {
  TemporaryFolder folder;
  NewFile file(folder.file("x"), named);
  file.write("whole", 5);
  const Child child([](int ready) {
    say(ready);
    for (;;) ::pause();
  });
  ASSERT_TRUE(child.wait_ready());
  child.kill(SIGTERM);
  child.wait();
  EXPECT_EQ(names_in(folder).size(), 1u);
  file.appear();
  EXPECT_EQ(read_bytes(folder.file("x")), "whole");
}

TEST(File, ThreadsThatAreEndedAtAnyMomentLeaveNothing) {
  for (int round = 0; round < 60; ++round) {
    TemporaryFolder folder;
    const Child child([&](int ready) {
      ::signal(SIGTERM, SIG_DFL);
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t)
        threads.emplace_back([&folder, t] {
          for (;;) write_named(folder.file(t % 2 ? "x" : "y"), std::string(100, 'a'), t < 2 ? named : nameless);
        });
      say(ready);
      for (std::thread& thread : threads) thread.join();
    });
    ASSERT_TRUE(child.wait_ready());
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + 137 * round));
    child.kill(SIGTERM);
    const int status = child.wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
    for (const std::string& name : names_in(folder)) {
      EXPECT_TRUE(name == "x" || name == "y") << name;
      EXPECT_EQ(read_bytes(folder.file(name)), std::string(100, 'a'));
    }
  }
}

TEST(File, OfManyWritersOneWins) {
  TemporaryFolder folder;
  write_file(folder.file("x"), std::string(50000, '0'));
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      const std::string text = read_bytes(folder.file("x"));
      ASSERT_EQ(text, std::string(50000, text.empty() ? '?' : text[0]));
    }
  });
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t)
    writers.emplace_back([&folder, t] {
      for (int i = 0; i < 25; ++i)
        write_named(folder.file("x"), std::string(50000, static_cast<char>('a' + t)), t % 2 ? named : nameless);
    });
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_EQ(names_in(folder), std::set<std::string>{"x"});
}

}  // namespace
}  // namespace imbrex::base
