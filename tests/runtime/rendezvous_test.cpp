// Processes that do not fit together, each with variables of its own.
#include "runtime/bootstrap/rendezvous.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include <fmt/format.h>

#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/socket.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::test {
namespace {

using runtime::random_id;
using Clock = std::chrono::steady_clock;

Start member(const std::string& id, int rank, int size, double limit = 10, std::size_t heap = 4096) {
  return {{fmt::format("IMBREX_RANK={}", rank), fmt::format("IMBREX_WORLD_SIZE={}", size), "IMBREX_RENDEZVOUS=" + id},
          {"join", std::to_string(heap), std::to_string(limit)}};
}

/// All end soon, with code 3 and a message with every one of `parts`.
void expect_refusal(const std::vector<Start>& starts, const std::vector<std::string>& parts) {
  const auto begin = Clock::now();
  for (const Result& result : spawn(starts)) {
    EXPECT_EQ(result.code, 3);
    for (const std::string& part : parts) EXPECT_NE(result.text.find(part), std::string::npos) << result.text;
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(childless());
}

TEST(Rendezvous, MembersThatFitMeet) {
  const std::string id = random_id();
  for (const Result& result : spawn({member(id, 0, 3), member(id, 1, 3), member(id, 2, 3)}))
    EXPECT_EQ(result.code, 0) << result.text;
}

TEST(Rendezvous, MeetsByTheVariablesOfOtherLaunchers) {
  const std::string id = random_id();
  const auto code = [&](const auto& variables) {
    std::vector<Start> starts;
    for (int rank = 0; rank < 3; ++rank) starts.push_back({variables(rank), {"join", "4096", "10"}});
    int sum = 0;
    for (const Result& result : spawn(starts)) sum += result.code;
    return sum;
  };
  EXPECT_EQ(code([&](int rank) -> std::vector<std::string> {
              return {fmt::format("RANK={}", rank), "WORLD_SIZE=3",      "LOCAL_WORLD_SIZE=3",
                      "MASTER_ADDR=localhost",      "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=" + id};
            }),
            0);
  EXPECT_EQ(code([&](int rank) -> std::vector<std::string> {
              return {fmt::format("OMPI_COMM_WORLD_RANK={}", rank), "OMPI_COMM_WORLD_SIZE=3", "PMIX_NAMESPACE=" + id};
            }),
            0);
  EXPECT_EQ(code([&](int rank) -> std::vector<std::string> {
              return {fmt::format("SLURM_PROCID={}", rank), "SLURM_NTASKS=3", "SLURM_JOB_ID=" + id, "SLURM_STEP_ID=0"};
            }),
            0);
}

TEST(Rendezvous, TwoClaimOneRank) {
  const std::string id = random_id();
  expect_refusal({member(id, 0, 4), member(id, 1, 4), member(id, 2, 4), member(id, 2, 4)},
                 {"two processes claim rank 2 (pid "});
}

TEST(Rendezvous, TwoClaimRankZero) {
  const std::string id = random_id();
  expect_refusal({member(id, 0, 3), member(id, 0, 3), member(id, 1, 3)}, {"two processes claim rank 0 (pid "});
}

TEST(Rendezvous, SizesDiffer) {
  const std::string id = random_id();
  expect_refusal({member(id, 0, 3), member(id, 1, 3), member(id, 2, 5)},
                 {"rank 2 (pid ", "says that the world has 5 ranks, rank 0 says 3"});
}

TEST(Rendezvous, HeapsDiffer) {
  const std::string id = random_id();
  expect_refusal({member(id, 0, 2, 10, 4096), member(id, 1, 2, 10, 8192)},
                 {"rank 1 (pid ", "heap of 8192 bytes, rank 0 for 4096"});
}

TEST(Rendezvous, ARankIsMissing) {
  const std::string id = random_id();
  expect_refusal({member(id, 0, 4, 0.5), member(id, 2, 4, 0.5)}, {"ranks 1 and 3 of 4 did not arrive within 0.5 s"});
}

TEST(Rendezvous, RankZeroIsMissing) {
  const std::string id = random_id();
  expect_refusal({member(id, 1, 3, 0.5), member(id, 2, 3, 0.5)}, {"rank 0 did not arrive within 0.5 s of rank "});
}

TEST(Rendezvous, RankZeroIsOutOfDescriptors) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer that runs beside this one asks whether an object is one through a pipe";
#endif
  const std::string id = random_id();
  auto starts = std::vector<Start>{member(id, 0, 2), member(id, 1, 2)};
  starts[0].arguments.front() = "join-full";
  const std::vector<Result> results = spawn(starts);
  EXPECT_EQ(results[0].code, 3);
  EXPECT_EQ(results[0].text, "cannot accept a connection: Too many open files\n");
  EXPECT_EQ(results[1].code, 3);
  EXPECT_EQ(results[1].text, "rank 0 ended before the world was complete\n");
  // More ranks than a process may have descriptors cannot even be waited for.
  Start alone = member(random_id(), 0, 32);
  alone.arguments.front() = "join-full";
  const Result result = spawn({alone}).front();
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.text, "rank 0 cannot wait for the others: Invalid argument\n");
}

TEST(Rendezvous, StrangersDoNotDisturb) {
  // A connection that says nothing, and one that says nonsense, while the world meets at that socket.
  const std::string id = random_id();
  const std::string name = runtime::socket_name(runtime::launch_key(id), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    std::vector<runtime::FileDescriptor> sockets;
    const auto end = runtime::deadline_in(10);
    while (sockets.size() < 2 && runtime::milliseconds_until(end) > 0)
      if (auto socket = runtime::try_connect(name)) sockets.push_back(std::move(socket));
    if (sockets.size() == 2) runtime::send_message(sockets[0], "nonsense nonsense nonsense nonsense nonsense", 44);
    usleep(300000);
    _exit(sockets.size() == 2 ? 0 : 1);
  }
  auto starts = std::vector<Start>{member(id, 0, 2), member(id, 1, 2)};
  starts[1].arguments = {"join-late", "4096", "10"};
  for (const Result& result : spawn(starts)) EXPECT_EQ(result.code, 0) << result.text;
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Rendezvous, NothingIsLeftOfTheSocket) {
  const std::string id = random_id();
  const std::string name = runtime::socket_name(runtime::launch_key(id), 0);
  {
    const auto taken = runtime::listen_at(name);
    EXPECT_TRUE(taken);
    EXPECT_FALSE(runtime::listen_at(name));
  }
  for (const Result& result : spawn({member(id, 0, 2), member(id, 1, 2)})) EXPECT_EQ(result.code, 0) << result.text;
  EXPECT_TRUE(runtime::listen_at(name));
}

}  // namespace
}  // namespace imbrex::test
