// The all-reduce on the CPU: right, within its bound, the same everywhere, and clear about what it cannot do.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "base/convert.hpp"
#include "codec/forms.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/all_reduce_case.hpp"
#include "collectives/ranks.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::Checked;
using test::roomy, test::run_ranks, test::thrown;
using test::Tensors;

AllReduceOptions random_options(std::mt19937_64& random) {
  const std::vector<Codec> codecs = test::all_codecs();
  AllReduceOptions options;
  if (random() % 8 != 0) options.codec = {codecs[random() % codecs.size()], codecs[random() % codecs.size()]};
  options.algorithm = static_cast<AllReduceAlgorithm>(random() % (options.codec ? 4 : 3));
  if (options.codec && options.algorithm != AllReduceAlgorithm::ring && random() % 3 == 0) {
    options.tolerance = std::ldexp(1.0f, static_cast<int>(random() % 40) - 25);
    options.whole_call = random() % 4 == 0;
  }
  return options;
}

std::string describe(const AllReduceOptions& options, const Tensors& tensors) {
  return fmt::format("{} {}, {} x {} {}, tolerance {}", options.codec ? name_of(*options.codec) : "exact",
                     name_of(options.algorithm), tensors.inputs.size(), tensors.count(), name_of(tensors.type),
                     options.tolerance.value_or(-1));
}

/// What has a bound of its own: an algorithm, of a codec's also the format of the parts.
std::string kind_of(const AllReduceReport& report, const AllReduceOptions& options) {
  if (report.exact) return "exact";
  const Codec& parts = options.codec->reduce_scatter;
  return fmt::format("{} {}", name_of(report.algorithm), name_of(Codec{parts.format, parts.asymmetric}));
}

TEST(AllReduce, TenThousandRandomCasesStayWithinTheBoundTheyReport) {
  const std::uint64_t seed = test::seed_from_environment();
  std::map<std::string, double> worst;  // error over bound, by kind
  std::mutex mutex;
  for (int ranks = 1; ranks <= 5; ++ranks)
    ASSERT_EQ(run_ranks(ranks,
                        [&](World& world) -> std::string {
                          std::map<std::string, double> ratios;
                          for (std::uint64_t i = 0; i < 2000; ++i) {
                            const std::uint64_t own = (seed * 5 + static_cast<std::uint64_t>(ranks)) * 2000 + i;
                            std::mt19937_64 random(own);
                            const AllReduceOptions options = random_options(random);
                            const auto count = static_cast<std::int64_t>(random() % 1200);
                            const Tensors tensors = test::random_tensors(
                                random(), ranks, static_cast<Type>(random() % 3), count, random() % 8 == 0);
                            const auto op = collectives::make_cpu_all_reduce(world, count, tensors.type, options);
                            const Checked checked = run_and_check(world, *op, options, tensors);
                            if (!checked.fault.empty())
                              return fmt::format("case {} of {} ranks ({}): {}", i, ranks, describe(options, tensors),
                                                 checked.fault);
                            if (options.codec && ranks > 1) {  // one rank adds nothing up
                              double& ratio = ratios[kind_of(checked.report, options)];
                              ratio = std::max(ratio, checked.ratio);
                            }
                          }
                          const std::lock_guard lock(mutex);
                          for (const auto& [kind, ratio] : ratios) worst[kind] = std::max(worst[kind], ratio);
                          return {};
                        }),
              0);
  // Each is nearly reached, so that one wider by a quarter would be found out; twelve seeds gave 0.90 and more.
  EXPECT_EQ(worst.size(), 1 + 3 * 11) << "exact, and three algorithms with each format";
  for (const auto& [kind, ratio] : worst) EXPECT_GT(ratio, 0.8) << kind;
}

TEST(AllReduce, AWrongBoundIsFoundOut) {
  const Tensors tensors = test::random_tensors(3, 1, Type::fp32, 1000, false);
  const auto output = base::elements_of(Type::fp32, tensors.inputs[0]);
  std::vector<std::byte> wrong = output;
  const float moved = tensors.inputs[0][500] + 1;
  std::memcpy(wrong.data() + 2000, &moved, sizeof moved);
  AllReduceReport report;
  EXPECT_EQ(check_output(tensors, output, report, {}).fault, "");
  EXPECT_NE(check_output(tensors, wrong, report, {}).fault, "");
  report.largest_error = 2;
  EXPECT_EQ(check_output(tensors, wrong, report, {}).fault, "");
  EXPECT_NE(check_output(tensors, wrong, report, {.tolerance = 0.5f}).fault, "");
  report.non_finite = 1;
  EXPECT_NE(check_output(tensors, wrong, report, {}).fault, "");
}

TEST(AllReduce, ExactMeansTheSumInRankOrderRoundedOnce) {
  for (Type type : {Type::bf16, Type::fp16, Type::fp32})
    for (std::int64_t count : {0, 1, 127, 128, 129, 5000, 33000, 270000})
      ASSERT_EQ(
          run_ranks(4,
                    [&](World& world) -> std::string {
                      const Tensors tensors =
                          test::random_tensors(static_cast<std::uint64_t>(count), 4, type, count, false);
                      std::vector<float> sums(tensors.inputs[0]);
                      for (std::size_t r = 1; r < 4; ++r)
                        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += tensors.inputs[r][i];
                      const std::vector<std::byte> want = base::elements_of(type, sums);
                      for (AllReduceAlgorithm algorithm : {AllReduceAlgorithm::automatic, AllReduceAlgorithm::one_shot,
                                                           AllReduceAlgorithm::two_shot}) {
                        const AllReduceOptions options{.algorithm = algorithm};
                        const auto op = collectives::make_cpu_all_reduce(world, count, type, options);
                        // In place, and from an address that is a multiple of an element only.
                        std::vector<std::byte> room(want.size() + size_of(type));
                        std::byte* data = room.data() + size_of(type);
                        const auto in = base::elements_of(type, tensors.inputs[static_cast<std::size_t>(world.rank())]);
                        std::copy(in.begin(), in.end(), data);
                        (*op)(data, data, count);
                        op->finish();
                        if (!std::equal(want.begin(), want.end(), data))
                          return fmt::format("{} elements, {}", count, name_of(algorithm));
                        if (op->report().exact != true) return "not reported as exact";
                      }
                      return {};
                    }),
          0);
}

TEST(AllReduce, QuantizedElementsDependOnTheirGroupsOnly) {
  // Whatever the number of elements after them, and whichever rank owns them.
  const auto pair = parse_codec_pair("int4-asym-g128+int8-g64-e8m0");
  ASSERT_EQ(run_ranks(3,
                      [&](World& world) -> std::string {
                        const Tensors all = test::random_tensors(5, 3, Type::bf16, 128 * 1500, false);
                        const auto in =
                            base::elements_of(Type::bf16, all.inputs[static_cast<std::size_t>(world.rank())]);
                        const auto op = collectives::make_cpu_all_reduce(world, all.count(), Type::bf16,
                                                                         {.codec = pair, .batch_invariant = true});
                        std::vector<std::byte> whole(in.size()), part(in.size());
                        (*op)(in.data(), whole.data(), all.count());
                        for (std::int64_t count : {128, 256, 128 * 9, 128 * 1000}) {
                          (*op)(in.data(), part.data(), count);
                          if (op->report().algorithm != AllReduceAlgorithm::two_shot) return "another algorithm";
                          if (!std::equal(part.begin(), part.begin() + 2 * count, whole.begin()))
                            return fmt::format("{} elements", count);
                        }
                        return {};
                      }),
            0);
}

TEST(AllReduce, SameBitsEveryTimeWhateverTheTiming) {
  ASSERT_EQ(run_ranks(4,
                      [&](World& world) -> std::string {
                        std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
                        for (AllReduceAlgorithm algorithm :
                             {AllReduceAlgorithm::one_shot, AllReduceAlgorithm::two_shot, AllReduceAlgorithm::ring}) {
                          const AllReduceOptions options{.codec = parse_codec_pair("int6+int8"),
                                                         .algorithm = algorithm};
                          const auto op = collectives::make_cpu_all_reduce(world, 3000, Type::bf16, options);
                          std::uint64_t first = 0;
                          for (int i = 0; i < 150; ++i) {
                            if (random() % 4 == 0)
                              std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
                            const Tensors tensors = test::random_tensors(9, 4, Type::bf16, 3000, true);
                            const Checked checked = run_and_check(world, *op, options, tensors);
                            if (!checked.fault.empty()) return checked.fault;
                            if (i == 0) first = checked.hash;
                            if (checked.hash != first) return fmt::format("call {} differs from the first", i);
                          }
                        }
                        return {};
                      }),
            0);
}

// Nothing aligns the ranks between the calls, and one object takes different algorithms for them.
TEST(AllReduce, CallsOfAllKindsFollowEachOther) {
  ASSERT_EQ(
      run_ranks(4,
                [&](World& world) -> std::string {
                  std::mt19937_64 random(static_cast<std::uint64_t>(world.rank())), alike(7);
                  const CodecPair pair = parse_codec_pair("int6+int8");
                  for (const AllReduceOptions& options :
                       {AllReduceOptions{.codec = pair, .algorithm = AllReduceAlgorithm::ring, .exact_below = 2000},
                        AllReduceOptions{.codec = pair, .exact_below = 2000},
                        AllReduceOptions{.codec = pair, .tolerance = 0.1f, .whole_call = true}}) {
                    constexpr std::int64_t counts[] = {0, 500, 3000, 20000};
                    const auto op = collectives::make_cpu_all_reduce(world, 20000, Type::bf16, options);
                    const Tensors tensors = test::random_tensors(10, 4, Type::bf16, 20000, false);
                    const auto in =
                        base::elements_of(Type::bf16, tensors.inputs[static_cast<std::size_t>(world.rank())]);
                    std::vector<std::byte> first[4];
                    for (int i = 0; i < 400; ++i) {
                      const std::size_t which = i < 4 ? static_cast<std::size_t>(i) : alike() % 4;
                      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
                      std::vector<std::byte> out(2 * static_cast<std::size_t>(counts[which]));
                      (*op)(in.data(), out.data(), counts[which]);
                      if (i < 4) first[which] = out;
                      if (out != first[which]) return fmt::format("call {} of {} elements", i, counts[which]);
                    }
                  }
                  return {};
                }),
      0);
}

TEST(AllReduce, TwoShotLosesLessThanARing) {
  ASSERT_EQ(run_ranks(5,
                      [&](World& world) -> std::string {
                        std::mt19937_64 random(1);
                        Tensors tensors{Type::fp32, {}};
                        for (int r = 0; r < 5; ++r) {
                          tensors.inputs.emplace_back(20000);
                          for (float& value : tensors.inputs.back()) value = std::normal_distribution<float>()(random);
                        }
                        double squares[2];
                        float bounds[2];
                        for (int ring = 0; ring < 2; ++ring) {
                          const AllReduceOptions options{
                              .codec = parse_codec_pair("int5"),
                              .algorithm = ring ? AllReduceAlgorithm::ring : AllReduceAlgorithm::two_shot};
                          const auto op = collectives::make_cpu_all_reduce(world, 20000, Type::fp32, options);
                          const Checked checked = run_and_check(world, *op, options, tensors);
                          if (!checked.fault.empty()) return checked.fault;
                          squares[ring] = checked.squares;
                          bounds[ring] = checked.report.largest_error;
                          // Every element is quantized once by each rank, once by the sum's owner; in the ring, at
                          // every hop.
                          const std::int64_t groups = 20000 / 32;
                          if (checked.report.groups != groups * (ring ? 5 : 6))
                            return fmt::format("{} groups quantized", checked.report.groups);
                        }
                        if (squares[0] >= squares[1] || bounds[0] >= bounds[1])
                          return fmt::format("{} against {}", squares[0], squares[1]);
                        return {};
                      }),
            0);
}

TEST(AllReduce, ToleranceSendsGroupsRawOrTheWholeCallExactly) {
  ASSERT_EQ(run_ranks(4,
                      [&](World& world) -> std::string {
                        std::mt19937_64 random(2);
                        Tensors tensors{Type::bf16, {}};
                        for (int r = 0; r < 4; ++r) {
                          tensors.inputs.emplace_back(4096);
                          for (float& value : tensors.inputs.back())
                            value = test::in_type(Type::bf16, std::normal_distribution<float>()(random));
                        }
                        tensors.inputs[2][1000] = 300;
                        const auto run = [&](std::optional<float> tolerance, bool whole) {
                          const AllReduceOptions options{.codec = parse_codec_pair("int8"),
                                                         .algorithm = AllReduceAlgorithm::two_shot,
                                                         .tolerance = tolerance,
                                                         .whole_call = whole};
                          const auto op = collectives::make_cpu_all_reduce(world, 4096, Type::bf16, options);
                          return run_and_check(world, *op, options, tensors);
                        };
                        const Checked free = run({}, false), some = run(0.3f, false), all = run(0.0f, false),
                                      exact = run(0.3f, true), loose = run(1e3f, true);
                        for (const Checked* checked : {&free, &some, &all, &exact, &loose})
                          if (!checked->fault.empty()) return checked->fault;
                        if (free.report.raw_groups != 0 || free.report.largest_error < 1) return "no tolerance";
                        // One rank's group, and the sum's.
                        if (some.report.raw_groups != 2) return fmt::format("{} groups raw", some.report.raw_groups);
                        if (all.report.raw_groups != all.report.groups || all.hash != exact.hash) return "tolerance 0";
                        if (!exact.report.exact || exact.report.groups != 0 || some.report.exact) return "whole call";
                        if (loose.report.exact || loose.hash != free.hash) return "whole call within the tolerance";
                        return {};
                      }),
            0);
}

// A group of sums covers several groups of the parts, and the worst of these says what is left of the tolerance.
TEST(AllReduce, ToleranceIsWhatTheWorstOfTheSummedGroupsLeaves) {
  for (const std::size_t worst : {0u, 1u, 2u, 3u})
    ASSERT_EQ(run_ranks(2,
                        [&](World& world) -> std::string {
                          const AllReduceOptions options{.codec = parse_codec_pair("int4-g32+int4-g128"),
                                                         .algorithm = AllReduceAlgorithm::two_shot,
                                                         .tolerance = 3.0f};
                          // Parts lose up to 0.93 each, so the sum's group, which alone could lose 1.86, has 1.14 left.
                          Tensors tensors{Type::fp32, {2, std::vector<float>(256)}};
                          for (std::vector<float>& input : tensors.inputs)
                            for (std::size_t i = 0; i < 32; ++i)
                              input[32 * worst + i] = 13.0f - static_cast<float>(i % 27);
                          const auto op = collectives::make_cpu_all_reduce(world, 256, Type::fp32, options);
                          const Checked checked = run_and_check(world, *op, options, tensors);
                          if (!checked.fault.empty()) return checked.fault;
                          if (checked.report.raw_groups != 1)
                            return fmt::format("{} groups raw", checked.report.raw_groups);
                          return checked.report.largest_error <= 3 ? "" : "beyond the tolerance";
                        }),
              0)
        << worst;
}

TEST(AllReduce, SmallTensorsAreExactWhereAsked) {
  ASSERT_EQ(run_ranks(2,
                      [&](World& world) -> std::string {
                        const auto op = collectives::make_cpu_all_reduce(world, 1000, Type::fp32,
                                                                         {.codec = CodecPair{}, .exact_below = 2048});
                        std::vector<float> data(1000, 1);
                        (*op)(data.data(), data.data(), 511);
                        if (!op->report().exact) return "511 elements";
                        (*op)(data.data(), data.data(), 512);
                        if (op->report().exact) return "512 elements";
                        return {};
                      }),
            0);
}

// Without records, as on the CPU.
TEST(AllReduce, WhatCodecsDoNotSpeedUpIsExactWhereAsked) {
  const auto exact = [](World& world, const char* codec, std::int64_t count) {
    const auto op = collectives::make_cpu_all_reduce(
        world, count, Type::fp16, {.codec = parse_codec_pair(codec), .exact_below = exact_below_measured});
    std::vector<std::uint16_t> zeros(static_cast<std::size_t>(count));
    (*op)(zeros.data(), zeros.data(), count);
    return op->report().exact;
  };
  ASSERT_EQ(run_ranks(2,
                      [&](World& world) -> std::string {
                        for (const char* codec : {"int8", "flash6"})
                          if (!exact(world, codec, (2 << 20) - 1) || exact(world, codec, 2 << 20)) return codec;
                        if (!exact(world, "int4", (1 << 20) - 1) || exact(world, "int4", 1 << 20)) return "int4";
                        return {};
                      }),
            0);
}

TEST(AllReduce, BadInputIsRefusedByName) {
  const CodecPair pair;
  const std::vector<std::pair<AllReduceOptions, std::string>> wrong{
      {{.algorithm = AllReduceAlgorithm::ring}, "ring"},
      {{.tolerance = 1.0f}, "without a codec"},
      {{.codec = pair, .tolerance = -1.0f}, "-1"},
      {{.codec = pair, .tolerance = std::nanf("")}, "nan"},
      {{.codec = pair, .algorithm = AllReduceAlgorithm::ring, .tolerance = 1.0f}, "tolerance"},
      {{.codec = pair, .whole_call = true}, "whole_call"},
      {{.codec = pair, .exact_below = -4}, "-4"},
      {{.exact_below = 4}, "exact_below = 4"},
      {{.codec = pair, .exact_below = 4, .batch_invariant = true}, "batch_invariant"},
      {{.codec = pair, .exact_below = exact_below_measured, .batch_invariant = true}, "batch_invariant"},
      {{.exact_below = exact_below_measured}, "without a codec"},
      {{.ctas = 2000}, "2000"},
      {{.codec = CodecPair{{CodeFormat::int8, false, 16, ScaleType::bf16}, {}}}, "16"}};
  ASSERT_EQ(run_ranks(2,
                      [&](World& world) -> std::string {
                        for (const auto& [options, says] : wrong) {
                          const auto [code, message] =
                              thrown([&] { collectives::make_cpu_all_reduce(world, 10, Type::bf16, options); });
                          if (code != 2 || message.find(says) == std::string::npos) return message;
                        }
                        // Options and sizes that differ are refused on both ranks.
                        const bool odd = world.rank() == 1;
                        auto [code, message] =
                            thrown([&] { collectives::make_cpu_all_reduce(world, odd ? 5 : 10, Type::bf16); });
                        if (code != 2 || message.find("rank 1 asks for max_count = 5, rank 0 for max_count = 10") ==
                                             std::string::npos)
                          return message;
                        std::tie(code, message) = thrown([&] {
                          collectives::make_cpu_all_reduce(world, 5, Type::bf16,
                                                           {.codec = odd ? std::optional(pair) : std::nullopt});
                        });
                        if (code != 2 ||
                            message.find("rank 1 asks for codec = int8, rank 0 for codec = exact") == std::string::npos)
                          return message;
                        const auto op = collectives::make_cpu_all_reduce(world, 10, Type::bf16, {.report = false});
                        alignas(4) char data[64] = {};
                        for (const auto& [call, says] : std::vector<std::pair<std::function<void()>, std::string>>{
                                 {[&] { (*op)(data, data, 11); }, "11"},
                                 {[&] { (*op)(data, data, -1); }, "-1"},
                                 {[&] { (*op)(nullptr, data, 1); }, "in is null"},
                                 {[&] { (*op)(data, nullptr, 1); }, "out is null"},
                                 {[&] { (*op)(data + 1, data, 1); }, "not aligned"},
                                 {[&] { (*op)(data, data, 1, data); }, "stream"},
                                 {[&] { op->report(); }, "report"}}) {
                          std::tie(code, message) = thrown(call);
                          if (code != 2 || message.find(says) == std::string::npos) return message;
                        }
                        return {};
                      }),
            0);
}

TEST(AllReduce, CountsThatDifferEndEveryRank) {
  for (std::int64_t other : {0, 7, 900})
    for (AllReduceAlgorithm algorithm :
         {AllReduceAlgorithm::one_shot, AllReduceAlgorithm::two_shot, AllReduceAlgorithm::ring}) {
      std::string messages[3];
      const int code = run_threads(3, roomy, [&](World& world) {
        const auto op =
            collectives::make_cpu_all_reduce(world, 1000, Type::fp32, {.codec = CodecPair{}, .algorithm = algorithm});
        std::vector<float> data(1000);
        const auto [thrown_code, message] =
            thrown([&] { (*op)(data.data(), data.data(), world.rank() == 1 ? other : 1000); });
        messages[world.rank()] = message;
        return thrown_code;
      });
      EXPECT_NE(code, 0);
      for (const std::string& message : messages) EXPECT_NE(message.find("count is"), std::string::npos) << message;
    }
}

TEST(AllReduce, ARankThatDoesNotComeIsNamed) {
  std::string messages[2];
  const auto begin = std::chrono::steady_clock::now();
  const int ended = run_threads(2, {.heap_bytes = 1 << 24, .wait_limit = 0.3}, [&](World& world) {
    const auto op = collectives::make_cpu_all_reduce(world, 100, Type::fp32);
    std::vector<float> data(100);
    while (world.rank() == 1) {
      const auto [code, message] = thrown([&] { world.throw_if_failed(); });
      messages[1] = message;
      if (code != 0) return code;
    }
    const auto [code, message] = thrown([&] { (*op)(data.data(), data.data(), 100); });
    messages[0] = message;
    return code;
  });
  EXPECT_EQ(ended, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  for (const std::string& message : messages)
    EXPECT_NE(message.find("rank 0 waited longer than 0.3 s for the tensor of all_reduce of 100 elements from rank "
                           "1: expected step 1, saw 0"),
              std::string::npos)
        << message;
}

TEST(AllReduce, ProcessesGiveWhatThreadsGive) {
  const AllReduceOptions options{.codec = parse_codec_pair("flash6"), .tolerance = 0.1f};
  const auto body = [&](World& world) {
    const Tensors tensors = test::random_tensors(11, 4, Type::bf16, 100000, true);
    const auto op = collectives::make_cpu_all_reduce(world, tensors.count(), tensors.type, options);
    const Checked checked = run_and_check(world, *op, options, tensors);
    return checked.fault.empty() ? 0 : 1;
  };
  EXPECT_EQ(run_processes(4, roomy, body), 0);
  EXPECT_EQ(run_threads(4, roomy, body), 0);
}

TEST(AllReduce, AKilledRankEndsTheOthersAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const int code = run_processes(3, roomy, [&](World& world) {
    const auto op = collectives::make_cpu_all_reduce(world, 50000, Type::bf16, {.codec = CodecPair{}});
    std::vector<std::uint16_t> data(50000);
    const auto [thrown_code, message] = thrown([&] {
      for (int call = 0;; ++call) {
        if (call == 20 && world.rank() == 1) raise(SIGKILL);
        (*op)(data.data(), data.data(), 50000);
      }
    });
    // The exit code says whether the message names the lost rank.
    return message.find("rank 1") != std::string::npos && message.find("lost") != std::string::npos ? thrown_code : 1;
  });
  EXPECT_EQ(code, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace imbrex
