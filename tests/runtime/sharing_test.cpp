// Ranks that share a GPU: who takes which, who is too many, and what NCCL is told. None of it needs a GPU.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fixed_text.hpp"
#include "execute/cuda/refusal.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"
#include "program/nccl_environment.hpp"
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

// An environment of those variables only.
base::Environment with(std::map<std::string, std::string> variables) {
  return base::Environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(NcclEnvironment, NcclIsUsedWithoutMulticastOnly) {
  EXPECT_EQ(runtime::refusal_of_nccl(with({{"NCCL_NVLS_ENABLE", "0"}})), "");
  const std::string rest =
      ": Imbrex uses NCCL only where NVLink multicast is off; set NCCL_NVLS_ENABLE=0 before the process first uses "
      "NCCL, "
      "as `imbrex launch` does";
  EXPECT_EQ(runtime::refusal_of_nccl(with({})), "NCCL_NVLS_ENABLE is not set" + rest);
  for (const char* value : {"1", "2", "00", "0 ", "off"})
    EXPECT_EQ(runtime::refusal_of_nccl(with({{"NCCL_NVLS_ENABLE", value}})),
              std::string("NCCL_NVLS_ENABLE=") + value + rest);
  EXPECT_EQ(runtime::refusal_of_captured_sends(with({{"NCCL_GRAPH_REGISTER", "0"}})), "");
  for (const auto& environment : {with({}), with({{"NCCL_GRAPH_REGISTER", "1"}})})
    EXPECT_NE(runtime::refusal_of_captured_sends(environment).find("NCCL_GRAPH_REGISTER=0"), std::string::npos);
  std::map<std::string, std::string> all;
  for (const auto& [name, value] : runtime::nccl_variables()) all[name] = value;
  EXPECT_EQ(runtime::refusal_of_nccl(with(all)), "");
  EXPECT_EQ(runtime::refusal_of_captured_sends(with(all)), "");
}

// 0, or which of its expectations a rank does not find met.
int on_processes(const std::function<int(World&)>& body) {
  return run_processes(4, {.heap_bytes = 1 << 20, .wait_limit = 10}, body);
}

std::string refused(const std::function<void()>& call) { return refusal(call, ErrorCode::invalid_input); }

// What NCCL reads in this process, as text.
std::string nccl_environment() {
  std::set<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string_view(*entry).starts_with("NCCL_")) all.insert(*entry);
  std::string text;
  for (const std::string& entry : all) text += entry + "\n";
  return text;
}

TEST(NcclEnvironment, EveryRankRefusesWhatOneRankMayNotUse) {
  EXPECT_EQ(on_processes([](World& world) {
              if (world.rank() != 2) setenv("NCCL_NVLS_ENABLE", "0", 1);
              if (world.rank() == 2) unsetenv("NCCL_NVLS_ENABLE");
              const std::string why = refused([&] { runtime::expect_nccl_environment(world); });
              if (why.find("NCCL_NVLS_ENABLE is not set") == std::string::npos) return 11;
              if (world.rank() != 2 && !why.starts_with("rank 2")) return 12;
              setenv("NCCL_NVLS_ENABLE", "0", 1);
              setenv("NCCL_GRAPH_REGISTER", world.rank() == 1 ? "1" : "0", 1);
              if (!runtime::expect_nccl_environment(world).starts_with("rank 1 has no NCCL_GRAPH_REGISTER=0"))
                return 13;
              setenv("NCCL_GRAPH_REGISTER", "0", 1);
              return runtime::expect_nccl_environment(world).empty() ? 0 : 14;
            }),
            0);
}

TEST(NcclHosts, RanksThatShareAGpuNeedOneEach) {
  EXPECT_EQ(on_processes([](World& world) {
              const char* gpu = world.rank() < 2 ? "GPU-a" : "GPU-b";
              unsetenv("NCCL_HOSTID");
              const std::string before = nccl_environment();
              if (refused([&] { runtime::expect_own_nccl_hosts(world, gpu); }) !=
                  "ranks 0 and 1 share GPU GPU-a and rank 0 has no NCCL_HOSTID: NCCL takes no two ranks of one host on "
                  "one GPU; start them by `imbrex launch --ranks-per-gpu`, or give each its own")
                return 11;
              runtime::expect_own_nccl_hosts(world, "GPU-" + std::to_string(world.rank()));
              if (nccl_environment() != before) return 12;
              program::take_own_nccl_host(world);
              runtime::expect_own_nccl_hosts(world, gpu);
              return 0;
            }),
            0);
}

// The program sets what the library asks for, and leaves what is set.
TEST(NcclHosts, TheProgramsRanksTakeOne) {
  EXPECT_EQ(on_processes([](World& world) {
              const auto value_of = [](const char* name) {
                const char* value = std::getenv(name);
                return std::string(value == nullptr ? "" : value);
              };
              setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
              setenv("NCCL_GRAPH_REGISTER", "1", 1);
              unsetenv("NCCL_NVLS_ENABLE");
              program::set_nccl_environment();
              if (value_of("NCCL_NVLS_ENABLE") != "0" || value_of("NCCL_GRAPH_REGISTER") != "1") return 11;
              program::take_own_nccl_host(world);
              if (!value_of("NCCL_HOSTID").starts_with("imbrex-")) return 12;
              if (value_of("NCCL_SOCKET_IFNAME") != "eth0" || value_of("NCCL_NET") != "Socket") return 13;
              return value_of("NCCL_IB_DISABLE") == "1" ? 0 : 14;
            }),
            0);
}

// Operators and collectives of the library, as far as they go without a GPU.
TEST(NcclEnvironment, TheLibraryLeavesItAsItIs) {
  EXPECT_EQ(on_processes([](World& world) {
              setenv("NCCL_HOSTID", "mine", 1);
              setenv("NCCL_DEBUG", "WARN", 1);
              unsetenv("NCCL_NVLS_ENABLE");
              const std::string before = nccl_environment();
              for (const Device device : {Device::automatic, Device::cpu}) {
                OperatorOptions options;
                options.device = device;
                GemmAllToAll op{world, {.m = 8, .n = 8, .k = 8, .type = Type::fp32}, options};
                AllReduce sum(world, 64, Type::fp32, {}, device);
                if (nccl_environment() != before) return 11;
              }
              try {
                static_cast<void>(make_cuda_executor(world));
              } catch (const Error&) {  // no GPU here, or no CUDA in this build
              }
              return nccl_environment() == before ? 0 : 12;
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
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(2, {RANK_PROGRAM, "nccl-host", "GPU-a"}), 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("rank 0 has no NCCL_HOSTID"), std::string::npos);
}

TEST(NcclHosts, ALauncherSetsThemWhereRanksShareGpus) {
  const std::string test =
                        "test \"${NCCL_HOSTID##*-}\" = $IMBREX_RANK && test ${#NCCL_HOSTID} -gt 32 && "
                        "test $NCCL_SOCKET_IFNAME = ib7 && test $NCCL_IB_DISABLE = 1 && test $NCCL_NVLS_ENABLE = 0",
                    none =
                        "test -z \"$NCCL_HOSTID$NCCL_IB_DISABLE$NCCL_NET\" && test $NCCL_NVLS_ENABLE = 0 && "
                        "test $NCCL_GRAPH_REGISTER = 0";
  setenv("NCCL_SOCKET_IFNAME", "ib7", 1);
  EXPECT_EQ(launch(3, {"sh", "-c", test}, 2), 0);
  EXPECT_EQ(launch(3, {"sh", "-c", none}), 0);
  unsetenv("NCCL_SOCKET_IFNAME");
  EXPECT_EQ(launch(1, {"sh", "-c", "NCCL_NVLS_ENABLE=1 exec sh -c 'test $NCCL_NVLS_ENABLE = 1'"}), 0);
  // Ranks that the launcher has told so go on with it.
  EXPECT_EQ(launch(2, {RANK_PROGRAM, "nccl-host", "GPU-a"}, 2), 0);
  EXPECT_EQ(refusal([] { launch(2, {"true"}, 0); }, ErrorCode::invalid_input),
            "ranks_per_gpu = 0: it must be 1, or more where ranks share GPUs");
}

}  // namespace
}  // namespace imbrex::test
