// Waits, slices, kernels, collectives beside tiles, determinism, deadlock, hostile plans.
#include <chrono>

#include <gtest/gtest.h>

#include "imbrex/error.hpp"
#include "simulate/plans.hpp"

namespace imbrex::test {
namespace {

std::string message_of(const Plan& plan, const Machine& machine, ErrorCode code) {
  try {
    simulate(plan, machine);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Behaviour, ATileBeginsWithItsFirstSlice) {
  Machine m = ideal_machine();
  m.egress_bandwidth = m.ingress_bandwidth = constant(2.0 * 4096 * 1024 / 1e-3);  // a millisecond a copy
  m.sm_rate[Type::bf16] = constant(2.0 * 128 * 128 * 1024 / 4e-3);                // four milliseconds a tile
  const auto run = [&](bool slices) {
    Plans p(2);
    auto& copies = p.queue(0, Engine::copy);
    for (int s = 0; s < 4; ++s) copies.push_back(Plans::copy(0, 1, 4096, 1024, {}, {{1, s}}));
    std::vector<Wait> waits;
    for (int s = 0; s < 4; ++s) waits.push_back({s, 1, WaitPoint::load, slices ? 256 * s : 0});
    p.queue(1, Engine::compute).push_back(Plans::tile(1, 1024, waits));
    return simulate(p.plan, m).seconds;
  };
  EXPECT_NEAR(run(false), 8e-3, 1e-8);
  EXPECT_NEAR(run(true), 5e-3, 1e-8);
}

TEST(Behaviour, AnEpilogueWaitHidesBehindTheProducts) {
  Machine m = ideal_machine();
  m.flag_latency = constant(0.5 * tile_seconds(1024));
  for (const WaitPoint point : {WaitPoint::load, WaitPoint::epilogue}) {
    Plans p(2);
    p.queue(0, Engine::copy).push_back(Plans::signal({}, {{1, 0}}));
    p.queue(1, Engine::compute).push_back(Plans::tile(1, 1024, {{0, 1, point, 0}}));
    EXPECT_NEAR(simulate(p.plan, m).seconds, (point == WaitPoint::load ? 1.5 : 1.0) * tile_seconds(1024), 1e-12);
  }
}

TEST(Behaviour, KernelsOfAStreamDoNotShareAWave) {
  Machine m = ideal_machine();
  m.launch_gap = constant(1e-6);
  // Two kernels of three tiles, or one of six, on four SMs.
  Plans tiles(1);
  auto& persistent = tiles.queue(0, Engine::compute);
  for (int t = 0; t < 6; ++t) persistent.push_back(Plans::tile(0, 256));
  EXPECT_NEAR(simulate(tiles.plan, m).seconds, 2 * tile_seconds(256) + 1e-6, 1e-12);
  Plans products(1);
  products.queue(0, Engine::library) = {Plans::product(0, 3, 256), Plans::product(0, 3, 256)};
  EXPECT_NEAR(simulate(products.plan, m).seconds, 2 * tile_seconds(256) + 2e-6, 1e-12);
  Plans p(1);
  auto& queue = p.queue(0, Engine::library);
  for (int t = 0; t < 4; ++t) queue.push_back(Plans::product(0, 2, 256));
  // A library has two of four SMs share the depth of each of two tiles.
  EXPECT_NEAR(simulate(p.plan, m).seconds, 4 * (0.5 * tile_seconds(256) + 1e-6), 1e-12);
}

// Two tiles on four SMs: half as long in two parts each, whose sums one SM then waits for and reads in fp32.
TEST(Behaviour, PartsOfKAreTilesOfTheirOwn) {
  const auto seconds = [](const Machine& m, int parts) {
    Knobs k;
    k.transport = Transport::store;
    k.split_k = parts;
    return simulate(make_plan({Operator::gemm_all_reduce, 128, 256, 1024, 1, Type::bf16}, Strategy::fused, k), m)
        .seconds;
  };
  Machine m = ideal_machine();
  EXPECT_NEAR(seconds(m, 1), tile_seconds(1024), 1e-12);
  EXPECT_NEAR(seconds(m, 2), tile_seconds(512), 1e-12);
  EXPECT_NEAR(seconds(m, 4), 2 * tile_seconds(256), 1e-12);
  m.flag_latency_local = constant(1e-6);
  EXPECT_NEAR(seconds(m, 2), tile_seconds(512) + 1e-6, 1e-12);
  EXPECT_NEAR(seconds(m, 1), tile_seconds(1024), 1e-12);
  m = ideal_machine();
  m.sm_rate[Type::bf16] = constant(1e30);
  m.memory_bandwidth = m.sm_memory_bandwidth = constant(1e12);
  const double slots = 2 * 128 * 128 * 4 / 1e12;  // a share of both tiles, written, then read
  EXPECT_NEAR(seconds(m, 2) - seconds(m, 1), 2 * slots, 1e-12);
  EXPECT_NEAR(seconds(m, 4) - seconds(m, 1), 6 * slots, 1e-12);
}

// Four SMs are two workers.
TEST(Behaviour, TilesOfSharedKTakeTwoSmsEach) {
  const auto seconds = [](std::int64_t n, int cluster_k) {
    return simulate(make_plan({Operator::gemm_all_reduce, 128, n, 1024, 1, Type::bf16}, Strategy::fused,
                              {.cluster_k = cluster_k, .transport = Transport::store}),
                    ideal_machine())
        .seconds;
  };
  for (const int tiles : {1, 2, 3, 4, 5}) {
    EXPECT_NEAR(seconds(128 * tiles, 2), (tiles + 1) / 2 * tile_seconds(512), 1e-12) << tiles;
    EXPECT_NEAR(seconds(128 * tiles, 1), (tiles + 3) / 4 * tile_seconds(1024), 1e-12) << tiles;
  }
}

TEST(Behaviour, SMsThatShareATileAddTheirParts) {
  Machine m = ideal_machine();
  m.memory_bandwidth = constant(1e12), m.sm_memory_bandwidth = constant(0.5e12);
  m.sm_rate[Type::bf16] = constant(1e18);
  // What a block reads of A and of B, by two SMs or more; one takes twice as long. A is read once for all.
  const double panel = 128 * 1024 * 2 / 1e12;
  const auto seconds = [&](int tiles, double epilogue) {
    m.tiles[0].epilogue = constant(epilogue);
    Plans p(1);
    p.queue(0, Engine::library).push_back(Plans::product(0, tiles, 1024));
    return simulate(p.plan, m).seconds;
  };
  // Each tile gets a share of four SMs, all of it where adding costs little.
  for (const int tiles : {1, 2, 4})
    EXPECT_NEAR(seconds(tiles, 1e-8), (1 + tiles) * panel + 4 / tiles * 1e-8, 1e-9) << tiles;
  // Else as many as gain: sqrt(4 panels / epilogue), here 1.02, or 2.05 of the four.
  EXPECT_NEAR(seconds(1, 1e-6), 4 * panel + 1e-6, 1e-9);
  EXPECT_NEAR(seconds(1, 0.25e-6), 2 * panel + 2 * 0.25e-6, 1e-9);
}

// Four SMs, one or two queues of one deep block each: what two queues share is there once.
TEST(Behaviour, AnSmCountsOnceForAllQueues) {
  Machine m = ideal_machine();
  m.tiles[0].epilogue = constant(1e-12);  // any split is worth its adding
  const double whole = tile_seconds(4096);
  const auto seconds = [&](int queues) {
    Plans p(1);
    for (int q = 0; q < queues; ++q) p.queue(0, Engine::library).push_back(Plans::product(0, 1, 4096));
    return simulate(p.plan, m).seconds;
  };
  EXPECT_NEAR(seconds(1), whole / 4, 1e-9);
  EXPECT_NEAR(seconds(2), whole / 2, 1e-9);
  // Nor are the SMs of a running collective there.
  m.collective_sms = constant(2);
  m.all_gather = {{{1, 1.0}}, Provenance::unverified, "test"};
  Plans p(2);
  for (int r = 0; r < 2; ++r) {
    p.queue(r, Engine::library)
        .push_back({Collective{CollectiveKind::all_gather, 0, Plans::block(r, 1, 1), Plans::block(r, 2, 1)}, {}, {}});
    p.queue(r, Engine::library).push_back(Plans::product(r, 1, 4096));
  }
  double last = 0;
  for (const Span& span : simulate(p.plan, m, {.timeline = true}).timeline.spans)
    if (span.kind == Span::Kind::compute) last = std::max(last, span.end);
  EXPECT_NEAR(last, whole / 2, 1e-9);
}

TEST(Behaviour, ACollectiveTakesSmsFromTiles) {
  Machine m = ideal_machine();
  m.collective_sms = constant(2);
  m.all_gather = {{{1, 1.0}}, Provenance::unverified, "test"};
  Plans p(2);
  for (int r = 0; r < 2; ++r) {
    p.queue(r, Engine::library)
        .push_back({Collective{CollectiveKind::all_gather, 0, Plans::block(r, 1, 1), Plans::block(r, 2, 1)}, {}, {}});
    auto& queue = p.queue(r, Engine::compute);
    for (int t = 0; t < 8; ++t) queue.push_back(Plans::tile(r, 256));
  }
  p.plan.ranks[0].queues[0].tasks[0].posts = {{0, 0}};
  Report report = simulate(p.plan, m, {.timeline = true});
  double last = 0;
  for (const Span& span : report.timeline.spans)
    if (span.kind == Span::Kind::compute) last = std::max(last, span.end);
  EXPECT_NEAR(last, 4 * tile_seconds(256), 1e-9);  // four waves of two instead of two of four
}

TEST(Behaviour, OwnCollectivesHaveCurvesOfTheirOwn) {
  Machine m = ideal_machine();
  m.all_reduce = m.reduce_scatter = {{{1, 3.0}}, Provenance::unverified, "test"};
  const auto seconds = [&](Operator op, Transport transport) {
    const Problem problem{op, 256, 256, 256, 4, Type::bf16};
    return simulate(make_plan(problem, Strategy::sequential, {.transport = transport, .partial = Type::bf16}), m)
        .seconds;
  };
  EXPECT_EQ(seconds(Operator::gemm_all_reduce, Transport::store), seconds(Operator::gemm_all_reduce, Transport::push));
  const double product = tile_seconds(64), bytes = 256 * 256 * 2;
  const auto curve = [](std::vector<CurvePoint> points) {
    return Curve{std::move(points), Provenance::unverified, "test"};
  };
  m.own_one_step = curve({{0.75 * bytes, 1.0}, {3 * bytes, 4.0}});
  m.own_two_steps = curve({{1, 2.0}, {1e9, 2.0}});
  EXPECT_NEAR(seconds(Operator::gemm_reduce_scatter, Transport::store), product + 1.0, 1e-6);
  // The whole vector to three peers takes longer than two-shot here,
  EXPECT_NEAR(seconds(Operator::gemm_all_reduce, Transport::store), product + 2.0, 1e-6);
  m.own_two_steps = curve({{1, 5.0}, {1e9, 5.0}});  // shorter than two-shot.
  EXPECT_NEAR(seconds(Operator::gemm_all_reduce, Transport::store), product + 4.0, 1e-6);
}

TEST(Behaviour, ReservedWorkersAreNotSharedOut) {
  Plans p(1);
  auto& tiles = p.queue(0, Engine::compute);
  p.queue(0, Engine::compute, 1).push_back(Plans::signal({{0, 6}}));
  for (int t = 0; t < 6; ++t) tiles.push_back(Plans::tile(0, 256, {}, {{0, 0}}));
  EXPECT_NEAR(simulate(p.plan, ideal_machine()).seconds, 2 * tile_seconds(256), 1e-9);
}

TEST(Behaviour, QueuesThatShareWorkersDoNotDeadlock) {
  Machine m = ideal_machine();
  m.sms = constant(1);
  Plans p(1);
  p.queue(0, Engine::compute).push_back(Plans::tile(0, 256, {{0}}));
  p.queue(0, Engine::compute).push_back(Plans::tile(0, 256, {}, {{0, 0}}));
  EXPECT_NEAR(simulate(p.plan, m).seconds, 2 * tile_seconds(256), 1e-9);
}

TEST(Behaviour, TheSamePlanTakesTheSameTime) {
  const Machine machine = load_machine("4xh200");
  Knobs knobs;
  knobs.transport = Transport::store;
  const Plan plan = make_plan({Operator::gemm_reduce_scatter, 4096, 4096, 4096, 4, Type::bf16}, Strategy::fused, knobs);
  const SimulateOptions options{.timeline = true, .skew_seed = 7, .max_skew = 1e-5};
  const Report a = simulate(plan, machine, options), b = simulate(plan, machine, options);
  EXPECT_EQ(a.seconds, b.seconds);
  ASSERT_EQ(a.timeline.spans.size(), b.timeline.spans.size());
  EXPECT_EQ(to_perfetto(a.timeline), to_perfetto(b.timeline));
  EXPECT_NE(a.seconds, simulate(plan, machine, {.timeline = false, .skew_seed = 8, .max_skew = 1e-5}).seconds);
}

TEST(Behaviour, EveryStrategyRunsOnEveryMachine) {
  for (const std::string& name : machine_names()) {
    const Machine machine = load_machine(name);
    for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::fused})
      for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                Operator::gemm_all_to_all})
        for (const Reducer reducer : {Reducer::tile, Reducer::tail, Reducer::reserved}) {
          if (op == Operator::all_gather_gemm && reducer != Reducer::tile) continue;
          Knobs knobs;
          if (strategy == Strategy::fused && op != Operator::all_gather_gemm) knobs.transport = Transport::store;
          if (strategy == Strategy::fused && op != Operator::gemm_all_to_all) knobs.reducer = reducer;
          const Plan plan = make_plan({op, 2000, 1008, 520, 4, Type::bf16}, strategy, knobs);
          if (strategy == Strategy::fused && machine.peer_access == 1) {
            EXPECT_THROW(simulate(plan, machine), Error) << name;
            continue;
          }
          const double seconds = simulate(plan, machine).seconds;
          EXPECT_GT(seconds, 1e-6) << name;
          EXPECT_LT(seconds, 1e-1) << name;
        }
  }
}

TEST(Behaviour, DeadlocksNameAStuckTask) {
  Plans p(2);
  for (int r = 0; r < 2; ++r) {
    auto& queue = p.queue(r, Engine::copy);
    queue.push_back(Plans::signal({}, {}));
    queue.push_back(Plans::signal({{3, 2}}, {{1 - r, 3}}));
  }
  const std::string message = message_of(p.plan, ideal_machine(), ErrorCode::unsound);
  EXPECT_NE(message.find("rank 0 queue 0 task 1 (transfer) waits for signal 3 to reach 2, which has 0"),
            std::string::npos)
      << message;
}

TEST(Behaviour, ACollectiveThatARankNeverReachesIsADeadlock) {
  Plans p(2);
  p.queue(1, Engine::library)
      .push_back({Collective{CollectiveKind::all_gather, 0, Plans::block(1, 1, 1), Plans::block(1, 2, 1)}, {}, {}});
  const std::string message = message_of(p.plan, ideal_machine(), ErrorCode::unsound);
  EXPECT_NE(message.find("rank 1 queue 0 task 0 (collective)"), std::string::npos) << message;
  EXPECT_NE(message.find("1 of 2"), std::string::npos) << message;
}

TEST(Behaviour, PlansWithIndicesOutOfRangeAreRefused) {
  const auto refuse = [](const Task& task, const char* what) {
    Plans p(2);
    p.queue(0, Engine::copy).push_back(task);
    EXPECT_NE(message_of(p.plan, ideal_machine(), ErrorCode::invalid_input).find(what), std::string::npos) << what;
  };
  refuse(Plans::signal({{64}}), "waits for signal 64");
  refuse(Plans::signal({{-1}}), "waits for signal -1");
  refuse(Plans::signal({}, {{2, 0}}), "posts to rank 2");
  refuse(Plans::signal({}, {{1, 64}}), "posts to signal 64");
  refuse(Plans::copy(0, 5, 1, 1), "names rank 5");
  refuse(Plans::copy(0, 1, -1, 1), "-1 x 1");
  Task task = Plans::copy(0, 1, 1, 1);
  std::get<Transfer>(task.work).to.buffer = 9;
  refuse(task, "names buffer 9");

  Machine small = ideal_machine();
  small.devices = 1;
  EXPECT_NE(message_of(Plans(2).plan, small, ErrorCode::invalid_input).find("1 devices"), std::string::npos);
  Plan other = Plans(1).plan;
  other.problem.type = Type::fp32;
  other.ranks[0].queues.push_back({Engine::compute, 0, {Plans::tile(0, 128)}, {128, 128}});
  EXPECT_NE(message_of(other, ideal_machine(), ErrorCode::invalid_input).find("fp32"), std::string::npos);
}

TEST(Behaviour, ProductsBeyondTheLimitsAreRefused) {
  const auto message = [](const Product& product, const Extent& block, int kept_free) {
    Plans p(1);
    p.queue(0, Engine::library).push_back({product, {}, {}});
    Queue& queue = p.plan.ranks[0].queues[0];
    queue.tile = block;
    queue.kept_free = kept_free;
    return message_of(p.plan, ideal_machine(), ErrorCode::invalid_input);
  };
  const auto square = [](std::int64_t size) {
    const Region all = Plans::block(0, size, size);
    return Product{all, all, all};
  };
  Product many = square(128);
  many.batch = 65537;
  EXPECT_NE(message(many, {128, 128}, 0).find("is a batch of 65537; it must be 1 to 65536"), std::string::npos);
  EXPECT_NE(message(square(128), {128, 128}, 65537).find("keeps 65537 SMs free; it must be 0 to 65536"),
            std::string::npos);
  // One block too many, and more than 64 bits count.
  EXPECT_NE(message(square(4097), {1, 1}, 0).find("more than 2^24 blocks of 1 x 1"), std::string::npos);
  many = square(std::int64_t{1} << 40);
  many.batch = 65536;
  EXPECT_NE(message(many, {1, 1}, 0).find("more than 2^24 blocks of 1 x 1"), std::string::npos);
}

TEST(Behaviour, AHundredThousandTasksTakeSeconds) {
  Knobs knobs;
  knobs.transport = Transport::store;
  const Plan plan =
      make_plan({Operator::gemm_reduce_scatter, 16384, 25600, 4096, 4, Type::bf16}, Strategy::fused, knobs);
  ASSERT_GE(count_tasks(plan), 100000u);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(simulate(plan, load_machine("4xh200")).seconds, 0);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 60);  // seconds in an optimised build; sanitizers and busy machines take longer
}

}  // namespace
}  // namespace imbrex::test
