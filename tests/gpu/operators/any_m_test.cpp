// Operators that take any M on GPUs: the bits of an operator made for each, no collective set-up, graphs, and what they
// refuse.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/operators/any_m_subject.hpp"

namespace imbrex {
namespace {

using test::AnyM;
using test::call_any;
using test::entered;
using test::error_of;
using test::many;
using test::on_ranks;
using test::sizes_of;
using test::Stream;

// All operators of a world have the same CUDA options.
OperatorOptions options_of(bool plans_given, std::uint64_t first_epoch = 0) {
  OperatorOptions options =
      test::options_of(plans_given ? std::optional(Strategy::fused) : std::nullopt, Transport::store, 5);
  options.cuda.testing.first_epoch = first_epoch;
  return options;
}

// With further B, and the gathered A as an output.
GemmShape with_lists(GemmShape shape, std::int64_t second, std::int64_t third) {
  shape.more_n = {second, third};
  shape.gathered_a = true;
  return shape;
}

class GpuAnyM : public testing::TestWithParam<int> {};

TEST_P(GpuAnyM, GivesTheBitsOfAnOperatorMadeForItInAThousandCalls) {
  NEEDS_GPUS(GetParam());
  struct Kind {
    Operator op;
    GemmShape shape;
    int calls;
  };
  const std::int64_t m = 24 * 48;  // divides by all numbers of ranks
  for (const Kind& kind : {Kind{Operator::gemm_all_reduce, {640, 512, 384, Type::bf16}, 1000},
                           Kind{Operator::gemm_reduce_scatter, {m, 512, 384, Type::bf16, true}, 1000},
                           Kind{Operator::all_gather_gemm, {m, 768, 256, Type::bf16}, 1000},
                           Kind{Operator::gemm_all_to_all, {m, 512, 256, Type::fp16}, 300},
                           Kind{Operator::gemm_all_reduce, {200, 256, 384, Type::e4m3, false, Scales::row}, 300},
                           Kind{Operator::all_gather_gemm, {24 * 10, 96, 40, Type::fp32}, 300},
                           Kind{Operator::all_gather_gemm, with_lists({m, 768, 256, Type::bf16, true}, 512, 128), 1000},
                           Kind{Operator::all_gather_gemm, with_lists({24 * 10, 256, 128, Type::e4m3}, 0, 0), 300}})
    for (const std::uint64_t first_epoch : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 9}) {
      if (first_epoch != 0 && kind.op != Operator::gemm_all_reduce) continue;
      EXPECT_EQ(on_ranks(GetParam(), 20,
                         [&](World& world) {
                           AnyM any(world, kind.op, kind.shape, options_of(true, first_epoch));
                           call_any(world, any, many, kind.calls);
                         }),
                0)
          << name_of(kind.op) << " " << name_of(kind.shape.type) << " from epoch " << first_epoch;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuAnyM, testing::Values(1, 2, 4), testing::PrintToStringParamName());

// What the choice takes for each M, which other ranks do not hear of.
TEST(GpuAnyM, ChoosesAPlanForEachM) {
  NEEDS_OWN_GPUS(1);
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce})
    EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                       [&](World& world) {
                         AnyM any(world, op, {2048, 1024, 1024, Type::bf16}, options_of(false));
                         call_any(world, any, 12, 100);
                       }),
              0)
        << name_of(op);
}

// An operator whose calls come between: both are in one order.
TEST(GpuAnyM, TakesTurnsWithOtherOperators) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                     [](World& world) {
                       AnyM reduce(world, Operator::gemm_all_reduce, {512, 512, 512, Type::bf16}, options_of(true)),
                           gather(world, Operator::all_gather_gemm, {960, 768, 256, Type::bf16}, options_of(true));
                       const std::vector<std::int64_t> first = sizes_of(world, reduce.kind, 512, 5),
                                                       second = sizes_of(world, gather.kind, 960, 5);
                       for (std::size_t i = 0; i < 5; ++i) reduce.of(first[i]), gather.of(second[i]);
                       const Stream stream(world), side(world);
                       std::mt19937_64 order(3);
                       for (int i = 0; i < 300; ++i) {
                         const cudaStream_t on = order() % 2 == 0 ? stream : side;
                         reduce.of(first[order() % 5]).call(*reduce.made, on);
                         gather.of(second[order() % 5]).call(*gather.made, on);
                         if (i % 30 != 29) continue;
                         reduce.made->synchronize(stream);
                         reduce.made->synchronize(side);
                         for (auto& [m, sized] : gather.sizes) sized.call(*gather.made, stream);
                         gather.made->synchronize(stream);
                         for (auto& [m, sized] : gather.sizes) sized.judge("round " + std::to_string(i));
                       }
                       for (auto& [m, sized] : reduce.sizes) {
                         sized.call_and_wait(*reduce.made);
                         sized.judge("at the end");
                       }
                     }),
            0);
}

// Graphs of one call, and of three; the plans of those that were captured leave the cache meanwhile, and stay.
void replay(World& world, Operator op, const GemmShape& shape) {
  AnyM any(world, op, shape, options_of(true));
  const std::vector<std::int64_t> list = sizes_of(world, op, shape.m, many);
  for (const std::int64_t m : list) any.of(m);
  const Stream stream(world);
  const std::int64_t small = list[2], large = list[3], unmet = list[4];
  for (const std::int64_t m : {small, large}) any.of(m).call(*any.made, stream);
  any.made->synchronize(stream);
  EXPECT_EQ(error_of([&] { cuda::Graph(stream, 1, [&] { any.of(unmet).call(*any.made, stream); }); }),
            fmt::format("M = {}: the stream is being captured, and this operator keeps no plan for this M; call it "
                        "once with this M before the capture",
                        unmet));
  std::vector<std::unique_ptr<cuda::Graph>> graphs;
  for (const std::int64_t m : {small, large})
    graphs.push_back(std::make_unique<cuda::Graph>(stream, 1, [&] { any.of(m).call(*any.made, stream); }));
  int number = 0;
  graphs.push_back(
      std::make_unique<cuda::Graph>(stream, 3, [&] { any.of(number++ == 1 ? large : small).call(*any.made, stream); }));
  std::mt19937_64 order(11);
  const std::uint64_t before = entered(world);
  for (int i = 0; i < 400; ++i) {
    if (i % 20 == 0)
      for (auto& [m, sized] : any.sizes) sized.poison(stream);
    graphs[order() % graphs.size()]->launch(stream);
    const std::int64_t m = list[i < 100 ? 2 + order() % 6 : order() % list.size()];
    if (order() % 3 == 0) any.of(m).call(*any.made, stream);
    if (i % 20 != 19) continue;
    for (const auto& graph : graphs) graph->launch(stream);
    any.of(m).call(*any.made, stream);
    any.made->synchronize(stream);
    for (const std::int64_t each : {small, large, m}) any.of(each).judge("replay " + std::to_string(i));
  }
  EXPECT_EQ(entered(world), before);
}

TEST(GpuAnyM, ReplaysFromGraphsOfSeveralSizes) {
  NEEDS_GPUS(2);
  for (const Operator op : {Operator::gemm_all_reduce, Operator::all_gather_gemm, Operator::gemm_reduce_scatter})
    EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                       [&](World& world) {
                         replay(world, op, {24 * 40, 768, 384, Type::bf16});
                       }),
              0)
        << name_of(op);
}

// Free bytes of this rank's GPU.
std::size_t free_bytes() {
  std::size_t free = 0, all = 0;
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  IMBREX_CUDA_TRY(cudaMemGetInfo(&free, &all));
  return free;
}

// After the one that needs most, others take tables alone, in whatever order they come and go.
TEST(GpuAnyM, OperatorsOfAWorldWorkInOneArea) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20,
                     [](World& world) {
                       const auto make = [&](std::int64_t m, std::int64_t n) {
                         GemmShape shape{m, n, 512, Type::bf16};
                         shape.any_m = true;
                         return test::make_operator(world, Operator::gemm_reduce_scatter, shape, options_of(true));
                       };
                       const auto largest = make(4096, 4096);
                       const std::size_t before = free_bytes();
                       std::vector<std::unique_ptr<GemmOperator>> others;
                       for (int i = 0; i < 12; ++i) {
                         others.push_back(make(1024 + 256 * i, 1024 + 256 * (i % 8)));
                         if (i % 3 == 2) others.erase(others.begin());
                       }
                       const std::size_t after = free_bytes();
                       EXPECT_LE(before - std::min(before, after), std::size_t{8} << 20);
                     }),
            0);
}

// Three layers' operators, whose largest M comes first: calls of any M after it take nothing, whatever is chosen for
// them.
TEST(GpuAnyM, CallsTakeNoMemory) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(on_ranks(2, 60,
                     [](World& world) {
                       constexpr std::int64_t most = 4096;
                       constexpr std::size_t largest = std::size_t{most} * most * 8;
                       test::select_gpu(world);
                       runtime::DeviceMemory in(largest), out(largest);
                       IMBREX_CUDA_TRY(cudaMemset(in.get(), 0, largest));
                       std::vector<std::unique_ptr<GemmOperator>> all;
                       for (const auto [n, k] : {std::pair{4096, 1024}, {2048, 4096}, {4096, 2048}})
                         for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                                                   Operator::gemm_all_reduce, Operator::gemm_all_to_all}) {
                           GemmShape shape{most, n, k, Type::bf16};
                           shape.any_m = true;
                           all.push_back(test::make_operator(world, op, shape, options_of(false)));
                         }
                       const Stream stream(world);
                       const auto call = [&](GemmOperator& op, std::int64_t m) {
                         std::vector<Operand> operands;
                         for (const OperandInfo& info : op.operands())
                           operands.push_back(info.role == OperandRole::output ? op.operand(info.name, out.get(), m)
                                                                               : op.operand(info.name, in.get(), m));
                         op.run(operands, stream);
                       };
                       for (const auto& op : all) call(*op, most);
                       const std::size_t before = free_bytes();
                       std::mt19937_64 random(test::seed_from_environment());
                       for (int i = 0; i < 3000; ++i) {
                         GemmOperator& op = *all[random() % all.size()];
                         call(op, 2 * static_cast<std::int64_t>(1 + random() % (most / 2)));
                         if (i % 50 == 49) op.synchronize(stream);
                       }
                       for (const auto& op : all) op->synchronize(stream);
                       const std::size_t after = free_bytes();
                       EXPECT_LE(before - std::min(before, after), std::size_t{8} << 20);
                     }),
            0);
}

// The memory that they share is replaced as larger ones are made: some calls were captured before, some have plans
// kept, and operators end between calls of others.
TEST(GpuAnyM, ComeAndGoBesideOthers) {
  NEEDS_GPUS(2);
  EXPECT_EQ(
      on_ranks(test::most_ranks(), 20,
               [](World& world) {
                 test::select_gpu(world);
                 const Stream stream(world);
                 std::mt19937_64 random(test::seed_from_environment());
                 std::vector<std::unique_ptr<AnyM>> all;
                 struct Kept {
                   std::unique_ptr<cuda::Graph> graph;
                   test::Sized* sized;
                 };
                 std::vector<Kept> graphs;
                 for (int i = 0; i < 12; ++i) {
                   const Operator op = i % 2 == 0 ? Operator::gemm_reduce_scatter : Operator::all_gather_gemm;
                   const std::int64_t m = 24 * (4 + 6 * static_cast<std::int64_t>(random() % 8) + 4 * i);
                   const Type type = i % 3 == 0 ? Type::fp16 : Type::bf16;
                   all.push_back(std::make_unique<AnyM>(world, op, GemmShape{m, 768, 384, type}, options_of(true)));
                   for (const std::int64_t one : sizes_of(world, op, m, 4)) all.back()->of(one);
                   if (i == 5 || i == 8) {  // the operators of graphs live on
                     test::Sized& first = all.back()->sizes.begin()->second;
                     first.call(*all.back()->made, stream);
                     all.back()->made->synchronize(stream);
                     graphs.push_back(
                         {std::make_unique<cuda::Graph>(stream, 1, [&] { first.call(*all.back()->made, stream); }),
                          &first});
                   }
                   // What gives memory back, or makes a graph, waits for kernels of ranks that share the GPU.
                   test::meet_if_sharing(world);
                   if (i % 4 == 3) all.erase(all.begin());
                   test::meet_if_sharing(world);
                   for (int call = 0; call < 40; ++call) {
                     AnyM& any = *all[random() % all.size()];
                     auto sized = any.sizes.begin();
                     std::advance(sized, static_cast<std::ptrdiff_t>(random() % any.sizes.size()));
                     sized->second.call(*any.made, stream);
                     if (!graphs.empty() && random() % 3 == 0) graphs[random() % graphs.size()].graph->launch(stream);
                   }
                   all.back()->made->synchronize(stream);
                   for (const auto& any : all) {
                     for (auto& [rows, sized] : any->sizes) sized.call(*any->made, stream);
                     any->made->synchronize(stream);
                     for (auto& [rows, sized] : any->sizes) sized.judge("round " + std::to_string(i));
                   }
                   for (const Kept& kept : graphs) {
                     kept.sized->poison(stream);
                     kept.graph->launch(stream);
                     all.back()->made->synchronize(stream);
                     kept.sized->judge("replayed in round " + std::to_string(i));
                   }
                 }
               }),
      0);
}

// Also where the plan of the first largest M has memory of its own, and a graph holds a call of it.
TEST(GpuAnyM, GrowsBetweenCallsAndReplays) {
  NEEDS_OWN_GPUS(2);
  for (const Operator op : {Operator::gemm_all_reduce, Operator::all_gather_gemm, Operator::gemm_reduce_scatter})
    for (const bool given : {true, false})
      EXPECT_EQ(on_ranks(2, 20,
                         [&](World& world) {
                           AnyM any(world, op, {256, 1024, 1024, Type::bf16}, options_of(given));
                           const Stream stream(world);
                           Problem problem = any.made->plan().problem;
                           test::Sized first(world, problem, any.of_size(256));
                           first.call(*any.made, stream);
                           any.made->synchronize(stream);
                           first.judge("before");
                           const cuda::Graph graph(stream, 1, [&] { first.call(*any.made, stream); });
                           for (const std::int64_t m : {512, 2048, 1024, 4096}) {
                             any.grow(m);
                             const std::string when = " after growth to " + std::to_string(m);
                             for (const std::int64_t each : sizes_of(world, op, std::min<std::int64_t>(m, 2048), 6))
                               any.of(each).call(*any.made, stream);
                             first.poison(stream);
                             graph.launch(stream);
                             any.made->synchronize(stream);
                             first.judge("a replay" + when);
                             for (auto& [rows, sized] : any.sizes) sized.judge("a call" + when);
                           }
                         }),
                0)
          << name_of(op) << (given ? " with a plan" : "");
}

TEST(GpuAnyM, TakesOperandsFromHostMemory) {
  NEEDS_OWN_GPUS(1);
  EXPECT_EQ(
      on_ranks(test::most_ranks(), 20,
               [](World& world) {
                 AnyM any(world, Operator::gemm_reduce_scatter, {480, 256, 256, Type::bf16, true}, options_of(true));
                 for (const std::int64_t m : sizes_of(world, any.kind, 480, 6)) any.of(m);
                 for (int round = 0; round < 2; ++round)
                   for (auto& [m, sized] : any.sizes) sized.call_from_host(*any.made);
               }),
      0);
}

TEST(GpuAnyM, RefusesWhatItDoesNotRun) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20,
                     [](World& world) {
                       const auto refused = [&](Strategy strategy, Transport transport) {
                         OperatorOptions options = test::options_of(strategy, transport, 0);
                         return error_of([&] {
                           AllGatherGemm(world, {.m = 512, .n = 512, .k = 256, .type = Type::bf16, .any_m = true},
                                         options);
                         });
                       };
                       const std::string lanes = refused(Strategy::signaled, Transport::push),
                                         copies = refused(Strategy::fused, Transport::push);
                       EXPECT_NE(lanes.find("serve no operator of any M"), std::string::npos) << lanes;
                       EXPECT_NE(copies.find("transport store"), std::string::npos) << copies;
                     }),
            0);
}

// Rank 1 keeps away from a call: the message names a task of the plan that waited.
TEST(GpuAnyM, NamesTheTaskWhoseWaitPassesItsLimit) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  std::string message;
  const int code = on_ranks(2, 2, [&](World& world) {
    AnyM any(world, Operator::gemm_all_reduce, {512, 512, 512, Type::bf16}, options_of(true));
    const Stream stream(world);
    for (const std::int64_t m : {512, 64, 200}) any.of(m);
    for (const std::int64_t m : {512, 64, 200}) any.of(m).call(*any.made, stream);
    any.made->synchronize(stream);
    world.barrier();
    if (world.rank() == 1)
      for (;;) {
        world.throw_if_failed();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    try {
      any.of(64).call(*any.made, stream);
      any.made->synchronize(stream);
    } catch (const Error& error) {
      message = error.what();
      throw;
    }
  });
  EXPECT_EQ(code, 3);
  EXPECT_NE(message.find("waited longer than 2 s for signal"), std::string::npos) << message;
  EXPECT_NE(message.find("in epoch 3: "), std::string::npos) << message;
}

}  // namespace
}  // namespace imbrex
