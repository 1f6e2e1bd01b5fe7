// Analytical limits that the simulator must obey.
#include <gtest/gtest.h>

#include "simulate/plans.hpp"

namespace imbrex::test {
namespace {

constexpr double tiny = 1e-9;  // relative

TEST(Limits, OneTileIsItsProducts) {
  Plans p(1);
  p.queue(0, Engine::compute).push_back(Plans::tile(0, 512));
  EXPECT_NEAR(simulate(p.plan, ideal_machine()).seconds, tile_seconds(512), tiny * tile_seconds(512));
}

TEST(Limits, OneTileAddsItsFixedTimes) {
  Machine m = ideal_machine();
  m.launch_gap = constant(3e-6);
  m.tiles.front().prologue = constant(2e-6);
  m.tiles.front().epilogue = constant(1e-6);
  Plans p(1);
  p.queue(0, Engine::compute).push_back(Plans::tile(0, 512));
  EXPECT_NEAR(simulate(p.plan, m).seconds, 6e-6 + tile_seconds(512), 1e-15);
}

TEST(Limits, EdgeTilesTakeAWholeTilesTime) {
  Plans p(1);
  p.queue(0, Engine::compute).push_back(Plans::tile(0, 512, {}, {}, {}, 1, 7));
  EXPECT_NEAR(simulate(p.plan, ideal_machine()).seconds, tile_seconds(512), tiny * tile_seconds(512));
}

TEST(Limits, ComputeBoundIsWavesTimesTile) {
  for (const int tiles : {1, 4, 5, 8, 9, 4001}) {
    Plans p(1);
    auto& queue = p.queue(0, Engine::compute);
    for (int t = 0; t < tiles; ++t) queue.push_back(Plans::tile(0, 256));
    const double waves = (tiles + 3) / 4;
    EXPECT_NEAR(simulate(p.plan, ideal_machine()).seconds, waves * tile_seconds(256), tiny * waves * tile_seconds(256))
        << tiles;
  }
}

TEST(Limits, MemoryBoundIsBytesOverBandwidth) {
  Machine m = ideal_machine();
  m.sm_rate[Type::bf16] = constant(1e30);
  m.memory_bandwidth = constant(1e9);
  Plans p(1);
  auto& queue = p.queue(0, Engine::compute);
  // Different rows and columns, so that no panel is shared and every byte comes from memory.
  double bytes = 0;
  for (int t = 0; t < 8; ++t) {
    Task task = Plans::tile(0, 256);
    std::get<Tile>(task.work).a.row = 128 * t;
    std::get<Tile>(task.work).b.col = 128 * t;
    bytes += 2 * 2 * 128 * 256;
    queue.push_back(task);
  }
  EXPECT_NEAR(simulate(p.plan, m).seconds, bytes / 1e9, 1e-6 * bytes / 1e9);
}

TEST(Limits, SharedPanelsAreReadOnce) {
  Machine m = ideal_machine();
  m.sm_rate[Type::bf16] = constant(1e30);
  m.memory_bandwidth = constant(1e9);
  Plans p(1);
  auto& queue = p.queue(0, Engine::compute);
  for (int t = 0; t < 4; ++t) queue.push_back(Plans::tile(0, 256));
  EXPECT_NEAR(simulate(p.plan, m).seconds, 2 * 2 * 128 * 256 / 1e9, 1e-9);
}

// It would end later if it had but a tile's share of the memory for both of its panels.
TEST(Limits, ATileThatBringsASharedPanelEndsWithThoseThatShareIt) {
  Machine m = ideal_machine();
  m.sm_rate[Type::bf16] = constant(1e30);
  m.memory_bandwidth = constant(1e9);
  m.sm_memory_bandwidth = constant(0.5e9);
  Plans p(1);
  auto& queue = p.queue(0, Engine::compute);
  for (int t = 0; t < 4; ++t) {
    Task task = Plans::tile(0, 256);
    std::get<Tile>(task.work).b.col = 128 * t;
    queue.push_back(task);
  }
  const double panel = 2 * 128 * 256;
  EXPECT_NEAR(simulate(p.plan, m).seconds, 5 * panel / 1e9, 1e-6 * panel / 1e9);
}

TEST(Limits, WireBoundIsBytesOverBandwidth) {
  Machine m = ideal_machine();
  m.egress_bandwidth = m.ingress_bandwidth = constant(1e9);
  m.link_latency = constant(5e-6);
  m.copy_latency = constant(2e-6);
  m.copy_fixed = constant(3e-6);
  Plans p(2);
  p.queue(0, Engine::copy).push_back(Plans::copy(0, 1, 4096, 4096));
  p.queue(1, Engine::copy);
  // Cut-through: latency and set-up come once, whatever the size.
  EXPECT_NEAR(simulate(p.plan, m).seconds, 2.0 * 4096 * 4096 / 1e9 + 10e-6, 1e-12);
}

TEST(Limits, TheSlowerSideOfALinkDecides) {
  for (const bool out : {true, false}) {
    Machine m = ideal_machine();
    m.egress_bandwidth = constant(out ? 1e9 : 4e9);
    m.ingress_bandwidth = constant(out ? 4e9 : 1e9);
    Plans p(2);
    p.queue(0, Engine::copy).push_back(Plans::copy(0, 1, 4096, 4096));
    EXPECT_NEAR(simulate(p.plan, m).seconds, 2.0 * 4096 * 4096 / 1e9, 1e-9);
  }
}

TEST(Limits, InfiniteBandwidthAndNoLatencyLeaveOnlyCompute) {
  Plans p(2);
  auto& copies = p.queue(0, Engine::copy);
  auto& tiles = p.queue(1, Engine::compute);
  for (int t = 0; t < 16; ++t) {
    copies.push_back(Plans::copy(0, 1, 128, 4096, {}, {{1, t}}));
    tiles.push_back(Plans::tile(1, 256, {{t}}));
  }
  EXPECT_NEAR(simulate(p.plan, ideal_machine()).seconds, 4 * tile_seconds(256), 1e-6 * tile_seconds(256));
}

TEST(Limits, OneRankPaysNoWire) {
  Machine m = ideal_machine();
  m.egress_bandwidth = m.ingress_bandwidth = constant(1);
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::fused})
    for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                              Operator::gemm_all_to_all}) {
      const Plan plan = make_plan({op, 512, 512, 256, 1, Type::bf16}, strategy, {});
      EXPECT_NEAR(simulate(plan, m).seconds, 4 * tile_seconds(256), 1e-6 * tile_seconds(256))
          << name_of(op) << " " << name_of(strategy);
    }
}

// Two nodes of two ranks gather at once, each on its own: half of the bytes that four ranks would put on the wire.
TEST(Limits, CollectivesOfSomeRanksTakeTheirOwnBytesTime) {
  Machine m = ideal_machine();
  m.all_gather = {{{1, 1e-9}, {1e6, 1e-3}}, Provenance::unverified, "test"};
  Plans p(4);
  for (int r = 0; r < 4; ++r)
    p.queue(r, Engine::library)
        .push_back({Collective{CollectiveKind::all_gather,
                               r / 2,
                               Plans::block(r, 1, 500),
                               Plans::block(r, 2, 500, 8),
                               {r / 2 * 2, r / 2 * 2 + 1}},
                    {},
                    {}});
  EXPECT_NEAR(simulate(p.plan, m).seconds, seconds_of(m.all_gather, 1000), 1e-15);
}

// What goes from a rank to one neighbour is all on the wire, however many ranks pass something on.
TEST(Limits, AnExchangeTakesAnAllToAllsTimeOfItsBytes) {
  Machine m = ideal_machine();
  m.all_to_all = {{{1, 1e-9}, {1e6, 1e-3}}, Provenance::unverified, "test"};
  for (const int ranks : {2, 3, 8}) {
    Plans p(ranks);
    for (int r = 0; r < ranks; ++r) {
      Collective exchange{CollectiveKind::send_receive, 0, Plans::block(r, 1, 500), Plans::block(r, 1, 500, 8)};
      exchange.send_to = (r + 1) % ranks;
      exchange.receive_from = (r + ranks - 1) % ranks;
      p.queue(r, Engine::library).push_back({exchange, {}, {}});
    }
    EXPECT_NEAR(simulate(p.plan, m).seconds, seconds_of(m.all_to_all, 1000), 1e-15);
  }
}

// Each block of A is multiplied while the next one comes; the longer of the two counts.
TEST(Limits, ARingHidesTheShorterSide) {
  constexpr std::int64_t depth = 256;
  const double product = tile_seconds(depth), bytes = 128 * depth * 2;
  for (const double exchange : {0.25 * product, 4 * product}) {
    Machine m = ideal_machine();
    m.sms = constant(1);
    m.all_to_all = {{{bytes, exchange}}, Provenance::unverified, "test"};
    const Plan plan = make_plan({Operator::all_gather_gemm, 4 * 128, 4 * 128, depth, 4, Type::bf16},
                                Strategy::decomposed, {.chunks = 1});
    EXPECT_NEAR(simulate(plan, m).seconds, std::max(4 * product, 3 * exchange + product), 1e-6 * product);
  }
}

TEST(Limits, ACollectiveTakesItsCurvesTime) {
  Machine m = ideal_machine();
  m.reduce_scatter = {{{1e3, 1e-3}, {1e9, 1e-1}}, Provenance::unverified, "test"};
  const Plan plan =
      make_plan({Operator::gemm_reduce_scatter, 512, 512, 256 * 4, 4, Type::bf16}, Strategy::sequential, {});
  const double wire = 512 * 512 * 2 * 3 / 4.0;
  EXPECT_NEAR(simulate(plan, m).seconds, 4 * tile_seconds(256) + seconds_of(m.reduce_scatter, wire), 1e-9);
}

TEST(Limits, FusedNeverBeatsComputeOrWire) {
  Machine m = ideal_machine();
  for (const double bandwidth : {1e9, 1e10, 1e11, 1e12})
    for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                              Operator::gemm_all_to_all}) {
      m.egress_bandwidth = m.ingress_bandwidth = constant(bandwidth);
      Knobs knobs;
      knobs.transport = op == Operator::all_gather_gemm ? Transport::push : Transport::store;
      const Problem problem{op, 2048, 1024, 1024, 4, Type::bf16};
      const RankShapes shapes = shapes_of(problem);
      const double tiles = static_cast<double>(shapes.product.rows / 128 * (shapes.product.cols / 128));
      const double compute = tiles / 4 * tile_seconds(static_cast<double>(shapes.depth));
      const double whole = static_cast<double>(
          op == Operator::all_gather_gemm ? problem.m * problem.k : shapes.product.rows * shapes.product.cols);
      const double wire = 2 * whole * 3 / 4 * (op == Operator::gemm_all_reduce ? 2 : 1) / bandwidth;
      const double seconds = simulate(make_plan(problem, Strategy::fused, knobs), m).seconds;
      EXPECT_GE(seconds, std::max(compute, wire) * (1 - 1e-9)) << name_of(op) << " at " << bandwidth;
      EXPECT_LE(seconds, (compute + wire) * (1 + 1e-6)) << name_of(op) << " at " << bandwidth;
    }
}

TEST(Limits, ThreeSendersToOneTakeThreeTimes) {
  Machine m = ideal_machine();
  m.egress_bandwidth = m.ingress_bandwidth = constant(1e9);
  const double one = 2.0 * 1024 * 4096 / 1e9;
  Plans in(4), out(4), apart(4);
  auto& copies = out.queue(0, Engine::compute);  // several workers, so that the copies run at the same time
  for (int r = 1; r < 4; ++r) {
    in.queue(r, Engine::copy).push_back(Plans::copy(r, 0, 1024, 4096));
    copies.push_back(Plans::copy(0, r, 1024, 4096));
    apart.queue(r, Engine::copy).push_back(Plans::copy(r, r == 3 ? 0 : r + 1, 1024, 4096));
  }
  EXPECT_NEAR(simulate(in.plan, m).seconds, 3 * one, 1e-6 * one);
  EXPECT_NEAR(simulate(out.plan, m).seconds, 3 * one, 1e-6 * one);
  EXPECT_NEAR(simulate(apart.plan, m).seconds, one, 1e-6 * one);
}

TEST(Limits, FlagLatencyCountsOncePerHop) {
  Machine m = ideal_machine();
  m.flag_latency = constant(1e-3);
  Plans p(4);
  for (int r = 0; r < 4; ++r) {
    std::vector<Wait> waits;
    std::vector<Post> posts;
    if (r > 0) waits = {{0}};
    if (r < 3) posts = {{r + 1, 0}};
    p.queue(r, Engine::compute).push_back(Plans::signal(waits, posts));
  }
  EXPECT_NEAR(simulate(p.plan, m).seconds, 3e-3, 1e-12);
  m.flag_latency_local = constant(1);  // no local hop in it
  m.fence = constant(1e-4);
  m.poll = constant(1e-5);
  EXPECT_NEAR(simulate(p.plan, m).seconds, 3 * (1e-3 + 1e-4 + 1e-5), 1e-12);
}

TEST(Limits, OneSmStoresAtItsOwnRateAndManyAtTheDevices) {
  Machine m = ideal_machine();
  m.sm_rate[Type::bf16] = constant(1e30);
  m.store_sm_bandwidth = constant(1e9);
  m.store_bandwidth = constant(2e9);
  const double bytes = 2.0 * 128 * 128;
  for (const int tiles : {1, 2, 4}) {
    Plans p(2);
    auto& queue = p.queue(0, Engine::compute);
    for (int t = 0; t < tiles; ++t) queue.push_back(Plans::tile(0, 64, {}, {}, {1}));
    EXPECT_NEAR(simulate(p.plan, m).seconds,
                tiles <= 2 ? std::max(bytes / 1e9, tiles * bytes / 2e9 + (tiles - 1) * 0.5 * bytes / 1e9)
                           : tiles * bytes / 2e9 + 0.5 * bytes / 1e9,
                bytes / 1e9 * 0.51)
        << tiles;
  }
  m.store_bandwidth = constant(1e30);
  Plans p(4);
  p.queue(0, Engine::compute).push_back(Plans::tile(0, 64, {}, {}, {1, 2, 3}));
  EXPECT_NEAR(simulate(p.plan, m).seconds, 3 * bytes / 1e9, 1e-12);
}

}  // namespace
}  // namespace imbrex::test
