// Exact all-reduces on GPUs: the bits of a sum in fp32 by rank number, on all ranks, with every algorithm, and waits
// that end.
#include <gtest/gtest.h>

#include <memory>

#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/collectives/collective_ranks.hpp"
#include "gpu/collectives/reduce_vectors.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex {
namespace {

using cuda::CollectivesOptions, cuda::CudaCollectives, cuda::ExactAlgorithm, cuda::ExactKnobs;
using Case = test::ReduceCase;
using Vectors = test::ReduceVectors;
using test::Trouble, test::expect_none, test::run_collectives;

void run_cases(int ranks, const std::vector<Case>& cases, const CollectivesOptions& options = {}, int repeats = 3) {
  Trouble trouble;
  const int code = run_collectives(
      ranks, options, 10, trouble, [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
        for (const Case& c : cases) {
          Vectors v(c, world.rank(), world.size(), static_cast<std::uint64_t>(c.count) + 3);
          test::meet_if_sharing(world);
          for (int repeat = 0; repeat < repeats; ++repeat) {
            v.fill();
            collectives.all_reduce(v.in(), v.out(), c.count, c.type, stream, c.knobs);
            collectives.finish(stream);
            if (const std::string fault = v.fault(); !fault.empty())
              t.add(c.text() + " rank " + std::to_string(world.rank()) + " repeat " + std::to_string(repeat) + ": " +
                    fault);
          }
        }
      });
  expect_none(code, trouble);
}

std::vector<Case> cases_of(ExactAlgorithm algorithm) {
  std::vector<Case> list;
  const std::int64_t million = 1 << 20;
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
    for (const std::int64_t count :
         {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, std::int64_t{8}, std::int64_t{9}, std::int64_t{31},
          std::int64_t{33}, std::int64_t{1000}, std::int64_t{4096}, std::int64_t{4099}, std::int64_t{65537},
          3 * million / 2 + 5}) {
      const std::size_t odd = static_cast<std::size_t>(count) % 7;
      list.push_back({count, type, {algorithm}});
      list.push_back({count, type, {algorithm}, 0, 0, true, true});
      list.push_back({count, type, {algorithm}, odd, 1, false, true});
      list.push_back({count, type, {algorithm}, 3, 0, true});
    }
  return list;
}

TEST(GpuAllReduce, SizesTypesAlignmentsOnTwo) {
  NEEDS_GPUS(2);
  run_cases(2, cases_of(ExactAlgorithm::one_shot));
  run_cases(2, cases_of(ExactAlgorithm::two_shot));
}

TEST(GpuAllReduce, SizesTypesAlignmentsOnThree) {
  NEEDS_GPUS(3);
  run_cases(3, cases_of(ExactAlgorithm::one_shot));
  run_cases(3, cases_of(ExactAlgorithm::two_shot));
}

TEST(GpuAllReduce, SizesTypesAlignmentsOnFour) {
  NEEDS_GPUS(4);
  run_cases(4, cases_of(ExactAlgorithm::one_shot));
  run_cases(4, cases_of(ExactAlgorithm::two_shot));
}

// Slots are used many times within a call, down to the three chunks that must fit.
TEST(GpuAllReduce, LargeVectorsThroughFewSlots) {
  NEEDS_GPUS(2);
  const int ranks = test::most_ranks();
  CollectivesOptions small;
  small.workspace_bytes = test::small_workspace(ranks);
  std::vector<Case> list;
  for (const std::int64_t count : {std::int64_t{50'000'000}, std::int64_t{9'999'991}})
    for (std::uint32_t batch = 1; batch <= cuda::most_batch(static_cast<std::uint32_t>(ranks)); batch *= 2) {
      list.push_back({count, Type::bf16, {ExactAlgorithm::two_shot, 8, 512, batch}});
      list.push_back({count, Type::fp32, {ExactAlgorithm::two_shot, 20, 512, 1}, 1, 0});
    }
  run_cases(ranks, list, small, 2);
  run_cases(ranks, {{50'000'000, Type::bf16, {}}, {25'000'001, Type::fp32, {}}, {50'000'003, Type::fp16, {}, 1, 1}}, {},
            2);
  small.delays = 11;
  small.max_delay = 1e-4;
  run_cases(ranks, {{4'000'003, Type::bf16, {ExactAlgorithm::two_shot, 8, 256, 1}}}, small, 3);
}

// Calls of every kind in one graph, replayed while warps pause at random: the same bits each time.
TEST(GpuAllReduce, TenThousandCallsFromAGraphWithPauses) {
  NEEDS_GPUS(2);
  CollectivesOptions options;
  options.workspace_bytes = std::size_t{16} << 20;
  options.delays = 5;
  options.max_delay = 1e-5;
  const std::vector<Case> cases = {{64, Type::bf16, {ExactAlgorithm::one_shot}},
                                   {8192, Type::bf16, {ExactAlgorithm::one_shot}},
                                   {100'003, Type::bf16, {ExactAlgorithm::two_shot}},
                                   {1'000'000, Type::fp16, {ExactAlgorithm::two_shot, 16, 128, 2}},
                                   {3'000, Type::fp32, {ExactAlgorithm::two_shot}}};
  Trouble trouble;
  const int code = run_collectives(test::most_ranks(), options, 10, trouble,
                                   [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
                                     std::vector<std::unique_ptr<Vectors>> vectors;
                                     const auto all = [&] {
                                       for (std::size_t i = 0; i < cases.size(); ++i)
                                         collectives.all_reduce(vectors[i]->in(), vectors[i]->out(), cases[i].count,
                                                                cases[i].type, stream, cases[i].knobs);
                                     };
                                     for (const Case& c : cases)
                                       vectors.push_back(std::make_unique<Vectors>(c, world.rank(), world.size(), 17));
                                     for (auto& v : vectors) v->fill();
                                     const cuda::Graph graph(stream, 1, all);
                                     replay(graph, collectives, stream, cases, vectors, t);
                                   });
  expect_none(code, trouble);
}

TEST(GpuAllReduce, NothingAndMistakes) {
  NEEDS_OWN_GPUS(2);
  Trouble trouble;
  CollectivesOptions small;
  small.workspace_bytes = std::size_t{16} << 20;
  const int code = run_collectives(
      2, small, 5, trouble, [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
        const auto memory = cuda::raw_memory(4096);
        auto* p = static_cast<std::byte*>(memory.get());
        const auto refused = [&](const char* what, const void* in, void* out, std::int64_t count, ExactKnobs knobs) {
          try {
            collectives.all_reduce(in, out, count, Type::bf16, stream, knobs);
            t.add(std::string(what) + " was taken");
          } catch (const Error& error) {
            if (error.code() != ErrorCode::invalid_input || std::string(error.what()).find(what) == std::string::npos)
              t.add(std::string(what) + " refused with: " + error.what());
          }
        };
        collectives.all_reduce(nullptr, nullptr, 0, Type::bf16, stream);
        collectives.finish(stream);
        refused("count = -1", p, p, -1, {});
        refused("aligned", nullptr, p, 8, {});
        refused("aligned", p + 1, p + 1, 8, {});
        refused("overlaps", p, p + 2, 8, {});
        refused("300 blocks", p, p, 8, {ExactAlgorithm::one_shot, 300});
        refused("33 threads", p, p, 8, {ExactAlgorithm::one_shot, 0, 33});
        refused("batches of 3", p, p, 8, {ExactAlgorithm::two_shot, 0, 0, 3});
        refused("2 slots", p, p, 8, {ExactAlgorithm::two_shot, 0, 0, 0, 2});
        refused("one_shot takes at most", p, p, std::int64_t{1} << 40, {ExactAlgorithm::one_shot});
        refused("at least 3", p, p, std::int64_t{1} << 34, {ExactAlgorithm::two_shot, 256, 512, 2});
        // One shot is not chosen where it does not fit, whatever is measured to be faster.
        if (collectives.shape_of(3 << 19, Type::bf16, {}).kernel != cuda::ExactKernel::two_shot)
          t.add("3 MiB take one shot with a workspace of 16 MiB");
        // They still work.
        cuda::fill(p, 0, 4096);
        collectives.all_reduce(p, p, 1000, Type::bf16, stream);
        collectives.finish(stream);
        world.barrier();
      });
  expect_none(code, trouble);
}

TEST(GpuAllReduce, WaitsPastTheirLimitNameRankStepAndPeer) {
  NEEDS_GPUS(2);
  for (const ExactAlgorithm algorithm : {ExactAlgorithm::one_shot, ExactAlgorithm::two_shot}) {
    const auto ready = [=](World&, CudaCollectives& collectives, cudaStream_t stream) {
      const std::shared_ptr<void> memory = cuda::raw_memory(1 << 20);
      cuda::fill(memory.get(), 0, 1 << 20);
      return [=, &collectives] {
        collectives.all_reduce(memory.get(), memory.get(), 1 << 19, Type::bf16, stream, {algorithm});
      };
    };
    test::expect_waits_end(ready, {"rank 1's ", "has not come"});
  }
  // The GPUs are free again.
  run_cases(2, {{1000, Type::bf16, {}}});
}

}  // namespace
}  // namespace imbrex
