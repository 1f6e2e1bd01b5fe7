// Operators of any M whose plans are libraries': products by cuBLASLt, and collectives by NCCL or Imbrex' own kernels,
// some through codecs. Ranks have a GPU each, or are processes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/harness/libraries.hpp"
#include "gpu/operators/any_m_subject.hpp"

namespace imbrex {
namespace {

using test::AnyM;
using test::call_any;
using test::on_ranks;
using test::Stream;

struct Kind {
  Operator op;
  GemmShape shape;
  Strategy strategy;
  std::optional<Transport> transport = {};  // store: Imbrex' own collectives
  const char* codec = nullptr;
  int calls = 1000;
};

OperatorOptions options_of(const Kind& kind) {
  OperatorOptions options = test::options_of(kind.strategy, Transport::push, 5);
  if (kind.transport) options.knobs = Knobs{.transport = *kind.transport, .partial = output_type(kind.shape.type)};
  if (kind.codec != nullptr) options.codec = parse_codec_pair(kind.codec);
  return options;
}

std::string text_of(const Kind& kind) {
  return fmt::format("{} {}{}", name_of(kind.op), name_of(kind.strategy),
                     kind.codec == nullptr ? "" : fmt::format(" through {}", kind.codec));
}

GemmShape with_list(GemmShape shape) {
  shape.more_n = {512, 0};
  shape.gathered_a = true;
  return shape;
}

const std::vector<Kind>& kinds() {
  constexpr std::int64_t m = 24 * 16;
  static const std::vector<Kind> all{
      {Operator::gemm_reduce_scatter, {m, 512, 384, Type::bf16}, Strategy::sequential},
      {Operator::all_gather_gemm, {m, 768, 256, Type::bf16, true}, Strategy::decomposed, {}, nullptr, 300},
      {Operator::all_gather_gemm, with_list({m, 768, 256, Type::bf16}), Strategy::sequential, {}, nullptr, 300},
      {Operator::gemm_all_reduce, {200, 512, 384, Type::fp16, true}, Strategy::sequential, Transport::store},
      {Operator::gemm_all_reduce, {200, 512, 384, Type::bf16}, Strategy::sequential, {}, "int8"},
      {Operator::gemm_reduce_scatter, {m, 512, 384, Type::bf16}, Strategy::decomposed, {}, "int4", 300}};
  return all;
}

/// Ranks, and the number of a kind.
class GpuAnyMByLibraries : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(GpuAnyMByLibraries, GivesTheBitsOfAnOperatorMadeForIt) {
  NEEDS_LIBRARIES;
  const auto [ranks, number] = GetParam();
  NEEDS_GPUS(ranks);
  const Kind& kind = kinds()[static_cast<std::size_t>(number)];
  if (ranks == 1 && (kind.codec != nullptr || kind.transport)) GTEST_SKIP() << "one rank sends nothing";
  EXPECT_EQ(on_ranks(ranks, 30,
                     [&](World& world) {
                       AnyM any(world, kind.op, kind.shape, options_of(kind));
                       call_any(world, any, test::many, kind.calls);
                       if (kind.codec == nullptr) return;
                       EXPECT_GT(any.made->codec_report().groups, 0);
                     }),
            0)
      << text_of(kind);
}

INSTANTIATE_TEST_SUITE_P(RanksAndKinds, GpuAnyMByLibraries,
                         testing::Combine(testing::Values(1, 4), testing::Range(0, 6)));

// Kernels that keep an account of epochs, and libraries, which have none, one after another.
TEST(GpuAnyMInTurn, TakesTurnsWithFusedPlans) {
  NEEDS_LIBRARIES;
  NEEDS_GPUS(1);
  EXPECT_EQ(on_ranks(test::most_ranks(), 30,
                     [](World& world) {
                       const GemmShape shape{384, 512, 384, Type::bf16};
                       AnyM library(world, Operator::gemm_reduce_scatter, shape,
                                    options_of({Operator::gemm_reduce_scatter, shape, Strategy::sequential})),
                           fused(world, Operator::gemm_reduce_scatter, shape,
                                 test::options_of(Strategy::fused, Transport::store, 5));
                       const std::vector<std::int64_t> sizes =
                           test::sizes_of(world, Operator::gemm_reduce_scatter, shape.m, 4);
                       for (const std::int64_t m : sizes) library.of(m), fused.of(m);
                       const Stream stream(world);
                       for (int i = 0; i < 200; ++i) {
                         const std::int64_t m = sizes[static_cast<std::size_t>(i * 7 % 4)];
                         for (AnyM* each : {&library, &fused})
                           each->of(m).poison(stream), each->of(m).call(*each->made, stream);
                         if (i % 20 != 19) continue;
                         library.made->synchronize(stream);
                         library.of(m).judge("call " + std::to_string(i)),
                             fused.of(m).judge("call " + std::to_string(i));
                       }
                       fused.made->synchronize(stream);
                     }),
            0);
}

// The plan of a call that was captured leaves the cache meanwhile, and stays.
TEST(GpuAnyMInTurn, ReplaysFromGraphs) {
  NEEDS_LIBRARIES;
  NEEDS_GPUS(1);
  EXPECT_EQ(
      on_ranks(test::most_ranks(), 30,
               [](World& world) {
                 const Kind kind{Operator::gemm_reduce_scatter, {24 * 40, 512, 384, Type::bf16}, Strategy::sequential};
                 AnyM any(world, kind.op, kind.shape, options_of(kind));
                 const std::vector<std::int64_t> list = test::sizes_of(world, kind.op, kind.shape.m, test::many);
                 for (const std::int64_t m : list) any.of(m);
                 const Stream stream(world);
                 const std::int64_t captured = list[2], unmet = list[3];
                 any.of(captured).call(*any.made, stream);
                 any.made->synchronize(stream);
                 EXPECT_NE(test::error_of([&] {
                             cuda::Graph(stream, 1, [&] { any.of(unmet).call(*any.made, stream); });
                           }).find("keeps no plan for this M"),
                           std::string::npos);
                 {
                   const cuda::Graph graph(stream, 1, [&] { any.of(captured).call(*any.made, stream); });
                   for (const std::int64_t m : list) {
                     any.of(m).call(*any.made, stream);
                     any.of(captured).poison(stream);
                     graph.launch(stream);
                   }
                   any.made->synchronize(stream);
                   any.of(captured).judge("replayed");
                 }
               }),
      0);
}

// Plans share streams, and a stream that a capture holds takes no other work: not even of the same plan.
TEST(GpuAnyMInTurn, RunsCallsWhileCapturesAreOpen) {
  NEEDS_LIBRARIES;
  NEEDS_GPUS(1);
  EXPECT_EQ(
      on_ranks(
          test::most_ranks(), 30,
          [](World& world) {
            const Kind kind{Operator::all_gather_gemm, {24 * 16, 768, 256, Type::bf16, true}, Strategy::decomposed};
            AnyM any(world, kind.op, kind.shape, options_of(kind));
            const std::vector<std::int64_t> list = test::sizes_of(world, kind.op, kind.shape.m, 6);
            const Stream direct(world), first(world), second(world);
            const auto call = [&](int i, const Stream& stream) {
              any.of(list[static_cast<std::size_t>(i)]).call(*any.made, stream);
            };
            for (int i = 0; i < 6; ++i) any.of(list[static_cast<std::size_t>(i)]), call(i, direct);
            any.made->synchronize(direct);
            for (int round = 0; round < 20; ++round) {
              for (const std::int64_t m : list) any.of(m).poison(direct);
              cudaGraph_t graphs[2] = {};
              for (const Stream* stream : {&first, &second})
                IMBREX_CUDA_TRY(cudaStreamBeginCapture(*stream, cudaStreamCaptureModeThreadLocal));
              call(0, first), call(1, direct), call(2, second), call(0, direct), call(3, first);
              IMBREX_CUDA_TRY(cudaStreamEndCapture(first, &graphs[0]));
              call(3, direct), call(4, second), call(5, direct);
              IMBREX_CUDA_TRY(cudaStreamEndCapture(second, &graphs[1]));
              any.made->synchronize(direct);
              for (const int i : {0, 1, 3, 5})
                any.of(list[static_cast<std::size_t>(i)]).judge("called beside captures");
              for (const std::int64_t m : list) any.of(m).poison(direct);
              for (cudaGraph_t graph : graphs) {
                cudaGraphExec_t executable = nullptr;
                IMBREX_CUDA_TRY(cudaGraphInstantiate(&executable, graph, 0));
                IMBREX_CUDA_TRY(cudaGraphLaunch(executable, direct));
                any.made->synchronize(direct);
                IMBREX_CUDA_TRY(cudaGraphExecDestroy(executable));
                IMBREX_CUDA_TRY(cudaGraphDestroy(graph));
              }
              for (const int i : {0, 2, 3, 4}) any.of(list[static_cast<std::size_t>(i)]).judge("captured beside calls");
            }
          }),
      0);
}

}  // namespace
}  // namespace imbrex
