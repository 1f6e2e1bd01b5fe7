// The all-reduce with residual and RMSNorm on the CPU: right, the same everywhere, and clear about what it cannot do.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "base/convert.hpp"
#include "collectives/backend.hpp"
#include "collectives/ranks.hpp"
#include "collectives/rms_norm.hpp"
#include "collectives/rms_norm_case.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex {
namespace {

using test::RmsNormCase, test::RmsNormData;
using test::roomy, test::run_ranks, test::thrown;

struct Result {
  std::vector<std::byte> residual_out, out;
};

// Operands lie one element after a boundary of 16 bytes.
std::vector<std::byte> shifted(const std::vector<std::byte>& bytes, Type type) {
  std::vector<std::byte> room(bytes.size() + size_of(type));
  std::copy(bytes.begin(), bytes.end(), room.begin() + static_cast<std::ptrdiff_t>(size_of(type)));
  return room;
}

Result run_case(World& world, collectives::RmsNormBackend& op, const RmsNormCase& c, const RmsNormData& data,
                bool in_place) {
  const auto element = static_cast<std::ptrdiff_t>(size_of(c.type)),
             weight_element = static_cast<std::ptrdiff_t>(size_of(c.weight()));
  std::vector<std::byte> in = shifted(data.in[static_cast<std::size_t>(world.rank())], c.type),
                         residual = shifted(data.residual, c.type), weight = shifted(data.weight, c.weight()),
                         sums(in.size()), out(in.size());
  std::vector<std::byte>& to_sums = in_place && c.residual ? residual : sums;
  std::vector<std::byte>& to_out = in_place ? in : out;
  op({.in = in.data() + element,
      .residual = c.residual ? residual.data() + element : nullptr,
      .weight = weight.data() + weight_element,
      .residual_out = to_sums.data() + element,
      .out = to_out.data() + element},
     c.rows);
  op.finish();
  return {{to_sums.begin() + element, to_sums.end()}, {to_out.begin() + element, to_out.end()}};
}

TEST(RmsNorm, SizesTypesAndAlgorithms) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    ASSERT_EQ(
        run_ranks(ranks,
                  [&](World& world) -> std::string {
                    for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
                      for (const std::int64_t hidden : {1, 7, 8, 31, 100, 513, 4096, 4099, 9001, 40000})
                        for (const std::int64_t rows : {0, 1, 2, 5, 17})
                          for (const bool odd : {false, true}) {
                            if (rows * hidden > 200'000) continue;
                            RmsNormCase c{rows, hidden, type, !odd, odd, odd ? 1e-5f : 1e-6f};
                            if (rows == 2 || rows == 17) c.weight_type = Type::fp32;
                            const RmsNormData data = test::rms_norm_data(c, ranks, static_cast<std::uint64_t>(hidden));
                            Result first;
                            for (const AllReduceAlgorithm algorithm :
                                 {AllReduceAlgorithm::automatic, AllReduceAlgorithm::one_shot,
                                  AllReduceAlgorithm::two_shot}) {
                              const auto op = collectives::make_cpu_all_reduce_rms_norm(
                                  world, rows + 3, hidden, type,
                                  {.eps = c.eps, .algorithm = algorithm, .weight_type = c.weight_type});
                              const Result result = run_case(world, *op, c, data, odd);
                              if (algorithm == AllReduceAlgorithm::automatic) {
                                first = result;
                                const std::string fault =
                                    test::rms_norm_fault(c, data, result.residual_out, result.out);
                                if (!fault.empty()) return c.text() + ": " + fault;
                              } else if (test::first_different(type, first.out, result.out) >= 0 ||
                                         test::first_different(type, first.residual_out, result.residual_out) >= 0) {
                                return fmt::format("{}: {} has other bits", c.text(), name_of(algorithm));
                              }
                            }
                          }
                    return {};
                  }),
        0);
}

// What a row becomes depends neither on the rows next to it nor on their number.
TEST(RmsNorm, RowsDoNotDependOnTheirNumber) {
  constexpr RmsNormCase whole{40, 3000, Type::bf16};
  const RmsNormData data = test::rms_norm_data(whole, 3, 4);
  ASSERT_EQ(run_ranks(3,
                      [&](World& world) -> std::string {
                        const auto op = collectives::make_cpu_all_reduce_rms_norm(world, 40, 3000, Type::bf16);
                        const Result all = run_case(world, *op, whole, data, false);
                        for (const std::int64_t rows : {1, 2, 3, 33}) {
                          RmsNormCase c = whole;
                          c.rows = rows;
                          RmsNormData few = data;
                          const std::ptrdiff_t bytes = rows * 6000;
                          for (auto& in : few.in) in.erase(in.begin() + bytes, in.end());
                          few.residual.erase(few.residual.begin() + bytes, few.residual.end());
                          const Result part = run_case(world, *op, c, few, false);
                          if (!std::equal(part.out.begin(), part.out.end(), all.out.begin()))
                            return fmt::format("{} rows", rows);
                        }
                        return {};
                      }),
            0);
}

// An fp32 weight is not rounded to the rows' type: all of this is exact, except the last rounding.
TEST(RmsNorm, Fp32WeightsCountInFull) {
  // The mean of the squares is 4.
  const std::vector<float> x = {5, -2, 1, 1, -1, 0, 0, 0};
  for (const Type type : {Type::bf16, Type::fp16})
    ASSERT_EQ(run_ranks(1,
                        [&](World& world) -> std::string {
                          const float beside_one = 1 + (type == Type::bf16 ? 0x1p-8f : 0x1p-11f);
                          const std::vector<float> weight = {beside_one, beside_one, 0x1p-30f, 0x1p17f, 1, 1, 1, 1};
                          std::vector<float> want(8);
                          for (std::size_t i = 0; i < 8; ++i) want[i] = x[i] / 2 * weight[i];
                          const auto op = collectives::make_cpu_all_reduce_rms_norm(
                              world, 1, 8, type, {.eps = 0, .weight_type = Type::fp32});
                          const std::vector<std::byte> in = base::elements_of(type, x);
                          std::vector<std::byte> sums(16), out(16);
                          (*op)({in.data(), nullptr, weight.data(), sums.data(), out.data()}, 1);
                          const std::vector<float> rounded = base::floats_of(type, base::elements_of(type, weight));
                          if (out != base::elements_of(type, want)) return "not what is exact, rounded once";
                          for (std::size_t i = 0; i < 8; ++i) want[i] = x[i] / 2 * rounded[i];
                          return out != base::elements_of(type, want) ? "" : "a rounded weight gives the same";
                        }),
              0);
}

TEST(RmsNorm, WeightsOfTheSameValuesGiveTheSameBits) {
  constexpr std::int64_t hidden = 4099;
  for (const Type type : {Type::bf16, Type::fp16}) {
    RmsNormCase c{3, hidden, type};
    const RmsNormData narrow = test::rms_norm_data(c, 2, 5);
    RmsNormData wide = narrow;
    wide.weight = base::elements_of(Type::fp32, base::floats_of(type, narrow.weight));
    ASSERT_EQ(run_ranks(2,
                        [&](World& world) -> std::string {
                          RmsNormCase both = c;
                          const auto usual = collectives::make_cpu_all_reduce_rms_norm(world, 3, hidden, type);
                          const Result first = run_case(world, *usual, both, narrow, false);
                          both.weight_type = Type::fp32;
                          const auto other = collectives::make_cpu_all_reduce_rms_norm(world, 3, hidden, type,
                                                                                       {.weight_type = Type::fp32});
                          const Result second = run_case(world, *other, both, wide, false);
                          return first.out == second.out && first.residual_out == second.residual_out ? "" : "differ";
                        }),
              0);
  }
}

TEST(RmsNorm, AWrongResultIsFoundOut) {
  const RmsNormCase c{2, 64, Type::fp32};
  const RmsNormData data = test::rms_norm_data(c, 1, 3);
  ASSERT_EQ(run_ranks(1,
                      [&](World& world) -> std::string {
                        const auto op = collectives::make_cpu_all_reduce_rms_norm(world, 2, 64, Type::fp32);
                        const Result right = run_case(world, *op, c, data, false);
                        if (!test::rms_norm_fault(c, data, right.residual_out, right.out).empty()) return "right";
                        for (const bool sums : {false, true}) {
                          Result wrong = right;
                          std::vector<std::byte>& bytes = sums ? wrong.residual_out : wrong.out;
                          float value = 0;
                          std::memcpy(&value, bytes.data() + 400, sizeof value);
                          value *= 1 + 0x1p-18f;
                          std::memcpy(bytes.data() + 400, &value, sizeof value);
                          if (test::rms_norm_fault(c, data, wrong.residual_out, wrong.out).empty()) return "wrong";
                        }
                        return {};
                      }),
            0);
}

TEST(RmsNorm, SquaresAreAddedAsDocumented) {
  // 4096 elements of bf16: 512 threads, one packet each. Only their order makes a difference of these values.
  std::vector<float> row(4096);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = 1 + static_cast<float>(i % 97) * 0x1p-9f;
  std::vector<float> sums(512);
  for (std::size_t t = 0; t < 512; ++t)
    for (std::size_t i = 0; i < 8; ++i) sums[t] += row[8 * t + i] * row[8 * t + i];
  float want = 0;
  for (std::size_t warp = 0; warp < 16; ++warp) {
    std::vector<float> lanes(sums.begin() + static_cast<std::ptrdiff_t>(32 * warp),
                             sums.begin() + static_cast<std::ptrdiff_t>(32 * warp + 32));
    for (std::size_t distance = 16; distance > 0; distance /= 2) {
      std::vector<float> next(32);
      for (std::size_t lane = 0; lane < 32; ++lane) next[lane] = lanes[lane] + lanes[lane ^ distance];
      lanes = next;
    }
    want = warp == 0 ? lanes[0] : want + lanes[0];
  }
  EXPECT_EQ(collectives::squares_of(row.data(), 4096, Type::bf16), want);
  for (const std::int64_t hidden : {1, 8, 256, 4096, 4097, 5120, 8192, 16384, 262144})
    for (const Type type : {Type::bf16, Type::fp32}) {
      const collectives::RowShape s = collectives::row_shape(hidden, type);
      EXPECT_GE(s.threads * s.batches, s.packets);
      EXPECT_EQ(s.threads % 32, 0u);
      EXPECT_LE(s.threads, collectives::most_row_threads);
      EXPECT_GE(std::int64_t{s.packets} * s.elements, hidden);
    }
}

TEST(RmsNorm, SameBitsEveryTimeWhateverTheTiming) {
  const RmsNormCase c{9, 500, Type::bf16, true, true};
  const RmsNormData data = test::rms_norm_data(c, 4, 8);
  ASSERT_EQ(run_ranks(4,
                      [&](World& world) -> std::string {
                        std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
                        for (const auto algorithm : {AllReduceAlgorithm::one_shot, AllReduceAlgorithm::two_shot}) {
                          const auto op = collectives::make_cpu_all_reduce_rms_norm(world, 9, 500, Type::bf16,
                                                                                    {.algorithm = algorithm});
                          const Result first = run_case(world, *op, c, data, false);
                          for (int i = 0; i < 100; ++i) {
                            if (random() % 4 == 0)
                              std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
                            const Result again = run_case(world, *op, c, data, i % 2 == 1);
                            if (again.out != first.out || again.residual_out != first.residual_out)
                              return fmt::format("call {} differs from the first", i);
                          }
                        }
                        return {};
                      }),
            0);
}

TEST(RmsNorm, BadInputIsRefusedByName) {
  const int code = run_threads(2, roomy, [&](World& world) {
    const auto expect = [&](const std::string& part, const std::function<void()>& call) {
      const std::string message = thrown(call).second;
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    const auto make = [&](std::int64_t rows, std::int64_t hidden, const AllReduceRmsNormOptions& options) {
      return collectives::make_cpu_all_reduce_rms_norm(world, rows, hidden, Type::fp32, options);
    };
    expect("max_rows = -1", [&] { make(-1, 8, {}); });
    expect("hidden = 0", [&] { make(1, 0, {}); });
    expect("hidden = 262145", [&] { make(1, 262145, {}); });
    expect("eps = -1", [&] { make(1, 8, {.eps = -1}); });
    expect("eps = nan", [&] { make(1, 8, {.eps = std::nanf("")}); });
    expect("ring", [&] { make(1, 8, {.algorithm = AllReduceAlgorithm::ring}); });
    expect("ctas = 9999", [&] { make(1, 8, {.ctas = 9999}); });
    expect("weight_type = fp16: it must be fp32, or that of the rows, fp32",
           [&] { make(1, 8, {.weight_type = Type::fp16}); });
    for (const Type weight : {Type::fp16, Type::e4m3})
      expect(fmt::format("weight_type = {}: it must be fp32, or that of the rows, bf16", name_of(weight)),
             [&] { collectives::make_cpu_all_reduce_rms_norm(world, 1, 8, Type::bf16, {.weight_type = weight}); });
    expect("rank 1 asks for weight_type = fp32, rank 0 for weight_type = bf16", [&] {
      AllReduceRmsNormOptions options;
      if (world.rank() == 1) options.weight_type = Type::fp32;
      collectives::make_cpu_all_reduce_rms_norm(world, 1, 8, Type::bf16, options);
    });
    // What is said and what is left out may be the same.
    AllReduceRmsNormOptions said;
    if (world.rank() == 1) said.weight_type = Type::fp32;
    make(1, 8, said);
    expect("rank 1 asks for eps = 1e-06, rank 0 for eps = 1e-05",
           [&] { make(1, 8, {.eps = world.rank() == 0 ? 1e-5f : 1e-6f}); });
    expect("rank 1 asks for max_rows = 2, rank 0 for max_rows = 1", [&] { make(1 + world.rank(), 8, {}); });

    const auto op = make(4, 8, {});
    float memory[200] = {};
    collectives::RmsNormOperands good{
        .in = memory, .residual = memory + 32, .weight = memory + 64, .residual_out = memory + 72, .out = memory + 104};
    const auto with = [&](const std::function<void(collectives::RmsNormOperands&)>& change) {
      collectives::RmsNormOperands operands = good;
      change(operands);
      return operands;
    };
    expect("rows = 5", [&] { (*op)(good, 5); });
    expect("rows = -1", [&] { (*op)(good, -1); });
    expect("in is null", [&] { (*op)(with([](auto& o) { o.in = nullptr; }), 4); });
    expect("weight is null", [&] { (*op)(with([](auto& o) { o.weight = nullptr; }), 4); });
    expect("out is null", [&] { (*op)(with([](auto& o) { o.out = nullptr; }), 4); });
    expect("not aligned",
           [&] { (*op)(with([&](auto& o) { o.residual = reinterpret_cast<std::byte*>(memory) + 130; }), 4); });
    expect("residual_out at", [&] { (*op)(with([&](auto& o) { o.residual_out = memory + 8; }), 4); });
    expect("overlaps weight", [&] { (*op)(with([&](auto& o) { o.out = memory + 64; }), 4); });
    expect("overlaps residual_out", [&] { (*op)(with([](auto& o) { o.out = o.residual_out; }), 4); });
    expect("stream", [&] { (*op)(good, 4, memory); });
    // The weight is aligned to its own elements, and takes as many bytes.
    const auto wide = collectives::make_cpu_all_reduce_rms_norm(world, 4, 8, Type::bf16, {.weight_type = Type::fp32});
    expect("weight at",
           [&] { (*wide)(with([&](auto& o) { o.weight = reinterpret_cast<std::byte*>(memory) + 258; }), 4); });
    expect("overlaps weight", [&] { (*wide)(with([&](auto& o) { o.out = memory + 64 + 7; }), 4); });
    (*op)(good, 4);
    (*op)({}, 0);
    // Numbers of rows that differ end both ranks.
    expect("count is", [&] { (*op)(good, world.rank() * 2); });
    return 0;
  });
  EXPECT_EQ(code, 0) << "a rank did not come to its end";
}

}  // namespace
}  // namespace imbrex
