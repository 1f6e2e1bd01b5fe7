// Operators on GPUs, as users call them: on callers' streams, several at once, from graphs.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/harness/global_captures.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using runtime::DeviceMemory;
using test::on_ranks;
using test::options_of;
using test::Stream;
using test::Subject;

constexpr int calls = 1000;

// One of each kind: copies beside the kernel, stores, NCCL on one stream, NCCL beside products, and round a ring.
std::vector<std::unique_ptr<Subject>> subjects(World& world, std::uint64_t delays, bool shared_out = true) {
  std::vector<std::unique_ptr<Subject>> list;
  const auto add = [&](Operator op, const GemmShape& shape, std::optional<Strategy> strategy, Transport transport) {
    if (!test::runs_here(strategy, transport)) return;
    list.push_back(std::make_unique<Subject>(world, op, shape, options_of(strategy, transport, delays), shared_out));
  };
  add(Operator::all_gather_gemm, {1024, 768, 256, Type::bf16}, Strategy::fused, Transport::push);
  add(Operator::gemm_reduce_scatter, {1040, 768, 512, Type::bf16}, Strategy::fused, Transport::store);
  add(Operator::gemm_all_reduce, {520, 768, 512, Type::bf16}, Strategy::fused, Transport::store);
  add(Operator::gemm_all_to_all, {1024, 512, 256, Type::bf16}, Strategy::fused, Transport::store);
  add(Operator::gemm_all_reduce, {256, 512, 512, Type::bf16}, Strategy::sequential, Transport::push);
  add(Operator::gemm_reduce_scatter, {1040, 768, 512, Type::bf16}, Strategy::fused, Transport::store);  // shares
  add(Operator::all_gather_gemm, {1024, 768, 256, Type::bf16}, Strategy::fused, Transport::store);
  add(Operator::gemm_reduce_scatter, {1024, 512, 512, Type::bf16}, Strategy::decomposed, Transport::push);
  add(Operator::all_gather_gemm, {1024, 512, 256, Type::bf16}, Strategy::decomposed, Transport::push);
  add(Operator::all_gather_gemm, {512, 512, 256, Type::bf16}, std::nullopt, Transport::push);
  add(Operator::all_gather_gemm, {512, 512, 256, Type::e4m3, false, Scales::row}, Strategy::fused, Transport::push);
  add(Operator::gemm_reduce_scatter, {1024, 512, 512, Type::e4m3, false, Scales::tensor}, std::nullopt,
      Transport::store);
  return list;
}

class GpuOperatorsOn : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(GpuOperatorsOn, GiveWhatTheReferenceSays) {
  const auto [ranks, shared_out] = GetParam();
  NEEDS_GPUS(ranks);
  EXPECT_EQ(on_ranks(ranks, 20,
                     [shared = shared_out](World& world) {
                       auto list = subjects(world, 0, shared);
                       const Stream stream(world);
                       for (auto& s : list) {
                         s->poison(stream);
                         IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
                         test::meet_if_sharing(world);
                         s->call(stream);
                         s->op().synchronize(stream);
                         s->judge("on a stream");
                         test::meet_if_sharing(world);
                         s->call();
                         s->judge("waited for");
                         // Memory for it is taken while peers call, which ranks that share a GPU cannot do.
                         if (test::ranks_per_gpu() == 1) s->call_from_host();
                         s->op().check();
                       }
                     }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuOperatorsOn, testing::Combine(testing::Values(2, 4), testing::Bool()),
                         [](const auto& test) {
                           return std::to_string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "OutputsShared" : "OutputsOwn");
                         });

// Every rank falls behind at random; the order of the calls, also random, is the same everywhere.
void alternate(World& world, int streams, std::uint64_t seed) {
  std::mt19937_64 order(seed), own(seed + 17 * static_cast<std::uint64_t>(world.rank() + 1));
  auto list = subjects(world, 5);
  std::vector<std::unique_ptr<Stream>> lanes;
  for (int i = 0; i < streams; ++i) lanes.push_back(std::make_unique<Stream>(world));
  for (int i = 0; i < calls; ++i) {
    Subject& s = *list[order() % list.size()];
    const cudaStream_t stream = *lanes[order() % lanes.size()];
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    s.poison(stream);
    s.call(stream);
    if (i % 100 != 99) continue;
    for (auto& lane : lanes) s.op().synchronize(*lane);
    s.judge("call " + std::to_string(i));
  }
  for (auto& s : list) {
    s->call();
    s->judge("at the end");
  }
}

// NOTE: on several streams an output's poison may meet its operator's earlier call; the call after both overwrites it.
TEST(GpuOperators, AlternateOnOneStream) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20, [](World& world) { alternate(world, 1, 1); }), 0);
}

TEST(GpuOperators, AlternateOnTwoStreams) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20, [](World& world) { alternate(world, 2, 2); }), 0);
}

TEST(GpuOperators, AlternateOnTheDefaultStream) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                     [](World& world) {
                       auto list = subjects(world, 5);
                       for (int i = 0; i < 100; ++i) list[static_cast<std::size_t>(i) % list.size()]->call(nullptr);
                       list.front()->op().synchronize(nullptr);
                       for (auto& s : list) s->judge("on the default stream");
                     }),
            0);
}

// Graphs of one epoch, of three, and of two operators on two streams, with other calls in between.
void replay(World& world) {
  auto list = subjects(world, 5);
  const Stream stream(world), side(world);
  for (auto& s : list) {
    s->call();
    s->judge("before");
  }
  std::vector<std::unique_ptr<cuda::Graph>> graphs;
  for (auto& s : list) graphs.push_back(std::make_unique<cuda::Graph>(stream, 1, [&] { s->call(stream); }));
  graphs.push_back(std::make_unique<cuda::Graph>(stream, 3, [&] { list.front()->call(stream); }));
  cudaEvent_t forked = nullptr, joined = nullptr;
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  graphs.push_back(std::make_unique<cuda::Graph>(stream, 1, [&] {
    IMBREX_CUDA_TRY(cudaEventRecord(forked, stream));
    IMBREX_CUDA_TRY(cudaStreamWaitEvent(side, forked, 0));
    list[0]->call(stream);
    list[1]->call(side);
    list[4]->call(stream);
    list[2]->call(side);
    IMBREX_CUDA_TRY(cudaEventRecord(joined, side));
    IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, joined, 0));
  }));
  for (int i = 0; i < calls; ++i) {
    if (i % 100 == 0)
      for (auto& s : list) s->poison(stream);
    for (const auto& graph : graphs) graph->launch(stream);
    if (i % 7 == 0) list[static_cast<std::size_t>(i) % list.size()]->call(stream);
    if (i % 100 != 99) continue;
    list.front()->op().synchronize(stream);
    for (auto& s : list) s->judge("replay " + std::to_string(i));
  }
  cudaEventDestroy(forked);
  cudaEventDestroy(joined);
}

TEST(GpuOperators, ReplayFromGraphs) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20, replay), 0);
}

// Rank 0's host captures, in global mode, while threads of the library look after calls that no host waits for.
void capture_beside_calls(World& world) {
  auto list = subjects(world, 5);
  const Stream stream(world);
  test::GlobalCaptures capturing;
  std::mt19937_64 random(test::seed_from_environment());
  for (auto& s : list) s->call();
  for (int round = 0; round < 1000; ++round) {
    std::vector<Subject*> called;
    for (int k = 0; k < 3; ++k) called.push_back(list[random() % list.size()].get());
    if (round % 10 == 0)
      for (auto& s : list) s->poison(stream);
    for (Subject* s : called) s->call(stream);
    if (round % 10 == 9)
      for (auto& s : list) s->call(stream);
    const bool long_one = random() % 4 == 0;
    world.barrier();  // from here on until the next one the other ranks' hosts ask nothing
    if (world.rank() == 0) {
      std::mt19937_64 own(random());
      capturing.once(own, std::chrono::microseconds(long_one ? 12'000 : 200));
    } else {
      static_cast<void>(random());
    }
    world.barrier();
    if (round % 10 != 9) continue;
    list.front()->op().synchronize(stream);
    for (auto& s : list) s->judge("round " + std::to_string(round));
    world.barrier();
    if (world.rank() == 0) capturing.judge();
    world.barrier();
  }
}

TEST(GpuOperators, LetOtherThreadsCapture) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20, capture_beside_calls), 0);
}

// Every operand has two places, and moves between them by itself; where it does not lie is poison, which a map or an
// address kept from another call would bring in.
void move_operands(World& world, Operator op, const GemmShape& shape, std::optional<Strategy> strategy,
                   Transport transport) {
  if (!test::runs_here(strategy, transport)) return;
  test::OperatorCase c(world, op, shape, options_of(strategy, transport, 0));
  const Stream stream(world);
  struct Places {
    explicit Places(const std::vector<std::byte>& values) : Places(values.size()) { kept.upload(values); }
    explicit Places(std::size_t size) : bytes(size), kept(size), places{DeviceMemory(size), DeviceMemory(size)} {}

    void* move(std::size_t to, cudaStream_t on) {
      IMBREX_CUDA_TRY(cudaMemsetAsync(places[1 - to].get(), 0xff, bytes, on));
      IMBREX_CUDA_TRY(cudaMemcpyAsync(places[to].get(), kept.get(), bytes, cudaMemcpyDeviceToDevice, on));
      return places[to].get();
    }

    std::size_t bytes;
    DeviceMemory kept;
    DeviceMemory places[2];
  };
  Places a(c.a()), b(c.b()), out(std::vector<std::byte>(c.out_bytes(), std::byte{0xff}));
  // NOTE: beside a kernel of another rank on the GPU that waits for this one, a stream's first copies may not begin.
  for (Places* places : {&a, &b, &out}) places->move(0, stream);
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  test::meet_if_sharing(world);
  std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
  for (int i = 0; i < 48; ++i) {
    const auto pick = random();
    void *const in_a = a.move(pick & 1, stream), *const in_b = b.move(pick >> 1 & 1, stream),
                *const to = out.move(pick >> 2 & 1, stream);
    c.op().run({c.op().operand("a", in_a), c.op().operand("b", in_b), c.op().operand("out", to)}, stream);
    c.op().synchronize(stream);
    std::vector<std::byte> result(c.out_bytes());
    IMBREX_CUDA_TRY(cudaMemcpy(result.data(), to, result.size(), cudaMemcpyDeviceToHost));
    if (const std::string wrong = c.judge(result); !wrong.empty())
      throw Error(ErrorCode::unsound, "call " + std::to_string(i) + ": " + wrong);
  }
  test::meet_if_sharing(world);
}

TEST(GpuOperators, TakeOperandsThatMove) {
  NEEDS_GPUS(2);
  EXPECT_EQ(
      on_ranks(
          test::most_ranks(), 20,
          [](World& world) {
            const auto fused = Strategy::fused;
            move_operands(world, Operator::all_gather_gemm, {1024, 768, 256, Type::bf16}, fused, Transport::push);
            move_operands(world, Operator::all_gather_gemm, {256, 768, 256, Type::fp16}, fused, Transport::store);
            move_operands(world, Operator::gemm_reduce_scatter, {1040, 768, 512, Type::bf16}, fused, Transport::store);
            move_operands(world, Operator::gemm_all_reduce, {520, 768, 512, Type::bf16}, fused, Transport::store);
            move_operands(world, Operator::gemm_all_to_all, {1024, 512, 256, Type::bf16}, fused, Transport::store);
            move_operands(world, Operator::gemm_all_reduce, {256, 512, 512, Type::bf16}, Strategy::decomposed,
                          Transport::push);
          }),
      0);
}

// Two operators of one shape share what is kept between calls, and have operands of their own.
TEST(GpuOperators, AlternateWithTheirLike) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                     [](World& world) {
                       const GemmShape shape{1024, 768, 512, Type::bf16};
                       const OperatorOptions options = options_of(Strategy::fused, Transport::store, 0);
                       Subject first(world, Operator::gemm_reduce_scatter, shape, options, false),
                           second(world, Operator::gemm_reduce_scatter, shape, options, false, 2);
                       const Stream stream(world);
                       for (int i = 0; i < 20; ++i) {
                         Subject& s = i % 3 == 0 ? first : second;
                         s.poison(stream);
                         s.call(stream);
                         s.op().synchronize(stream);
                         s.judge("call " + std::to_string(i));
                       }
                     }),
            0);
}

// A tile in some millions finds its slots later than the operands that were loaded after them.
TEST(GpuOperators, TakeSlotsThatComeLate) {
  NEEDS_GPUS(2);
  for (const int cluster : {1, 2}) {
    // Pairs of four ranks take all but two of a GPU's, and where some small kernel stands, one rank's find no room.
    if (cluster == 2 && test::ranks_per_gpu() > 1) continue;
    EXPECT_EQ(
        on_ranks(
            test::most_ranks(), 20,
            [cluster](World& world) {
              OperatorOptions options = options_of(Strategy::fused, Transport::store, 0);
              options.knobs->cluster = cluster;
              Subject s(world, Operator::gemm_all_reduce, {4096, 8192, 512 * world.size(), Type::bf16}, options, true);
              const Stream stream(world);
              for (int round = 0; round < 10; ++round) {
                for (int i = 0; i < 500; ++i) {
                  s.call(stream);
                  // NOTE: a launch that finds its stream's queue full may hold up those of other ranks on the GPU.
                  if (test::ranks_per_gpu() > 1 && i % 50 == 49) s.op().synchronize(stream);
                }
                s.op().synchronize(stream);
                s.judge("round " + std::to_string(round));
              }
            }),
        0)
        << "cluster of " << cluster;
  }
}

// Each operator's workspace is larger than the heap at first.
TEST(GpuOperators, GrowTheHeap) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                     [](World& world) {
                       OperatorOptions options = options_of(Strategy::fused, Transport::store, 0);
                       options.cuda.heap_bytes = 1 << 20;
                       std::vector<std::unique_ptr<Subject>> list;
                       for (const std::int64_t m : {2048, 1024, 1536})
                         list.push_back(std::make_unique<Subject>(world, Operator::gemm_all_reduce,
                                                                  GemmShape{m, 2048, 256, Type::bf16}, options, true));
                       const Stream stream(world);
                       for (int round = 0; round < 3; ++round)
                         for (auto& s : list) s->call(stream);
                       list.front()->op().synchronize(stream);
                       for (auto& s : list) s->judge("in a heap that grew");
                       list.pop_back();
                       list.push_back(std::make_unique<Subject>(world, Operator::gemm_all_to_all,
                                                                GemmShape{1024, 2048, 256, Type::bf16}, options, true));
                       for (auto& s : list) s->call(stream);
                       list.front()->op().synchronize(stream);
                       for (auto& s : list) s->judge("after one was dropped");
                     }),
            0);
}

// Imbrex is not told of the calls that a graph replays: taking memory for another operator waits for them by itself.
TEST(GpuOperators, AreMadeWhileAGraphReplays) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                     [](World& world) {
                       OperatorOptions options = options_of(Strategy::fused, Transport::store, 5);
                       options.cuda.heap_bytes = 1 << 20;
                       Subject first(world, Operator::gemm_all_reduce, {520, 768, 512, Type::bf16}, options, true);
                       const Stream stream(world);
                       first.call(stream);
                       first.op().synchronize(stream);
                       const cuda::Graph graph(stream, 8, [&] { first.call(stream); });
                       for (int round = 0; round < 8; ++round) {
                         for (int i = 0; i < 50; ++i) graph.launch(stream);
                         {
                           Subject next(world, Operator::gemm_all_to_all, {1024 + 64 * round, 2048, 256, Type::bf16},
                                        options, true);
                           next.call(stream);
                           next.op().synchronize(stream);
                           next.judge("of round " + std::to_string(round));
                         }
                         first.judge("replayed in round " + std::to_string(round));
                         test::meet_if_sharing(world);  // memory has been given back
                       }
                     }),
            0);
}

}  // namespace
}  // namespace imbrex
