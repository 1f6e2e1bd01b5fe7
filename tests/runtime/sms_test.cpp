// SMs that kernels leave to others: how many blocks that makes, and what is refused. None of it needs a GPU.
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fixed_text.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/seats.hpp"

namespace imbrex::test {
namespace {

using runtime::clusters_beside;
using runtime::collective_blocks;
using runtime::look_up_blocks;
using runtime::Seat;

std::string refusal_of_sms(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
    return error.what();
  }
  return {};
}

TEST(SmsForOthers, ClustersTakeWhatIsLeft) {
  EXPECT_EQ(clusters_beside(132, 1, 132, 16), 116);
  EXPECT_EQ(clusters_beside(66, 2, 132, 16), 58);
  EXPECT_EQ(clusters_beside(66, 2, 132, 17), 57);  // one SM is idle
  EXPECT_EQ(clusters_beside(60, 2, 132, 8), 60);   // fewer run at once than there are pairs of SMs
  EXPECT_EQ(clusters_beside(66, 2, 132, 131), 0);
  EXPECT_EQ(clusters_beside(132, 1, 132, 131), 1);
  EXPECT_EQ(clusters_beside(132, 1, 132, INT_MAX), 0);
  EXPECT_EQ(clusters_beside(0, 2, 132, 16), 0);  // a kernel that does not run here
  // Two blocks to an SM spread over all SMs first.
  EXPECT_EQ(clusters_beside(216, 1, 108, 0), 216);
  EXPECT_EQ(clusters_beside(216, 1, 108, 8), 100);
}

TEST(SmsForOthers, NoGridTakesMoreThanWhatIsLeft) {
  for (const int sms : {2, 16, 108, 114, 132})
    for (int k = 1; k < sms; ++k) {
      for (const int cluster : {1, 2})
        EXPECT_LE(cluster * clusters_beside(2 * sms / cluster, cluster, sms, k), sms - k) << sms << ' ' << k;
      for (const int ranks : {1, 2, 4}) {
        if (sms - k < ranks) continue;
        EXPECT_GE(collective_blocks(sms, ranks, k), 1);
        EXPECT_LE(ranks * collective_blocks(sms, ranks, k), sms - k) << sms << ' ' << k << ' ' << ranks;
        EXPECT_GE(look_up_blocks(sms, ranks, k), 1);
        EXPECT_LE(ranks * look_up_blocks(sms, ranks, k), sms - k) << sms << ' ' << k << ' ' << ranks;
      }
    }
}

TEST(SmsForOthers, NoneLeavesAllAsItWas) {
  EXPECT_EQ(collective_blocks(132, 1, 0), 132);
  EXPECT_EQ(collective_blocks(132, 4, 0), 16);
  EXPECT_EQ(collective_blocks(4, 4, 0), 1);
  EXPECT_EQ(look_up_blocks(132, 1, 0), 0);
  EXPECT_EQ(look_up_blocks(132, 4, 0), 99);
}

std::vector<Seat> seats(const std::vector<int>& sms) {
  std::vector<Seat> all;
  for (const int count : sms) {
    Seat& seat = all.emplace_back();
    base::put_text("GPU-a", seat.uuid);
    base::put_text("NVIDIA H200", seat.name);
    seat.sms = count;
  }
  return all;
}

TEST(SmsForOthers, AGpuHasMore) {
  const auto expect = [](const std::vector<int>& sms, int ranks_per_gpu, int k) {
    return refusal_of_sms([&] { runtime::expect_sms(seats(sms), ranks_per_gpu, k); });
  };
  EXPECT_EQ(expect({132, 132}, 1, 131), "");
  EXPECT_EQ(expect({132, 132}, 4, 128), "");
  EXPECT_EQ(expect({0}, 1, 0), "");
  EXPECT_EQ(expect({132, 114}, 1, 114),
            "sms_for_others = 114: rank 1's GPU, NVIDIA H200 (GPU-a), has 114 SMs, and Imbrex' kernels need 1 of them, "
            "one for each rank that has it");
  EXPECT_EQ(expect({132}, 4, 129),
            "sms_for_others = 129: rank 0's GPU, NVIDIA H200 (GPU-a), has 132 SMs, and Imbrex' kernels need 4 of them, "
            "one for each rank that has it");
}

TEST(SmsForOthers, AreTheSameOnEveryRank) {
  EXPECT_EQ(refusal_of_sms([] { runtime::expect_same_sms(std::vector{7}); }), "");
  EXPECT_EQ(refusal_of_sms([] { runtime::expect_same_sms(std::vector{7, 7, 7}); }), "");
  EXPECT_EQ(refusal_of_sms([] {
              runtime::expect_same_sms(std::vector{16, 16, 32, 8});
            }),
            "sms_for_others is 16 on rank 0 and 32 on rank 2: it must be the same on every rank");
}

// What each rank of a world gets whose ranks ask for so many.
std::vector<std::string> outcomes(const std::vector<int>& asked) {
  const UniqueId id = World::make_unique_id();
  std::vector<std::string> all(asked.size());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < asked.size(); ++rank)
    threads.emplace_back([&, rank] {
      all[rank] = refusal_of_sms([&] {
        const WorldOptions options{.heap_bytes = 1 << 16, .wait_limit = 20, .sms_for_others = asked[rank]};
        const auto world = World::connect(id, static_cast<int>(rank), static_cast<int>(asked.size()), options);
        EXPECT_EQ(world->options().sms_for_others, asked[rank]);
        world->barrier();
      });
    });
  threads.clear();
  return all;
}

TEST(SmsForOthers, AWorldComparesThem) {
  for (const int k : {0, 16}) EXPECT_EQ(outcomes({k, k, k}), std::vector<std::string>(3));
  const std::string differ = "sms_for_others is 0 on rank 0 and 16 on rank 1: it must be the same on every rank";
  EXPECT_EQ(outcomes({0, 16, 0}), std::vector<std::string>(3, differ));
}

TEST(SmsForOthers, AreNotNegative) {
  const std::string negative = "sms_for_others = -1: it must be 0 or more";
  EXPECT_EQ(outcomes({-1}), std::vector{negative});
  const WorldOptions options{.heap_bytes = 1 << 16, .wait_limit = 20, .sms_for_others = -1};
  EXPECT_EQ(refusal_of_sms([&] { run_threads(2, options, [](World&) { return 0; }); }), negative);
}

}  // namespace
}  // namespace imbrex::test
