// Ranks that share a GPU: who takes which, who is too many, and what NCCL is told. None of it needs a GPU.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/fixed_text.hpp"
#include "execute/cuda/refusal.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "runtime/bootstrap/nccl_hosts.hpp"
#include "runtime/cuda/seats.hpp"

namespace imbrex::test {
namespace {

using runtime::Seat;

std::string refusal(const std::function<void()>& call, ErrorCode code = ErrorCode::runtime_failure) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return {};
}

TEST(Seats, ARankTakesItsGpuOrTheOnlyOne) {
  EXPECT_EQ(runtime::own_gpu(3, 4, 1, 8, false), 3);
  EXPECT_EQ(runtime::own_gpu(3, 4, 1, 1, false), 0);  // a launcher shows each its own
  for (const bool threads : {true, false}) {
    EXPECT_EQ(runtime::own_gpu(3, 4, 4, 1, threads), 0);
    EXPECT_EQ(runtime::own_gpu(3, 4, 2, 2, threads), 1);
    EXPECT_EQ(runtime::own_gpu(4, 5, 2, 3, threads), 2);
    EXPECT_EQ(runtime::own_gpu(3, 4, 64, 8, threads), 0);
  }
  EXPECT_EQ(runtime::own_gpu(3, 4, 2, 1, false), 0);
  EXPECT_EQ(refusal([] { runtime::own_gpu(3, 4, 2, 1, true); }),
            "4 ranks, 2 to a GPU, need 2 GPUs, and this process sees 1");
  EXPECT_EQ(refusal([] { runtime::own_gpu(3, 9, 2, 3, false); }),
            "9 ranks, 2 to a GPU, need 5 GPUs, and this process sees 3");
  EXPECT_EQ(refusal([] { runtime::own_gpu(0, 2, 2, 0, false); }),
            "2 ranks, 2 to a GPU, need 1 GPUs, and this process sees 0");
  EXPECT_EQ(refusal([] { runtime::own_gpu(0, 2, 0, 1, false); }, ErrorCode::invalid_input),
            "ranks_per_gpu = 0: it must be 1, or more where ranks share GPUs");
}

std::vector<Seat> seats(const std::vector<std::string>& uuids) {
  std::vector<Seat> all;
  for (const std::string& uuid : uuids) {
    Seat& seat = all.emplace_back();
    base::put_text(uuid, seat.uuid);
    base::put_text("NVIDIA H200", seat.name);
    seat.visible = 1;
  }
  return all;
}

TEST(Seats, TooManyRanksOnAGpuAreNamed) {
  const auto expect = [](const std::vector<std::string>& uuids, int ranks_per_gpu) {
    return refusal([&] { runtime::expect_seats(seats(uuids), ranks_per_gpu); });
  };
  EXPECT_EQ(expect({"a", "b", "c"}, 1), "");
  EXPECT_EQ(expect({"a", "b", "a", "b"}, 2), "");
  EXPECT_EQ(expect({"a", "a", "a"}, 64), "");
  EXPECT_EQ(expect({"b", "a", "c", "a"}, 1),
            "ranks 1 and 3 have the same GPU, NVIDIA H200 (a), and need one each; their processes see 1 and 1");
  EXPECT_EQ(expect({"b", "a", "a", "b", "a"}, 2),
            "ranks 1, 2 and 4 have the same GPU, NVIDIA H200 (a), which ranks_per_gpu = 2 gives to 2; their processes "
            "see 1");
}

// What a rank's options name, whatever its number and the others'.
TEST(Seats, ARankTakesTheGpuThatItIsGiven) {
  for (const bool threads : {true, false}) {
    EXPECT_EQ(runtime::own_gpu(0, 4, 1, 8, threads, 5), 5);
    EXPECT_EQ(runtime::own_gpu(3, 64, 1, 2, threads, 0), 0);
  }
  EXPECT_EQ(refusal([] { runtime::own_gpu(2, 4, 1, 8, false, 8); }),
            "gpu = 8: rank 2's process sees 8, numbered from 0");
  EXPECT_EQ(refusal([] { runtime::own_gpu(2, 4, 1, 0, false, -1); }),
            "gpu = -1: rank 2's process sees 0, numbered from 0");
}

TEST(Seats, AGivenGpuIsLookedAtAlone) {
  GpuSurvey survey;
  for (const int major : {9, 7})
    survey.gpus.push_back(
        {.name = "Some GPU", .uuid = "", .major = major, .maps_memory = true, .exports_memory = false});
  survey.links.assign(4, GpuLink::none);
  EXPECT_EQ(cuda::refusal_of_given_gpu(survey, 0, false), "");
  EXPECT_EQ(cuda::refusal_of_given_gpu(survey, 0, true),
            "GPU 0 (Some GPU) does not pass memory between processes as file descriptors; ranks can be threads");
  EXPECT_NE(cuda::refusal_of_given_gpu(survey, 1, false).find("GPU 1 (Some GPU) has compute capability 7.0"),
            std::string::npos);
  EXPECT_EQ(cuda::refusal_of_given_gpu(survey, 2, false), "gpu = 2: this process sees 2, numbered from 0");
  EXPECT_EQ(cuda::refusal_of_given_gpu(survey, -1, false), "gpu = -1: this process sees 2, numbered from 0");
}

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// 0, or which of its expectations a rank does not find met.
int on_processes(const std::function<int(World&)>& body) {
  return run_processes(4, {.heap_bytes = 1 << 20, .wait_limit = 10}, body);
}

TEST(NcclHosts, ProcessesThatShareAGpuHaveOneEach) {
  const int code = on_processes([](World& world) {
    runtime::take_own_nccl_host(world, world.rank() < 2 ? "GPU-a" : "GPU-b");
    std::string own = value_of("NCCL_HOSTID");
    own.resize(63);
    std::vector<std::array<char, 64>> all(4);
    std::array<char, 64> mine{};
    own.copy(mine.data(), own.size());
    world.all_gather(&mine, all.data(), sizeof mine);
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < a; ++b)
        if (all[static_cast<std::size_t>(a)] == all[static_cast<std::size_t>(b)]) return 11;
    if (!own.starts_with("imbrex-")) return 12;
    if (value_of("NCCL_SOCKET_IFNAME") != "lo" || value_of("NCCL_NET") != "Socket") return 13;
    if (value_of("NCCL_IB_DISABLE") != "1" || value_of("NCCL_NVLS_ENABLE") != "0") return 14;
    // A second executor changes nothing.
    const std::string before = value_of("NCCL_HOSTID");
    runtime::take_own_nccl_host(world, "GPU-a");
    return value_of("NCCL_HOSTID") == before ? 0 : 15;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(value_of("NCCL_HOSTID"), "");
}

TEST(NcclHosts, RanksWithAGpuEachKeepTheirHost) {
  EXPECT_EQ(on_processes([](World& world) {
              runtime::take_own_nccl_host(world, "GPU-" + std::to_string(world.rank()));
              return value_of("NCCL_HOSTID").empty() && value_of("NCCL_SOCKET_IFNAME").empty() ? 0 : 11;
            }),
            0);
}

TEST(NcclHosts, WhatIsSetStays) {
  EXPECT_EQ(on_processes([](World& world) {
              setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
              runtime::take_own_nccl_host(world, "GPU-a");
              return value_of("NCCL_SOCKET_IFNAME") == "eth0" && !value_of("NCCL_HOSTID").empty() ? 0 : 11;
            }),
            0);
}

// In programs that start with the variable set.
TEST(NcclHosts, RanksOfOneGpuAndOneHostAreRefused) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(2, {"sh", "-c", std::string("NCCL_HOSTID=mine exec ") + RANK_PROGRAM + " nccl-host GPU-a"}), 2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("ranks 0 and 1 share GPU GPU-a and have the same NCCL_HOSTID, 'mine': NCCL takes no two ranks of "
                      "one host on one GPU"),
            std::string::npos)
      << said;
  EXPECT_EQ(
      launch(2, {"sh", "-c", std::string("NCCL_HOSTID=mine exec ") + RANK_PROGRAM + " nccl-host GPU-$IMBREX_RANK"}), 0);
  EXPECT_EQ(launch(2, {RANK_PROGRAM, "nccl-host", "GPU-a"}), 0);
}

TEST(NcclHosts, ALauncherSetsThemWhereRanksShareGpus) {
  const std::string test =
                        "test \"${NCCL_HOSTID##*-}\" = $IMBREX_RANK && test ${#NCCL_HOSTID} -gt 32 && "
                        "test $NCCL_SOCKET_IFNAME = ib7 && test $NCCL_IB_DISABLE = 1 && test $NCCL_NVLS_ENABLE = 0",
                    none = "test -z \"$NCCL_HOSTID$NCCL_IB_DISABLE$NCCL_NET\"";
  setenv("NCCL_SOCKET_IFNAME", "ib7", 1);
  EXPECT_EQ(launch(3, {"sh", "-c", test}, 2), 0);
  EXPECT_EQ(launch(3, {"sh", "-c", none}), 0);
  unsetenv("NCCL_SOCKET_IFNAME");
  // Ranks that the launcher has told so go on with it.
  EXPECT_EQ(launch(2, {RANK_PROGRAM, "nccl-host", "GPU-a"}, 2), 0);
  EXPECT_EQ(refusal([] { launch(2, {"true"}, 0); }, ErrorCode::invalid_input),
            "ranks_per_gpu = 0: it must be 1, or more where ranks share GPUs");
}

}  // namespace
}  // namespace imbrex::test
