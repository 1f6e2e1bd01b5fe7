// Reduce-scatter, all-gather and all-to-all on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <fmt/format.h>

#include "base/convert.hpp"
#include "codec/forms.hpp"
#include "collectives/all_reduce_case.hpp"
#include "collectives/ranks.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::roomy, test::thrown;
using test::Tensors;

/// Values of each element of rank `rank`'s output that are to be added up.
std::vector<std::vector<float>> parts_of(ExchangeKind kind, const Tensors& tensors, int rank, std::int64_t count) {
  const auto ranks = static_cast<std::int64_t>(tensors.inputs.size());
  const bool sums = kind == ExchangeKind::reduce_scatter;
  std::vector<std::vector<float>> parts(static_cast<std::size_t>((sums ? 1 : ranks) * count));
  for (std::int64_t source = 0; source < ranks; ++source)
    for (std::int64_t i = 0; i < count; ++i)
      parts[static_cast<std::size_t>((sums ? 0 : source * count) + i)].push_back(
          tensors.inputs[static_cast<std::size_t>(source)]
                        [static_cast<std::size_t>((kind == ExchangeKind::all_gather ? 0 : rank * count) + i)]);
  return parts;
}

std::string check(World& world, ExchangeKind kind, const Tensors& tensors, std::int64_t count,
                  const ExchangeOptions& options) {
  const auto op = make_cpu_exchange(world, kind, count, tensors.type, options);
  const auto in = test::as_elements(tensors.type, tensors.inputs[static_cast<std::size_t>(world.rank())]);
  const auto parts = parts_of(kind, tensors, world.rank(), count);
  std::vector<std::byte> out(parts.size() * size_of(tensors.type));
  (*op)(in.data(), out.data(), count);
  const ExchangeReport report = op->report();
  std::vector<float> got(parts.size()), exact(parts.size());
  to_float(tensors.type, out.data(), got.data(), std::ssize(got));
  std::int64_t non_finite = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    double sum = 0;
    bool finite = true;
    for (std::size_t p = 0; p < parts[i].size(); ++p) {
      exact[i] = p == 0 ? parts[i][p] : exact[i] + parts[i][p];
      sum += static_cast<double>(parts[i][p]);
      finite &= std::isfinite(parts[i][p]) != 0;
    }
    if (!std::isfinite(got[i])) ++non_finite;
    if (!finite) {
      if (std::isnan(exact[i]) != std::isnan(got[i]) || (!std::isnan(got[i]) && got[i] != exact[i]))
        return fmt::format("element {} is {}, not {}", i, got[i], exact[i]);
    } else if (std::isfinite(got[i])) {
      const double error = std::fabs(static_cast<double>(got[i]) - sum);
      if (error > static_cast<double>(report.largest_error))
        return fmt::format("element {} is {}, not {}: more than the bound {}", i, got[i], sum, report.largest_error);
    }
  }
  if (!options.codec) {
    if (test::as_elements(tensors.type, exact) != out) return "not the exact elements";
    if (kind != ExchangeKind::reduce_scatter && report.largest_error != 0) return "a bound for what is only moved";
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&non_finite, all.data(), sizeof non_finite);
  std::int64_t total = 0;
  for (const std::int64_t n : all) total += n;
  return total == report.non_finite ? ""
                                    : fmt::format("{} elements are not finite, {} reported", total, report.non_finite);
}

TEST(Exchange, RandomCasesStayWithinTheirBounds) {
  const std::uint64_t seed = test::seed_from_environment();
  const std::vector<Codec> codecs = test::all_codecs();
  for (int ranks = 1; ranks <= 4; ++ranks)
    ASSERT_EQ(run_threads(ranks, roomy,
                          [&](World& world) {
                            for (std::uint64_t i = 0; i < 300; ++i) {
                              std::mt19937_64 random(seed + 300 * static_cast<std::uint64_t>(ranks) + i);
                              const auto kind = static_cast<ExchangeKind>(random() % 3);
                              const auto count = static_cast<std::int64_t>(i % 50 == 0 ? 40000 : random() % 600);
                              ExchangeOptions options;
                              if (random() % 3 != 0) options.codec = codecs[random() % codecs.size()];
                              const Tensors tensors =
                                  test::random_tensors(random(), ranks, static_cast<Type>(random() % 3),
                                                       kind == ExchangeKind::all_gather ? count : ranks * count, false);
                              const std::string fault = check(world, kind, tensors, count, options);
                              if (fault.empty()) continue;
                              fmt::print(stderr, "case {}, {} of {} x {} {}, {}: {}\n", i, name_of(kind), ranks, count,
                                         name_of(tensors.type), options.codec ? name_of(*options.codec) : "exact",
                                         fault);
                              return 1;
                            }
                            return 0;
                          }),
              0);
}

TEST(Exchange, NotFiniteValuesArrive) {
  for (ExchangeKind kind : {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all})
    for (const char* codec : {"", "int3-asym", "fp8-e8m0"})
      EXPECT_EQ(run_processes(
                    3, roomy,
                    [&](World& world) {
                      Tensors tensors{Type::bf16, std::vector<std::vector<float>>(3, std::vector<float>(600))};
                      for (std::size_t i = 0; i < 600; ++i) tensors.inputs[1][i] = static_cast<float>(i % 7);
                      tensors.inputs[0][3] = std::nanf("");
                      tensors.inputs[1][150] = HUGE_VALF;
                      tensors.inputs[2][599] = -HUGE_VALF;
                      const std::int64_t count = kind == ExchangeKind::all_gather ? 600 : 200;
                      const ExchangeOptions options{.codec = *codec ? std::optional(parse_codec(codec)) : std::nullopt};
                      const std::string fault = check(world, kind, tensors, count, options);
                      if (!fault.empty()) fmt::print(stderr, "{} {}: {}\n", name_of(kind), codec, fault);
                      return fault.empty() ? 0 : 1;
                    }),
                0);
}

TEST(Exchange, BadInputIsRefusedByName) {
  run_threads(2, roomy, [&](World& world) {
    const ExchangeKind kind = ExchangeKind::all_to_all;
    const auto expect = [&](const std::string& part, const std::function<void()>& call) {
      const std::string message = thrown(call).second;
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect("max_count = -1", [&] { make_cpu_exchange(world, kind, -1, Type::bf16); });
    expect("ctas = 9999", [&] { make_cpu_exchange(world, kind, 1, Type::bf16, {.ctas = 9999}); });
    expect("groups of 7", [&] { make_cpu_exchange(world, kind, 1, Type::bf16, {.codec = Codec{.group = 7}}); });
    const auto own = static_cast<ExchangeKind>(world.rank());
    expect("options of rank 1", [&] { make_cpu_exchange(world, own, 1, Type::bf16); });
    const auto op = make_cpu_exchange(world, kind, 10, Type::fp32, {.report = false});
    float data[40] = {};
    expect("count = 11", [&] { (*op)(data, data + 20, 11); });
    expect("out is null", [&] { (*op)(data, nullptr, 1); });
    expect("stream", [&] { (*op)(data, data + 20, 1, data); });
    expect("report", [&] { op->report(); });
    // Counts that differ end both ranks.
    expect("count is", [&] { (*op)(data, data + 20, world.rank() * 5); });
    return 0;
  });
}

}  // namespace
}  // namespace imbrex
