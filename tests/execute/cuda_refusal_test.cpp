// What the CUDA executor would not run, said without a GPU.
#include <gtest/gtest.h>

#include "execute/cuda/refusal.hpp"

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
  // A sum adds it.
  p = {Operator::gemm_reduce_scatter, 512, 250, 256, 4, Type::bf16, true};
  EXPECT_EQ(refusal_of_plan(make_plan(p, Strategy::sequential, {})), "");
}

}  // namespace
}  // namespace imbrex
