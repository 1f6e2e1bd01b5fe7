// Collectives of a world, which work in one memory: each object tells of its own calls, and later ones take no more.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/all_reduce.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/collectives/reduce_vectors.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/stream.hpp"
#include "runtime/cuda/check.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::ReduceVectors, test::Trouble, test::expect_none;

constexpr std::int64_t most = 60'000;

// An all-reduce, its operands, and what the CPU gives for them.
struct Subject {
  Subject(World& world, const AllReduceOptions& options, bool hostile, std::uint64_t seed)
      : gpu(collectives::make_cuda_all_reduce(world, most, Type::bf16, options)),
        cpu(collectives::make_cpu_all_reduce(world, most, Type::bf16, options)),
        vectors({most, Type::bf16, {}, 0, 0, false, hostile}, world.rank(), world.size(), seed) {
    vectors.fill();
    const std::vector<std::byte> in = vectors.input();
    want.resize(in.size());
    (*cpu)(in.data(), want.data(), most);
    told = cpu->report();
  }

  void call(cudaStream_t stream) { (*gpu)(vectors.in(), vectors.out(), most, stream); }

  // What differs from the CPU's, which for exact sums looks at more elements at a time.
  std::string fault(const std::string& when) {
    const AllReduceReport own = gpu->report();
    if (test::first_difference(Type::bf16, vectors.output().data(), most, want) >= 0) return when + ": wrong sums";
    const bool same_error =
        told.exact ? own.largest_error <= told.largest_error * 1.01f : own.largest_error == told.largest_error;
    if (same_error && own.exact == told.exact && own.groups == told.groups && own.raw_groups == told.raw_groups &&
        own.non_finite == told.non_finite)
      return {};
    return fmt::format("{}: error {} CPU {}, groups {} {}, raw {} {}, not finite {} {}, exact {} {}", when,
                       own.largest_error, told.largest_error, own.groups, told.groups, own.raw_groups, told.raw_groups,
                       own.non_finite, told.non_finite, own.exact, told.exact);
  }

  std::unique_ptr<collectives::AllReduceBackend> gpu, cpu;
  ReduceVectors vectors;
  std::vector<std::byte> want;
  AllReduceReport told;
};

std::vector<AllReduceOptions> some_options() {
  std::vector<AllReduceOptions> all(1);
  for (const char* codec : {"int8", "int4+int8", "flash4"})
    for (const float tolerance : {-1.0f, 0.05f}) {
      AllReduceOptions options;
      options.codec = parse_codec_pair(codec);
      options.algorithm = AllReduceAlgorithm::two_shot;
      if (tolerance >= 0) options.tolerance = tolerance;
      all.push_back(options);
    }
  AllReduceOptions whole = all[2];
  whole.whole_call = true;
  all.push_back(whole);
  return all;
}

// Calls come in any order, on two streams and from a graph; reports are asked for long after.
TEST(GpuSharedCollectives, EachTellsOfItsOwnLastCall) {
  NEEDS_OWN_GPUS(2);
  Trouble faults;
  const auto seed = test::seed_from_environment();
  const auto body = [&](World& world) {
    test::select_gpu(world);
    std::vector<std::unique_ptr<Subject>> all;
    for (const AllReduceOptions& options : some_options())
      all.push_back(std::make_unique<Subject>(world, options, all.size() % 2 == 1, seed + all.size()));
    const test::Stream one(world), other(world);
    std::mt19937_64 random(seed);
    for (int round = 0; round < 60; ++round) {
      for (int call = 0; call < 8; ++call) all[random() % all.size()]->call(random() % 2 == 0 ? one : other);
      for (auto& subject : all) subject->call(random() % 2 == 0 ? one : other);
      for (int asked = 0; asked < 3; ++asked)
        if (const std::string fault = all[random() % all.size()]->fault(fmt::format("round {}", round)); !fault.empty())
          faults.add(fmt::format("rank {}, {}", world.rank(), fault));
    }
    Subject &first = *all[3], &second = *all[5];
    const cuda::Graph graph(one, 1, [&] { first.call(one); });
    for (int round = 0; round < 20; ++round) {
      graph.launch(one);
      second.call(one);
      if (round % 2 == 0) graph.launch(one);
      for (Subject* subject : {&second, &first})
        if (const std::string fault = subject->fault(fmt::format("replay {}", round)); !fault.empty())
          faults.add(fmt::format("rank {}, {}", world.rank(), fault));
    }
    return 0;
  };
  expect_none(test::on_world(2, {.heap_bytes = 64 << 20, .wait_limit = 20}, body), faults);
}

TEST(GpuSharedCollectives, FurtherObjectsTakeNoWorkspace) {
  NEEDS_OWN_GPUS(2);
  const auto body = [&](World& world) {
    test::select_gpu(world);
    const auto free_bytes = [] {
      std::size_t free = 0, all = 0;
      IMBREX_CUDA_TRY(cudaMemGetInfo(&free, &all));
      return free;
    };
    const auto first = collectives::make_cuda_all_reduce(world, most, Type::bf16, {});
    const std::size_t before = free_bytes();
    std::vector<std::unique_ptr<collectives::AllReduceBackend>> all;
    for (const AllReduceOptions& options : some_options())
      all.push_back(collectives::make_cuda_all_reduce(world, most, Type::fp16, options));
    const std::size_t after = free_bytes();
    EXPECT_LE(before - std::min(before, after), std::size_t{8} << 20);
    return 0;
  };
  EXPECT_EQ(test::on_world(2, {.heap_bytes = 64 << 20, .wait_limit = 20}, body), 0);
}

}  // namespace
}  // namespace imbrex
