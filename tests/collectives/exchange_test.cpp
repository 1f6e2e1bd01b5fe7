// Reduce-scatter, all-gather and all-to-all on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>

#include <fmt/format.h>

#include "base/convert.hpp"
#include "codec/forms.hpp"
#include "codec/group.hpp"
#include "collectives/all_reduce_case.hpp"
#include "collectives/ranks.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::roomy, test::thrown;
using test::Tensors;

/// A value to be added up, and what coding its group may lose of it.
struct Part {
  float value;
  double lost;
};

/// By the codec's own bound, which tests/codec holds against its errors; groups with values that are not finite have
/// the step of the others.
double lost_of(const Codec& codec, std::span<const float> group) {
  float low = HUGE_VALF, high = -HUGE_VALF;
  bool marked = false;
  for (const float value : group) {
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
    marked |= !std::isfinite(value);
  }
  if (!marked) return static_cast<double>(error_bound(codec, low, high));
  const float largest = low > high ? 0 : std::max(std::fabs(low), std::fabs(high));
  const auto bits = static_cast<std::int32_t>(codec::bits_of(largest));
  return static_cast<double>(codec::error_of(codec, codec::marked_group(codec, bits)));
}

/// Parts of each element of rank `rank`'s output.
std::vector<std::vector<Part>> parts_of(ExchangeKind kind, const Tensors& tensors, int rank, std::int64_t count,
                                        const std::optional<Codec>& codec) {
  const auto ranks = static_cast<std::int64_t>(tensors.inputs.size());
  const bool sums = kind == ExchangeKind::reduce_scatter;
  const auto n = static_cast<std::size_t>(count);
  std::vector<std::vector<Part>> parts(static_cast<std::size_t>(sums ? 1 : ranks) * n);
  for (std::size_t source = 0; source < tensors.inputs.size(); ++source) {
    const auto block = std::span(tensors.inputs[source])
                           .subspan(kind == ExchangeKind::all_gather ? 0 : static_cast<std::size_t>(rank) * n, n);
    const std::size_t group = codec ? static_cast<std::size_t>(codec->group) : n;
    double lost = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (codec && i % group == 0) lost = lost_of(*codec, block.subspan(i, std::min(group, n - i)));
      parts[(sums ? 0 : source * n) + i].push_back({block[i], lost});
    }
  }
  return parts;
}

/// What a rank found: elements that are not finite, and what makes up the bounds of the others.
struct Found {
  std::int64_t non_finite = 0;
  double lost = 0;       ///< largest, by coding
  double roundings = 0;  ///< largest, of additions and of the output
};

std::string check(World& world, collectives::ExchangeBackend& op, ExchangeKind kind, const Tensors& tensors,
                  std::int64_t count, const ExchangeOptions& options) {
  const auto in = base::elements_of(tensors.type, tensors.inputs[static_cast<std::size_t>(world.rank())]);
  const auto parts = parts_of(kind, tensors, world.rank(), count, options.codec);
  std::vector<std::byte> out(parts.size() * size_of(tensors.type));
  op(in.data(), out.data(), count);
  const ExchangeReport report = op.report();
  const std::vector<float> got = base::floats_of(tensors.type, out);
  std::vector<float> exact(parts.size());
  const double reported = static_cast<double>(report.largest_error),
               largest = static_cast<double>(codec::range_of(tensors.type).largest);
  std::string fault;
  const auto say = [&](std::size_t i, double want, const std::string& what) {
    if (fault.empty()) fault = fmt::format("element {} is {}, not {}: {}", i, got[i], want, what);
  };
  Found own;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    double sum = 0, lost = 0, reach = 0;
    bool finite = true;
    for (std::size_t p = 0; p < parts[i].size(); ++p) {
      const auto& [value, of_group] = parts[i][p];
      exact[i] = p == 0 ? value : exact[i] + value;
      sum += static_cast<double>(value);
      lost += of_group;
      if (std::isfinite(value)) reach += std::fabs(static_cast<double>(value)) + of_group;
      finite &= std::isfinite(value) != 0;
    }
    const double additions = static_cast<double>(parts[i].size() - 1) * 0x1.1p-24 * reach,
                 output = unit_roundoff(tensors.type) * reach + (tensors.type == Type::fp16 ? 0x1p-25 : 0x1p-132),
                 bound = 1.001 * (lost + additions + output);
    own.lost = std::max(own.lost, lost);
    // The report takes an addition's magnitude from the group's step, which may be well above the values.
    own.roundings = std::max(own.roundings, 64 * additions + output);
    if (!std::isfinite(got[i])) ++own.non_finite;
    if (!finite) {
      if (std::isnan(exact[i]) != std::isnan(got[i]) || (!std::isnan(got[i]) && got[i] != exact[i]))
        say(i, static_cast<double>(exact[i]), "a part is not finite");
    } else if (!std::isfinite(got[i])) {
      if (reach + additions + output < largest) say(i, sum, "all parts are finite and nothing overflows");
    } else {
      const double error = std::fabs(static_cast<double>(got[i]) - sum);
      if (error > bound) say(i, sum, fmt::format("more than the bound {}", bound));
      if (error > reported) say(i, sum, fmt::format("more than the bound reported, {}", reported));
    }
  }
  if (!options.codec && fault.empty()) {
    if (base::elements_of(tensors.type, exact) != out) fault = "not the exact elements";
    if (kind != ExchangeKind::reduce_scatter && report.largest_error != 0) fault = "a bound for what is only moved";
  }
  std::vector<Found> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  Found total;
  for (const Found& found : all) {
    total.non_finite += found.non_finite;
    total.lost = std::max(total.lost, found.lost);
    total.roundings = std::max(total.roundings, found.roundings);
  }
  if (!fault.empty()) return fault;
  if (total.non_finite != report.non_finite)
    return fmt::format("{} elements are not finite, {} reported", total.non_finite, report.non_finite);
  // The report is a float: infinite where no float is enough.
  const double most = 1.001 * (total.lost + total.roundings) + 0x1p-130;
  if (most < static_cast<double>(std::numeric_limits<float>::max()) && !(reported <= most))
    return fmt::format("a bound of {} is reported where {} is enough", reported, most);
  return "";
}

std::string check(World& world, ExchangeKind kind, const Tensors& tensors, std::int64_t count,
                  const ExchangeOptions& options) {
  return check(world, *collectives::make_cpu_exchange(world, kind, count, tensors.type, options), kind, tensors, count,
               options);
}

/// Does what is asked of it, then spoils what came out.
class Spoilt final : public collectives::ExchangeBackend {
 public:
  using Spoil = std::function<void(float* out, ExchangeReport& report)>;

  Spoilt(std::unique_ptr<collectives::ExchangeBackend> sound, Spoil spoil)
      : sound_(std::move(sound)), spoil_(std::move(spoil)) {}

  void operator()(const void* in, void* out, std::int64_t count, void* stream) override {
    (*sound_)(in, out, count, stream);
    report_ = sound_->report();
    spoil_(static_cast<float*>(out), report_);
  }
  void finish() override { sound_->finish(); }
  ExchangeReport report() override { return report_; }

 private:
  std::unique_ptr<collectives::ExchangeBackend> sound_;
  Spoil spoil_;
  ExchangeReport report_;
};

TEST(Exchange, AWrongOneIsFoundOut) {
  const ExchangeKind kind = ExchangeKind::all_gather;
  const ExchangeOptions options{.codec = Codec{}};
  Tensors tensors{Type::fp32, std::vector<std::vector<float>>(1)};
  for (int i = 0; i < 1000; ++i) tensors.inputs[0].push_back(static_cast<float>(i + 1));
  const std::vector<std::pair<std::string, Spoilt::Spoil>> spoils{
      {"", [](float*, ExchangeReport&) {}},
      {"more than the bound 0.", [](float* out, ExchangeReport& r) { out[7] = -1, r.largest_error = HUGE_VALF; }},
      {"nothing overflows", [](float* out, ExchangeReport& r) { out[7] = HUGE_VALF, r.non_finite = 1; }},
      {"bound of inf is reported", [](float*, ExchangeReport& r) { r.largest_error = HUGE_VALF; }},
      {"more than the bound reported", [](float*, ExchangeReport& r) { r.largest_error = 0; }},
      {"0 elements are not finite, 1", [](float*, ExchangeReport& r) { r.non_finite = 1; }}};
  for (const auto& [says, spoil] : spoils) {
    std::string fault;
    EXPECT_EQ(run_threads(1, roomy,
                          [&](World& world) {
                            Spoilt op(collectives::make_cpu_exchange(world, kind, 1000, Type::fp32, options), spoil);
                            fault = check(world, op, kind, tensors, 1000, options);
                            return 0;
                          }),
              0);
    EXPECT_NE(fault.find(says), std::string::npos) << fault << " is no " << says;
    EXPECT_EQ(fault.empty(), says.empty()) << fault;
  }
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
  const int code = run_threads(2, roomy, [&](World& world) {
    const ExchangeKind kind = ExchangeKind::all_to_all;
    const auto expect = [&](const std::string& part, const std::function<void()>& call) {
      const std::string message = thrown(call).second;
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect("max_count = -1", [&] { collectives::make_cpu_exchange(world, kind, -1, Type::bf16); });
    expect("ctas = 9999", [&] { collectives::make_cpu_exchange(world, kind, 1, Type::bf16, {.ctas = 9999}); });
    expect("groups of 7",
           [&] { collectives::make_cpu_exchange(world, kind, 1, Type::bf16, {.codec = Codec{.group = 7}}); });
    const auto own = static_cast<ExchangeKind>(world.rank());
    expect("rank 1 asks for an all_gather, rank 0 for a reduce_scatter",
           [&] { collectives::make_cpu_exchange(world, own, 1, Type::bf16); });
    const auto op = collectives::make_cpu_exchange(world, kind, 10, Type::fp32, {.report = false});
    float data[40] = {};
    expect("count = 11", [&] { (*op)(data, data + 20, 11); });
    expect("out is null", [&] { (*op)(data, nullptr, 1); });
    expect("stream", [&] { (*op)(data, data + 20, 1, data); });
    expect("report", [&] { op->report(); });
    // Counts that differ end both ranks.
    expect("count is", [&] { (*op)(data, data + 20, world.rank() * 5); });
    return 0;
  });
  EXPECT_EQ(code, 0) << "a rank did not come to its end";
}

}  // namespace
}  // namespace imbrex
