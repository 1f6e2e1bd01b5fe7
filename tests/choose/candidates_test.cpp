// Plans worth a prediction or a measurement.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <utility>

#include "choose/choose.hpp"
#include "choose/gpu_candidates.hpp"
#include "execute/cuda/refusal.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/ops.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// What the published grids ask for, from one row on.
TEST(GpuCandidates, CoverTheGrid) {
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (std::int64_t m : {1, 16, 64, 128, 256, 512, 1024, 2048, 3000, 4096, 8192, 16384}) {
      if (m == 1 && op != Operator::gemm_all_reduce) continue;
      const Problem p{op, m, 384, 256, 4, Type::bf16};
      EXPECT_NO_THROW(validate(p));
      for (const plan::Candidate& c : choose::gpu_candidates(p))
        EXPECT_EQ(cuda::refusal_of_plan(make_plan(p, c.strategy, c.knobs)), "")
            << test::describe({p, c.strategy, c.knobs});
    }
}

// A ring is NCCL's: knobs that ask for stores leave it out, unless it is asked for, too.
TEST(Candidates, KnobsThatStoreLeaveRingsOut) {
  const Problem p{Operator::all_gather_gemm, 512, 512, 512, 4, Type::bf16};
  const Machine machine = load_machine("4xh200");
  const auto has_ring = [&](Transport transport) {
    const auto list = choose::candidates(p, machine, {}, Knobs{.transport = transport});
    return std::any_of(list.begin(), list.end(), [](const auto& c) { return c.strategy == Strategy::decomposed; });
  };
  EXPECT_TRUE(has_ring(Transport::push));
  EXPECT_FALSE(has_ring(Transport::store));
  EXPECT_THROW(choose::candidates(p, machine, Strategy::decomposed, Knobs{.transport = Transport::store}), Error);
}

// Neither several hosts nor codes are for plans that reach into peers' memory.
TEST(Candidates, KnobsOfSeveralHostsOrACodecLeaveFusedPlansOut) {
  const Problem p{Operator::gemm_reduce_scatter, 512, 512, 512, 4, Type::bf16};
  const Machine machine = load_machine("4xh200");
  const auto strategies = [&](const Knobs& knobs) {
    std::set<Strategy> found;
    for (const plan::Candidate& c : choose::candidates(p, machine, {}, knobs)) found.insert(c.strategy);
    return found;
  };
  EXPECT_TRUE(strategies({}).contains(Strategy::fused));
  Knobs hosts, quantized;
  hosts.nodes = 2;
  quantized.codec = parse_codec_pair("int8");
  for (const Knobs& knobs : {hosts, quantized}) {
    const std::set<Strategy> found = strategies(knobs);
    EXPECT_FALSE(found.contains(Strategy::fused));
    EXPECT_TRUE(found.contains(Strategy::sequential) && found.contains(Strategy::decomposed));
  }
}

// As on PCIe: nothing that stores to peers is a candidate, and what insists is refused with the reason.
TEST(Candidates, MachinesWithoutPeerAccessRunNothingFused) {
  const Problem p{Operator::gemm_reduce_scatter, 512, 512, 512, 4, Type::bf16};
  Machine machine = load_machine("4xh200");
  const auto has_peers = [&] {
    const auto list = choose::candidates(p, machine, {});
    return std::any_of(list.begin(), list.end(), [](const plan::Candidate& c) {
      return c.strategy == Strategy::fused ||
             (c.strategy == Strategy::sequential && c.knobs.transport == Transport::store);
    });
  };
  EXPECT_TRUE(has_peers());
  for (const int devices : {1, 2}) {
    machine.peer_access = {static_cast<double>(devices), Provenance::unverified, "test"};
    EXPECT_FALSE(has_peers());
    for (const std::optional<Knobs>& knobs : {std::optional<Knobs>{}, std::optional(Knobs{})}) {
      try {
        OperatorOptions options{.strategy = Strategy::fused, .knobs = knobs, .cpu = {}};
        const Plan plan = choose_plan(p, machine, options);
        make_simulator(machine)->prepare(plan);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_input);
        EXPECT_NE(std::string(error.what()).find("links.peer_access"), std::string::npos) << error.what();
      }
    }
  }
  machine.peer_access.value = 4;
  EXPECT_TRUE(has_peers());
}

TEST(GpuCandidates, CutKWhereTilesAreTooFewForAllWorkers) {
  EXPECT_EQ(choose::parts_of_k(64, 132, 3584), 2);
  EXPECT_EQ(choose::parts_of_k(40, 132, 4096), 3);
  EXPECT_EQ(choose::parts_of_k(10, 132, 8192), 4);
  EXPECT_EQ(choose::parts_of_k(192, 132, 12288), 2);  // two waves for one and a half
  EXPECT_EQ(choose::parts_of_k(128, 132, 8192), 1);
  EXPECT_EQ(choose::parts_of_k(1000, 132, 8192), 1);
  EXPECT_EQ(choose::parts_of_k(64, 132, 512), 1);
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (int ranks : {1, 2, 4})
      for (std::int64_t m : {16, 64, 128, 512, 4096}) {
        const bool gather = op == Operator::all_gather_gemm;
        const bool sharded = op == Operator::gemm_reduce_scatter || op == Operator::gemm_all_reduce;
        const Problem p{op, m, 4096 * (gather ? ranks : 1), 3584 * (sharded ? ranks : 1), ranks, Type::bf16};
        int split = 0;
        for (const plan::Candidate& c : choose::gpu_candidates(p)) {
          if (c.knobs.split_k == 1) continue;
          SCOPED_TRACE(test::describe({p, c.strategy, c.knobs}));
          ++split;
          const Plan plan = make_plan(p, c.strategy, c.knobs);
          EXPECT_FALSE(check(plan).has_value());
          EXPECT_EQ(cuda::refusal_of_plan(plan), "");
          EXPECT_EQ(plan.buffers.back().name, "parts");
        }
        EXPECT_LE(split, 6);
        EXPECT_EQ(split > 0, m < 512) << name_of(op) << " " << ranks << " ranks, M " << m;
      }
  // The simulator's choice, too.
  const Machine machine = load_machine("4xh200");
  const auto list =
      choose::candidates({Operator::gemm_all_reduce, 64, 4096, 3584, 1, Type::bf16}, machine, Strategy::fused);
  EXPECT_TRUE(std::any_of(list.begin(), list.end(), [](const plan::Candidate& c) { return c.knobs.split_k > 1; }));
}

TEST(GpuCandidates, ShareKWhereThatGivesMostWorkersATile) {
  const auto shared = [](Operator op, std::int64_t m, std::int64_t n, Type type) {
    std::set<std::pair<std::int64_t, std::int64_t>> found;
    const Problem p{op, m, n, 4 * 3584, 4, type};
    for (const plan::Candidate& c : choose::gpu_candidates(p)) {
      if (c.knobs.cluster_k == 1) continue;
      SCOPED_TRACE(test::describe({p, c.strategy, c.knobs}));
      const Plan plan = make_plan(p, c.strategy, c.knobs);
      EXPECT_FALSE(check(plan).has_value());
      EXPECT_EQ(cuda::refusal_of_plan(plan), "");
      EXPECT_EQ(c.knobs.split_k, 1);
      found.insert({c.knobs.tile_m, c.knobs.tile_n});
    }
    return found;
  };
  using Tiles = std::set<std::pair<std::int64_t, std::int64_t>>;
  for (Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce}) {
    EXPECT_EQ(shared(op, 64, 4096, Type::bf16), Tiles({{64, 64}}));
    EXPECT_EQ(shared(op, 64, 12288, Type::bf16), Tiles({{64, 192}}));
    EXPECT_EQ(shared(op, 128, 4096, Type::bf16), Tiles({{128, 64}}));
    EXPECT_TRUE(shared(op, 64, 16384, Type::bf16).empty());
    EXPECT_TRUE(shared(op, 512, 4096, Type::bf16).empty());
    EXPECT_TRUE(shared(op, 64, 4096, Type::fp16).empty());
  }
}

// Where one wave has room for all tiles, what they load decides, too.
TEST(Candidates, OfFewTilesHaveTwoShapes) {
  const auto shapes = [](std::int64_t m) {
    std::set<std::pair<std::int64_t, std::int64_t>> found;
    const Problem p{Operator::gemm_reduce_scatter, m, 4096, 3584, 1, Type::bf16};
    for (const plan::Candidate& c : choose::candidates(p, load_machine("4xh200"), Strategy::fused))
      if (c.knobs.split_k == 1) found.insert({c.knobs.tile_m, c.knobs.tile_n});
    return found.size();
  };
  EXPECT_EQ(shapes(64), 2u);
  EXPECT_EQ(shapes(8192), 1u);
}

TEST(Candidates, AreThereWhereNoShapeSuitsTheType) {
  Machine wide = load_machine("4xh200");
  std::erase_if(wide.tiles, [](const TileRate& t) { return t.tile_n <= 128; });
  ASSERT_FALSE(wide.tiles.empty());
  const auto list =
      choose::candidates({Operator::gemm_reduce_scatter, 64, 512, 512, 2, Type::e4m3}, wide, std::nullopt);
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list.front().knobs.tile_n, wide.tiles.front().tile_n);
  EXPECT_EQ(list.front().knobs.split_k, 1);
}

TEST(GpuCandidates, AreSoundAndRun) {
  test::Random random(test::seed_from_environment());
  int plans = 0;
  for (int i = 0; i < 40; ++i) {
    const Problem p = test::random_problem(random, {.max_ranks = 8, .max_size = 2500, .e4m3 = true});
    Problem thin = p;  // M decides what is tried
    thin.n = 24 * p.ranks;
    thin.k = 16 * p.ranks;
    for (const plan::Candidate& c : choose::gpu_candidates(thin)) {
      const Plan plan = make_plan(thin, c.strategy, c.knobs);
      EXPECT_FALSE(check(plan).has_value()) << test::describe({thin, c.strategy, c.knobs});
      EXPECT_EQ(cuda::refusal_of_plan(plan), "") << test::describe({thin, c.strategy, c.knobs});
      if (p.type == Type::e4m3 && c.strategy == Strategy::fused) {
        EXPECT_LE(c.knobs.tile_n, 128);
      }
      ++plans;
    }
    // Without a record, the simulator chooses among these.
    for (const plan::Candidate& c : choose::candidates(thin, load_machine("4xh200"), std::nullopt)) {
      EXPECT_FALSE(check(make_plan(thin, c.strategy, c.knobs)).has_value());
      if (p.type == Type::e4m3) {
        EXPECT_LE(c.knobs.tile_n, 128);
      }
    }
  }
  std::cout << plans << " candidates\n";
}

}  // namespace
}  // namespace imbrex
