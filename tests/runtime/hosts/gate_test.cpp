// How many a gate holds, and what of a process' descriptors it leaves to others.
#include "runtime/hosts/admission.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <functional>

#include "runtime/hosts/launch.hpp"

namespace imbrex::runtime {
namespace {

TEST(Admission, TextsOfAFixedSizeAreCutToIt) {
  char field[8];
  for (const std::string text : {"", "a", "1234567", "12345678", "123456789"}) {
    std::memset(field, 'x', sizeof field);
    put_text(field, text);
    EXPECT_EQ(std::string(field, sizeof field), (text.substr(0, 7) + std::string(8, 0)).substr(0, 8));
    EXPECT_EQ(text_in(field), text.substr(0, 7));
  }
  // As somebody may send it, without the zero byte.
  std::memset(field, 'x', sizeof field);
  EXPECT_EQ(text_in(field), "xxxxxxxx");
}

/// A gate, and who has come to it and says nothing.
class Visited {
 public:
  /// `most`: descriptors that the gate takes its process to have; 0: as many as it has.
  explicit Visited(rlim_t most = 0) {
    rlimit own{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &own), 0);
    const rlimit few{most == 0 ? own.rlim_cur : most, own.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    gate_.emplace(std::move(listener_), secret_, secret_.prove("world"));
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &own), 0);
  }
  void come() {
    std::string why;
    connections_.emplace_back(test::connect_tcp(at_, deadline_in(5), why));
    ASSERT_TRUE(connections_.back()) << why;
  }
  /// Takes in, as far as one turn goes. False where somebody's second was over before.
  bool admit() {
    EXPECT_TRUE(gate_->admit().empty());
    return gate_->turned_away().empty();
  }
  /// The sockets of those that are in the gate, the oldest first.
  std::vector<int> visitors() const {
    std::vector<pollfd> polls;
    gate_->add_to(polls);
    std::vector<int> sockets;
    for (std::size_t i = 1; i < polls.size(); ++i) sockets.push_back(polls[i].fd);  // behind the listener
    return sockets;
  }

 private:
  const Secret secret_{"the secret"};
  FileDescriptor listener_ = listen_tcp(*Endpoint::parse("127.0.0.1", 0));
  const Endpoint at_ = own_end(listener_);
  std::optional<Admission> gate_;
  std::vector<Connection> connections_;
};

/// Until `run` comes through before anybody's second is over, which a busy machine may hinder.
void within_a_second(const std::function<bool()>& run) {
  for (int attempt = 0; attempt < 20; ++attempt)
    if (run()) return;
  FAIL() << "this machine is too slow";
}

// A quarter of what the process may have, and no more than 32, is left to the ranks and to the rest of the program.
TEST(Admission, LeavesDescriptorsToOthers) {
  for (const auto& [most, left] : {std::pair{64, 16}, std::pair{400, 32}})
    within_a_second([most = most, left = left] {
      Visited gate(static_cast<rlim_t>(most));
      std::vector<FileDescriptor> others;
      do others.emplace_back(dup(STDERR_FILENO));
      while (others.back().get() < most - left - 8);
      std::size_t before = 0, kept = 0, dropped = 0;
      for (int i = 0; i < 12; ++i) {
        gate.come();
        if (!gate.admit()) return false;
        const std::vector<int> visitors = gate.visitors();
        const bool room = visitors.at(visitors.size() - 1) + left < most;
        EXPECT_EQ(visitors.size(), before + (room ? 1 : 0)) << "descriptor " << visitors.back() << " of " << most;
        ++(room ? kept : dropped);
        before = visitors.size();
      }
      EXPECT_GT(kept, 2u) << most;
      EXPECT_GT(dropped, 2u) << most;
      return true;
    });
}

TEST(Admission, TakesInFewATurnAndTheOldestGiveWay) {
  constexpr std::size_t most = 2 * max_world_size, few = most / 4;
  within_a_second([&] {
    Visited gate;
    for (std::size_t i = 0; i < most + 1; ++i) gate.come();
    for (std::size_t turn = 1; turn <= 4; ++turn) {
      if (!gate.admit()) return false;
      EXPECT_EQ(gate.visitors().size(), turn * few);
    }
    const int second = gate.visitors().at(1);
    if (!gate.admit()) return false;
    EXPECT_EQ(gate.visitors().size(), most);
    EXPECT_EQ(gate.visitors().at(0), second);
    return true;
  });
}

}  // namespace
}  // namespace imbrex::runtime
