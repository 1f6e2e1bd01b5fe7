// What the CUDA executor would not run, said without a GPU.
#include <gtest/gtest.h>

#include "execute/cuda/refusal.hpp"
#include "plan/operand_buffers.hpp"

namespace imbrex {
namespace {

using cuda::refusal_of_gpus;
using cuda::refusal_of_plan;

GpuSurvey hoppers(std::size_t count) {
  GpuSurvey survey;
  survey.gpus.assign(count, {"NVIDIA H200", "GPU-0", std::size_t{1} << 37, 132, 9, 0, true, true});
  survey.links.assign(count * count, GpuLink::nvlink);
  return survey;
}

void expect_says(const std::string& refusal, const std::string& words) {
  EXPECT_NE(refusal.find(words), std::string::npos) << refusal;
}

TEST(CudaRefusal, OfGpus) {
  EXPECT_EQ(refusal_of_gpus(hoppers(4), 4, true, false), "");
  EXPECT_EQ(refusal_of_gpus(hoppers(4), 2, true, false), "");
  EXPECT_EQ(refusal_of_gpus(hoppers(1), 4, true, true), "");  // each process its own
  expect_says(refusal_of_gpus(hoppers(1), 4, true, false), "4 ranks need a GPU each, and there is 1");
  expect_says(refusal_of_gpus(hoppers(2), 4, true, true), "there are 2");
  GpuSurvey none;
  none.reason = "there is no NVIDIA driver";
  expect_says(refusal_of_gpus(none, 1, false, false), "there is no NVIDIA driver");
}

TEST(CudaRefusal, OfGpusThatRanksShare) {
  for (const bool processes : {true, false}) {
    EXPECT_EQ(refusal_of_gpus(hoppers(1), 4, processes, false, true, 4), "");
    EXPECT_EQ(refusal_of_gpus(hoppers(2), 3, processes, false, true, 2), "");
    EXPECT_EQ(refusal_of_gpus(hoppers(1), 4, processes, false, true, 64), "");
    EXPECT_EQ(refusal_of_gpus(hoppers(1), 4, processes, false, true, 2),
              "4 ranks, 2 to a GPU, need 2 GPUs, and there is 1");
    EXPECT_EQ(refusal_of_gpus(hoppers(2), 64, processes, true, true, 4),
              "64 ranks, 4 to a GPU, need 16 GPUs, and there are 2");
  }
  EXPECT_EQ(refusal_of_gpus(hoppers(1), 4, true, true, true, 2), "");  // each process one of theirs
  GpuSurvey survey = hoppers(1);
  survey.gpus[0].exports_memory = false;
  expect_says(refusal_of_gpus(survey, 4, true, false, true, 4), "ranks can be threads");
}

TEST(CudaRefusal, OfPlansOnGpusThatRanksShare) {
  const Problem gather{Operator::all_gather_gemm, 512, 256, 256, 4, Type::bf16};
  const Plan pushed = make_plan(gather, Strategy::fused, {.transport = Transport::push}),
             pulled = make_plan(gather, Strategy::fused, {.transport = Transport::pull}),
             stored = make_plan(gather, Strategy::fused, {.transport = Transport::store}),
             sequential = make_plan(gather, Strategy::sequential, {}),
             decomposed = make_plan(gather, Strategy::decomposed, {});
  for (const Plan* plan : {&pushed, &pulled, &stored, &sequential, &decomposed})
    EXPECT_EQ(cuda::refusal_of_sharing(*plan, 1, false), "");
  for (const bool processes : {true, false}) {
    const std::string copies =
        "4 ranks to a GPU: operands that copy engines bring need a GPU for each rank; transport store does not";
    EXPECT_EQ(cuda::refusal_of_sharing(pushed, 4, processes), copies);
    EXPECT_EQ(cuda::refusal_of_sharing(pulled, 4, processes), copies);
    EXPECT_EQ(cuda::refusal_of_sharing(stored, 4, processes), "");
  }
  for (const Plan* plan : {&sequential, &decomposed}) {
    EXPECT_EQ(cuda::refusal_of_sharing(*plan, 2, true), "");
    EXPECT_EQ(
        cuda::refusal_of_sharing(*plan, 2, false),
        "2 ranks to a GPU: library collectives need a GPU for each rank that is a thread; processes may share one");
  }
}

TEST(CudaRefusal, OfWhatAGpuLacks) {
  GpuSurvey survey = hoppers(4);
  survey.gpus[2].major = 8;
  expect_says(refusal_of_gpus(survey, 4, true, false), "GPU 2 (NVIDIA H200) has compute capability 8.0");
  EXPECT_EQ(refusal_of_gpus(survey, 4, true, false, true), "");
  survey.gpus[2].major = 7;
  expect_says(refusal_of_gpus(survey, 4, true, false, true), "GPU 2 (NVIDIA H200) has compute capability 7.0");
  EXPECT_EQ(refusal_of_gpus(survey, 2, true, false), "");
  survey = hoppers(4);
  survey.gpus[1].exports_memory = false;
  expect_says(refusal_of_gpus(survey, 4, true, false), "GPU 1");
  EXPECT_EQ(refusal_of_gpus(survey, 4, false, false), "");
  survey.gpus[1].maps_memory = false;
  expect_says(refusal_of_gpus(survey, 4, false, false), "virtual memory management");
  survey = hoppers(4);
  survey.links[1 * 4 + 3] = GpuLink::pcie;
  expect_says(refusal_of_gpus(survey, 4, false, false), "GPU 1 has no peer access with native atomics to GPU 3");
}

TEST(CudaRefusal, OfPlans) {
  Knobs knobs;
  knobs.transport = Transport::store;
  const Problem scatter{Operator::gemm_reduce_scatter, 512, 256, 256, 4, Type::bf16},
      gather{Operator::all_gather_gemm, 512, 256, 256, 4, Type::bf16};
  EXPECT_EQ(refusal_of_plan(make_plan(scatter, Strategy::fused, knobs)), "");
  knobs.transport = Transport::push;
  EXPECT_EQ(refusal_of_plan(make_plan(gather, Strategy::fused, knobs)), "");
  expect_says(refusal_of_plan(make_plan(scatter, Strategy::fused, knobs)), "transport store");
  knobs.transport = Transport::pull;
  EXPECT_NE(refusal_of_plan(make_plan(gather, Strategy::fused, knobs)), "");
}

TEST(CudaRefusal, OfSeveralOutputs) {
  Problem p{Operator::all_gather_gemm, 512, 1024, 256, 4, Type::bf16};
  p.gathered_a = true;
  const auto expect_runs = [&] {
    for (const Transport transport : {Transport::push, Transport::store})
      EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::fused, {.transport = transport})), "");
    for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
      EXPECT_EQ(refusal_of_plan(make_plan(p, strategy, {})), "");
  };
  expect_runs();
  p.more_n = {256, 128};
  expect_runs();
  p.bias = true;
  expect_runs();
  // Other ranks store to the first output only.
  Plan plan = make_plan(p, Strategy::fused, {.transport = Transport::store});
  const int further = plan::buffer_out_of(p, 1);
  for (Task& task : plan.ranks[0].queues[0].tasks)
    if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && tile->stores.front().to.buffer == further) {
      tile->stores.front().to.rank = 1;
      break;
    }
  expect_says(refusal_of_plan(plan), "out1 is touched by other ranks");
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
    EXPECT_EQ(refusal_of_plan(make_plan(p, strategy, {})), "");
  p.more_n = {256, 120};  // 30 columns a rank
  expect_says(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "of 256 and 30 elements");
}

TEST(CudaRefusal, OfABiasBehindARoundedProduct) {
  Problem p{Operator::all_gather_gemm, 512, 1000, 256, 4, Type::bf16, true};  // 250 columns a rank
  expect_says(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "of 256 and 250 elements");
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::fused, {.transport = Transport::store})), "");
  p.bias = false;
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "");
  p = {Operator::all_gather_gemm, 512, 1024, 256, 4, Type::bf16, true};
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "");
  p.k = 252;
  expect_says(refusal_of_plan(make_plan(p, Strategy::decomposed, {})), "before it adds a bias");
  p.type = Type::fp32;
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "");
  // Rows of the output, where the product writes it.
  p = {Operator::all_gather_gemm, 512, 1024, 256, 4, Type::bf16, true};
  p.ldo = 264;
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "");
  p.ldo = 259;
  expect_says(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "here of out, lie 259 elements apart");
  p.op = Operator::gemm_all_to_all;
  p.ldo = 1027;
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "");
  // A sum adds it.
  p = {Operator::gemm_reduce_scatter, 512, 250, 256, 4, Type::bf16, true};
  p.ldo = 251;
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "");
}

}  // namespace
}  // namespace imbrex
