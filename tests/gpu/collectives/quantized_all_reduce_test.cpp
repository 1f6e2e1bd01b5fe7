// All-reduces through codecs on GPUs: the bits and the report of the one on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/convert.hpp"
#include "codec/chunk.hpp"
#include "collectives/backend.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/collectives/reduce_vectors.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

using cuda::QuantizedKnobs, cuda::QuantizedWay, cuda::CollectivesOptions, cuda::CudaCollectives;
using test::ReduceCase, test::ReduceVectors;
using test::Trouble, test::expect_none;

struct QuantizedCase {
  ReduceCase base;
  std::string codec;
  QuantizedKnobs knobs;
};

// First element whose bits differ, NaN for NaN apart; -1 if none.
std::int64_t difference(Type type, const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  const std::size_t element = size_of(type), count = got.size() / element;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(got.data() + i * element, want.data() + i * element, element) == 0) continue;
    float a = 0, b = 0;
    base::to_float(type, got.data() + i * element, &a, 1);
    base::to_float(type, want.data() + i * element, &b, 1);
    if (!(std::isnan(a) && std::isnan(b))) return static_cast<std::int64_t>(i);
  }
  return -1;
}

struct Report {
  float error;
  std::int64_t non_finite;
};

Report whole(World& world, const CudaCollectives& collectives) {
  const cuda::CommReport own = collectives.report();
  std::vector<cuda::CommReport> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  Report r{0, 0};
  for (const cuda::CommReport& one : all) {
    r.error = std::max(r.error, std::bit_cast<float>(one.error_bits));
    r.non_finite += static_cast<std::int64_t>(one.non_finite);
  }
  return r;
}

void run_cases(int ranks, const std::vector<QuantizedCase>& cases, const CollectivesOptions& options = {},
               int repeats = 2) {
  Trouble faults;
  const auto body = [&](World& world) {
    const int device = test::select_gpu(world);
    CudaCollectives collectives(world, device, test::sharing(options));
    const test::Stream stream(world);
    for (const QuantizedCase& c : cases) {
      const CodecPair pair = parse_codec_pair(c.codec);
      const auto tell = [&](const std::string& what) {
        faults.add(c.base.text() + " " + c.codec + " rank " + std::to_string(world.rank()) + ": " + what);
      };
      ReduceVectors v(c.base, world.rank(), world.size(), 5);
      const std::vector<std::byte> in = v.input();
      std::vector<std::byte> want(in.size());
      AllReduceOptions cpu;
      cpu.codec = pair;
      const bool ring = c.knobs.steps == cuda::QuantizedSteps::ring;
      cpu.algorithm = ring ? AllReduceAlgorithm::ring : AllReduceAlgorithm::two_shot;
      const auto reference = collectives::make_cpu_all_reduce(world, c.base.count, c.base.type, cpu);
      (*reference)(in.data(), want.data(), c.base.count);
      const AllReduceReport said = reference->report();
      for (int repeat = 0; repeat < repeats; ++repeat) {
        v.fill();
        collectives.all_reduce(v.in(), v.out(), c.base.count, c.base.type, pair, stream, c.knobs);
        collectives.finish(stream);
        const std::vector<std::byte> got = v.output();
        if (const std::int64_t at = difference(c.base.type, got, want); at >= 0) {
          float a = 0, b = 0;
          base::to_float(c.base.type, got.data() + static_cast<std::size_t>(at) * size_of(c.base.type), &a, 1);
          base::to_float(c.base.type, want.data() + static_cast<std::size_t>(at) * size_of(c.base.type), &b, 1);
          tell("element " + std::to_string(at) + " is " + std::to_string(a) + ", on the CPU " + std::to_string(b));
        }
        const Report report = whole(world, collectives);
        if (!(report.error <= said.largest_error) || (!ring && report.error != said.largest_error) ||
            report.non_finite != said.non_finite)
          tell("reports " + std::to_string(report.error) + " and " + std::to_string(report.non_finite) + ", the CPU " +
               std::to_string(said.largest_error) + " and " + std::to_string(said.non_finite));
      }
    }
    return 0;
  };
  expect_none(test::on_world(ranks, {.heap_bytes = 64 << 20, .wait_limit = 10}, body), faults);
}

std::vector<QuantizedCase> every_codec(Type type) {
  std::vector<QuantizedCase> list;
  for (const char* codec : {"int8",           "int6",
                            "int5",           "int4",
                            "int3",           "fp8",
                            "int8-asym",      "int4-asym",
                            "int4+int8",      "int4-asym+int8-asym",
                            "flash8",         "flash6",
                            "flash4",         "int8-g64-fp32",
                            "int4-e8m0",      "fp8-g128-e8m0",
                            "int6-asym-g64",  "int3-asym-fp32",
                            "int5-g128+fp8",  "int8-asym-g64-e8m0+int6",
                            "int4+int8-g128", "int8-g128+int8"})
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{127}, std::int64_t{129}, std::int64_t{4096},
                                     std::int64_t{100'003}, std::int64_t{786'432}}) {
      const bool packets = cuda::quantized_packets_kernel(type, 2, parse_codec_pair(codec), false) != nullptr;
      QuantizedKnobs knobs;
      for (const QuantizedWay way : {QuantizedWay::automatic, QuantizedWay::copies}) {
        if (way == QuantizedWay::copies && !packets) continue;
        knobs.way = way;
        list.push_back({{count, type, {}, 0, 0, false, false}, codec, knobs});
        list.push_back({{count, type, {}, 1, 3, false, true}, codec, knobs});
      }
    }
  return list;
}

// The public object on a GPU and on the CPU: bits and whole reports.
void compare_objects(int ranks, Type type, const std::vector<std::int64_t>& counts,
                     const std::vector<std::pair<std::string, AllReduceOptions>>& list) {
  Trouble faults;
  const auto body = [&](World& world) {
    for (const auto& [name, options] : list)
      for (const std::int64_t count : counts)
        for (const bool hostile : {false, true}) {
          const auto tell = [&](const std::string& what) {
            faults.add(name + " " + std::to_string(count) + (hostile ? " hostile" : "") + " rank " +
                       std::to_string(world.rank()) + ": " + what);
          };
          const auto gpu = collectives::make_cuda_all_reduce(world, count, type, options),
                     cpu = collectives::make_cpu_all_reduce(world, count, type, options);
          ReduceVectors v({count, type, {}, 0, 0, false, hostile}, world.rank(), world.size(), 11);
          v.fill();
          const std::vector<std::byte> in = v.input();
          std::vector<std::byte> want(in.size());
          (*gpu)(v.in(), v.out(), count);
          (*cpu)(in.data(), want.data(), count);
          const AllReduceReport a = gpu->report(), b = cpu->report();
          if (const std::int64_t at = difference(type, v.output(), want); at >= 0)
            tell("element " + std::to_string(at) + " differs");
          // Bounds of exact sums and of rings may be tighter on a GPU, which looks at fewer elements at a time, and
          // then by the rounding of one: it takes the sums as rounded.
          const bool tighter = a.exact || options.algorithm == AllReduceAlgorithm::ring;
          const bool same_error =
              tighter ? a.largest_error <= b.largest_error * 1.01f : a.largest_error == b.largest_error;
          if (!same_error || a.non_finite != b.non_finite || a.groups != b.groups || a.raw_groups != b.raw_groups ||
              a.exact != b.exact)
            tell("error " + std::to_string(a.largest_error) + " CPU " + std::to_string(b.largest_error) +
                 ", not finite " + std::to_string(a.non_finite) + " " + std::to_string(b.non_finite) + ", groups " +
                 std::to_string(a.groups) + " " + std::to_string(b.groups) + ", raw " + std::to_string(a.raw_groups) +
                 " " + std::to_string(b.raw_groups));
        }
    return 0;
  };
  expect_none(test::on_world(ranks, {.heap_bytes = 64 << 20, .wait_limit = 10}, body), faults);
}

TEST(GpuQuantizedAllReduce, PublicObjectsGiveWhatTheCpuGives) {
  NEEDS_OWN_GPUS(2);
  std::vector<std::pair<std::string, AllReduceOptions>> list;
  for (const AllReduceAlgorithm algorithm : {AllReduceAlgorithm::one_shot, AllReduceAlgorithm::two_shot}) {
    AllReduceOptions exact;
    exact.algorithm = algorithm;
    list.emplace_back("exact " + std::string(name_of(algorithm)), exact);
    for (const char* codec : {"int8", "int4+int8", "flash4", "int6-asym-g64-e8m0"})
      for (const float tolerance : {-1.0f, 0.0f, 0.01f, 0.3f}) {
        AllReduceOptions options;
        options.codec = parse_codec_pair(codec);
        options.algorithm = algorithm;
        if (tolerance >= 0) options.tolerance = tolerance;
        list.emplace_back(std::string(name_of(algorithm)) + " " + codec + " tolerance " + std::to_string(tolerance),
                          options);
      }
  }
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
    compare_objects(test::most_ranks(), type, {0, 5, 33'000, 400'001}, list);
  // Rings: see RingsWithManyChunksAndPauses.
  AllReduceOptions ring;
  ring.algorithm = AllReduceAlgorithm::ring;
  ring.codec = parse_codec_pair("int4+int8");
  compare_objects(test::most_ranks(), Type::bf16, {0, 5, 33'000, 65'000}, {{"ring", ring}});
}

// Calls that go exact as a whole, and calls that do not: one group of one rank decides.
TEST(GpuQuantizedAllReduce, WholeCallsAreDecidedAsOnTheCpu) {
  NEEDS_OWN_GPUS(2);
  std::vector<std::pair<std::string, AllReduceOptions>> list;
  for (const AllReduceAlgorithm algorithm : {AllReduceAlgorithm::one_shot, AllReduceAlgorithm::two_shot})
    for (const char* codec : {"int8", "flash4", "fp8-g64-e8m0"})
      for (const float tolerance : {0.0f, 0.05f, 0.2f, 2.0f}) {
        AllReduceOptions options;
        options.codec = parse_codec_pair(codec);
        options.algorithm = algorithm;
        options.tolerance = tolerance;
        options.whole_call = true;
        list.emplace_back(std::string(name_of(algorithm)) + " " + codec + " within " + std::to_string(tolerance),
                          options);
      }
  compare_objects(1, Type::bf16, {0, 33'000}, list);
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
    compare_objects(test::most_ranks(), type, {5, 400'001}, list);
}

// A graph holds both ways; which one is taken follows the data of each replay.
TEST(GpuQuantizedAllReduce, AGraphDecidesAnewAtEveryReplay) {
  NEEDS_OWN_GPUS(2);
  constexpr std::int64_t count = 100'000;
  AllReduceOptions options;
  options.codec = parse_codec_pair("int8");
  options.algorithm = AllReduceAlgorithm::two_shot;
  options.tolerance = 1.0f;
  options.whole_call = true;
  Trouble faults;
  const auto body = [&](World& world) {
    const auto gpu = collectives::make_cuda_all_reduce(world, count, Type::fp32, options),
               cpu = collectives::make_cpu_all_reduce(world, count, Type::fp32, options);
    const test::Stream stream(world);
    constexpr std::size_t bytes = count * sizeof(float);
    const auto in = cuda::raw_memory(bytes), out = cuda::raw_memory(bytes);
    std::vector<float> values(count);
    for (std::int64_t i = 0; i < count; ++i)
      values[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(i * (world.rank() + 1)));
    cuda::upload(in.get(), values.data(), bytes);
    (*gpu)(in.get(), out.get(), count, stream);
    gpu->report();
    const cuda::Graph graph(stream, 1, [&] { (*gpu)(in.get(), out.get(), count, stream); });
    for (int round = 0; round < 200; ++round) {
      // In every third round one value of one rank is beyond the tolerance, in others none; sometimes it is NaN.
      const int rank = round % world.size();
      std::vector<float> now = values;
      if (round % 3 == 0 && rank == world.rank())
        now[static_cast<std::size_t>(round * 499)] = round % 2 == 0 ? 1e6f : std::nanf("");
      cuda::upload(in.get(), now.data(), bytes);
      cuda::fill(out.get(), 0xa5, bytes);
      for (int i = 0; i < 10; ++i) graph.launch(stream);
      std::vector<std::byte> got(bytes), want(bytes);
      const AllReduceReport a = gpu->report();
      (*cpu)(now.data(), want.data(), count);
      const AllReduceReport b = cpu->report();
      IMBREX_CUDA_TRY(cudaMemcpy(got.data(), out.get(), bytes, cudaMemcpyDeviceToHost));
      if (difference(Type::fp32, got, want) < 0 && a.exact == b.exact && a.exact == (round % 3 == 0) &&
          a.groups == b.groups)
        continue;
      faults.add("round " + std::to_string(round) + " rank " + std::to_string(world.rank()) + " exact " +
                 std::to_string(a.exact) + ", on the CPU " + std::to_string(b.exact));
    }
    return 0;
  };
  expect_none(test::on_world(test::most_ranks(), {.heap_bytes = 64 << 20, .wait_limit = 10}, body), faults);
}

TEST(GpuQuantizedAllReduce, EveryCodecOnTwo) {
  NEEDS_GPUS(2);
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32}) run_cases(2, every_codec(type));
}

TEST(GpuQuantizedAllReduce, EveryCodecOnFour) {
  NEEDS_GPUS(4);
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32}) run_cases(4, every_codec(type));
}

TEST(GpuQuantizedAllReduce, ManyChunksInPlaceAndWithPauses) {
  NEEDS_GPUS(2);
  const int ranks = test::most_ranks();
  CollectivesOptions options;
  options.workspace_bytes = std::size_t{16} << 20;
  options.delays = 3;
  options.max_delay = 2e-5;
  constexpr auto two_shot = cuda::QuantizedSteps::two_shot;
  for (const char* codec : {"int8", "int4+int8", "int4-g128", "fp8-g64", "flash4"})
    run_cases(ranks,
              {{{3'000'001, Type::bf16, {}, 0, 0, true, true}, codec, {4, 64, 3}},
               {{5'000'000, Type::bf16, {}, 0, 0, true, false}, codec, {16, 256}},
               {{1'000'000, Type::bf16, {}, 2, 0, true, false}, codec, {1, 480}},
               {{1'000'003, Type::bf16, {}, 0, 0, true, true}, codec, {1, 2048}},
               {{2'000'000, Type::bf16, {}, 0, 0, true, false}, codec, {1, 0, 0, two_shot, QuantizedWay::copies}},
               {{200'003, Type::bf16, {}, 0, 0, true, true}, codec, {1}},
               {{300'000, Type::bf16, {}, 0, 0, true, false}, codec, {3}}},
              options, 3);
}

// Runs of which every block's word of codes is four times the same byte, another one in each, from what stands for
// "has not come" on: 64 keys are of no use, and the next one has to be found.
TEST(GpuQuantizedAllReduce, RunsThatRuleOutMostKeys) {
  NEEDS_GPUS(2);
  const CodecPair pair = parse_codec_pair("int4-asym-g128");
  Trouble faults;
  const auto body = [&](World& world) {
    const std::int64_t count = std::int64_t{world.size()} * 512 * 64;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(15 - (i % 8 < 4 ? i / 8 % 16 : i / 128 % 4));
    const codec::ChunkFormat format{pair.reduce_scatter, Type::bf16, false};
    std::vector<std::byte> in(values.size() * 2), want(in.size()), got(in.size());
    alignas(16) std::array<std::byte, 512> wire;
    EXPECT_LE(static_cast<std::size_t>(format.layout(512).bytes), wire.size());
    codec::encode_chunk(format, values.data(), 512, {}, wire.data());
    for (std::size_t block = 0; block < 64; ++block)
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(wire[4 * block + i], static_cast<std::byte>(255 - block));
    base::from_float(Type::bf16, values.data(), in.data(), count);
    (*collectives::make_cpu_all_reduce(
        world, count, Type::bf16, {.codec = pair, .algorithm = AllReduceAlgorithm::two_shot}))(in.data(), want.data(),
                                                                                               count);

    CudaCollectives collectives(world, test::select_gpu(world), test::sharing(CollectivesOptions{}));
    const test::Stream stream(world);
    const auto device_in = cuda::raw_memory(in.size()), device_out = cuda::raw_memory(in.size());
    cuda::upload(device_in.get(), in.data(), in.size());
    for (int repeat = 0; repeat < 4; ++repeat) {
      cuda::fill(device_out.get(), 0xa5, in.size());
      collectives.all_reduce(device_in.get(), device_out.get(), count, Type::bf16, pair, stream,
                             {.way = QuantizedWay::packets});
      collectives.finish(stream);
      IMBREX_CUDA_TRY(cudaMemcpy(got.data(), device_out.get(), in.size(), cudaMemcpyDeviceToHost));
      if (const std::int64_t at = difference(Type::bf16, got, want); at >= 0) {
        faults.add("rank " + std::to_string(world.rank()) + " element " + std::to_string(at));
      }
    }
    return 0;
  };
  for (const int ranks : test::rank_counts(2))
    expect_none(test::on_world(ranks, {.heap_bytes = 64 << 20, .wait_limit = 10}, body), faults);
}

// Who owns an element says where its sum begins, so rings have the CPU's bits up to what it does at a time: 32768
// elements a rank.
// Among other calls, whose counters a ring leaves alone.
TEST(GpuQuantizedAllReduce, RingsWithManyChunksAndPauses) {
  NEEDS_GPUS(2);
  CollectivesOptions options;
  options.delays = 4;
  options.max_delay = 2e-5;
  for (const int ranks : test::rank_counts(2)) {
    QuantizedKnobs ring, narrow, two_shot;
    ring.steps = narrow.steps = cuda::QuantizedSteps::ring;
    narrow.blocks = two_shot.blocks = 1;
    narrow.span = two_shot.span = 64;
    narrow.slots = static_cast<std::uint32_t>(2 * ranks - 1);
    two_shot.slots = 3;
    run_cases(ranks,
              {{{65'001, Type::bf16, {}, 0, 0, true, true}, "int8", narrow},
               {{65'001, Type::bf16, {}, 0, 0, true, true}, "int5-asym", two_shot},
               {{65'001, Type::bf16, {}, 0, 0, true, false}, "int4+int8", narrow},
               {{60'000, Type::fp16, {}, 0, 0, false, false}, "int5-asym-g128-fp32", narrow},
               {{33'000, Type::fp32, {}, 0, 0, false, true}, "int8", ring}},
              options, 3);
  }
}

// A ring of one rank sends nothing, so its slots are never freed.
TEST(GpuQuantizedAllReduce, ARingOfOne) {
  NEEDS_GPUS(1);
  QuantizedKnobs ring;
  ring.steps = cuda::QuantizedSteps::ring;
  ring.blocks = 1, ring.slots = 1;
  run_cases(1, {{{65'001, Type::bf16, {}, 0, 0, true, true}, "int8", ring}});
}

TEST(GpuQuantizedAllReduce, TenThousandReplaysWithPauses) {
  NEEDS_GPUS(2);
  CollectivesOptions options;
  options.delays = 9;
  options.max_delay = 1e-5;
  Trouble faults;
  const auto body = [&](World& world) {
    const int device = test::select_gpu(world);
    CudaCollectives collectives(world, device, test::sharing(options));
    const test::Stream stream(world);
    const ReduceCase exact{50'000, Type::bf16, {}}, quantized{200'000, Type::bf16, {}};
    ReduceVectors e(exact, world.rank(), world.size(), 1), c(quantized, world.rank(), world.size(), 2);
    const CodecPair pair = parse_codec_pair("int8");
    const auto calls = [&] {
      collectives.all_reduce(c.in(), c.out(), quantized.count, quantized.type, pair, stream, {8, 64});
      collectives.all_reduce(e.in(), e.out(), exact.count, exact.type, stream);
      collectives.all_reduce(c.in(), c.out(), quantized.count, quantized.type, pair, stream, {2, 96});
      collectives.all_reduce(c.in(), c.out(), quantized.count, quantized.type, pair, stream);
    };
    c.fill();
    e.fill();
    calls();
    collectives.finish(stream);
    const std::vector<std::byte> want = c.output();
    const cuda::Graph graph(stream, 1, calls);
    for (int round = 0; round < 100; ++round) {
      c.fill();
      e.fill();
      for (int i = 0; i < 100; ++i) graph.launch(stream);
      collectives.finish(stream);
      if (c.output() != want || !e.fault().empty()) {
        faults.add("rank " + std::to_string(world.rank()) + " round " + std::to_string(round));
      }
    }
    return 0;
  };
  expect_none(test::on_world(test::most_ranks(), {.heap_bytes = 1 << 20, .wait_limit = 10}, body), faults);
}

}  // namespace
}  // namespace imbrex
