#include "collectives/all_reduce.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace imbrex {
namespace {

constexpr std::array<std::pair<AllReduceAlgorithm, std::string_view>, 4> algorithms{
    {{AllReduceAlgorithm::automatic, "auto"},
     {AllReduceAlgorithm::one_shot, "one_shot"},
     {AllReduceAlgorithm::two_shot, "two_shot"},
     {AllReduceAlgorithm::ring, "ring"}}};

}  // namespace

std::string_view name_of(AllReduceAlgorithm algorithm) {
  for (const auto& [value, name] : algorithms)
    if (value == algorithm) return name;
  return "?";
}

AllReduceAlgorithm parse_all_reduce_algorithm(std::string_view name) {
  for (const auto& [value, text] : algorithms)
    if (text == name) return value;
  IMBREX_EXPECTS(false, "'{}' is not an algorithm; it must be auto, one_shot, two_shot or ring", name);
  return {};
}

void validate(const AllReduceOptions& options, std::int64_t max_count) {
  IMBREX_EXPECTS(max_count >= 0, "all_reduce: max_count = {}: it must not be negative", max_count);
  if (options.codec) {
    validate(options.codec->reduce_scatter);
    validate(options.codec->all_gather);
  }
  const bool ring = options.algorithm == AllReduceAlgorithm::ring;
  IMBREX_EXPECTS(options.codec || !ring,
                 "all_reduce: algorithm ring needs a codec; it is there to compare codecs with");
  IMBREX_EXPECTS(options.codec || !options.tolerance, "all_reduce: a tolerance of {} without a codec",
                 *options.tolerance);
  IMBREX_EXPECTS(!options.tolerance || (std::isfinite(*options.tolerance) && *options.tolerance >= 0),
                 "all_reduce: tolerance = {}: it must be finite and not negative", *options.tolerance);
  IMBREX_EXPECTS(!options.tolerance || !ring, "all_reduce: algorithm ring takes no tolerance");
  IMBREX_EXPECTS(options.tolerance || !options.whole_call, "all_reduce: whole_call without a tolerance");
  IMBREX_EXPECTS(options.exact_below >= 0 || options.exact_below == exact_below_measured,
                 "all_reduce: exact_below = {}: it must be 0 or more, or exact_below_measured", options.exact_below);
  const std::string below =
      options.exact_below == exact_below_measured ? "measured" : std::to_string(options.exact_below);
  IMBREX_EXPECTS(options.codec || options.exact_below == 0, "all_reduce: exact_below = {} without a codec", below);
  IMBREX_EXPECTS(!options.batch_invariant || options.exact_below == 0,
                 "all_reduce: exact_below = {} with batch_invariant: results would depend on the size", below);
  IMBREX_EXPECTS(options.ctas >= 0 && options.ctas <= collectives::most_ctas,
                 "all_reduce: ctas = {}: it must be from 0 to {}", options.ctas, collectives::most_ctas);
}

std::string_view name_of(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::reduce_scatter: return "reduce_scatter";
    case ExchangeKind::all_gather: return "all_gather";
    case ExchangeKind::all_to_all: return "all_to_all";
  }
  return "?";
}

void validate(ExchangeKind kind, std::int64_t max_count, const ExchangeOptions& options) {
  const std::string_view name = name_of(kind);
  IMBREX_EXPECTS(max_count >= 0, "{}: max_count = {}: it must not be negative", name, max_count);
  if (options.codec) validate(*options.codec);
  IMBREX_EXPECTS(options.ctas >= 0 && options.ctas <= collectives::most_ctas, "{}: ctas = {}: it must be from 0 to {}",
                 name, options.ctas, collectives::most_ctas);
}

namespace collectives {

void agree(World& world, ExchangeKind kind, std::int64_t max_count, Type type, const ExchangeOptions& options) {
  runtime::agree(world, [&] {
    validate(kind, max_count, options);
    expect_type(name_of(kind), type);
    const auto& [codec, report, ctas] = options;
    runtime::Terms terms(kind == ExchangeKind::reduce_scatter ? "a reduce_scatter"
                         : kind == ExchangeKind::all_gather   ? "an all_gather"
                                                              : "an all_to_all");
    terms.add("max_count", max_count).add("type", name_of(type)).add("codec", codec ? name_of(*codec) : "exact");
    return terms.add("report", report).add("ctas", ctas);
  });
}

void expect_type(std::string_view name, Type type) {
  IMBREX_EXPECTS(type != Type::e4m3, "{}: type e4m3: it must be bf16, fp16 or fp32", name);
}

void add(runtime::Terms& terms, const AllReduceOptions& options) {
  const auto& [codec, algorithm, tolerance, whole_call, exact_below, batch_invariant, report, ctas] = options;
  terms.add("codec", codec ? name_of(*codec) : "exact").add("algorithm", name_of(algorithm));
  terms.add("tolerance", tolerance ? fmt::format("{}", *tolerance) : "none").add("whole_call", whole_call);
  terms.add("exact_below", exact_below).add("batch_invariant", batch_invariant).add("report", report);
  terms.add("ctas", ctas);
}

void agree(World& world, std::int64_t max_count, Type type, const AllReduceOptions& options) {
  runtime::agree(world, [&] {
    validate(options, max_count);
    expect_type("all_reduce", type);
    runtime::Terms terms("an all_reduce");
    add(terms.add("max_count", max_count).add("type", name_of(type)), options);
    return terms;
  });
}

bool quantized(const AllReduceOptions& options, std::int64_t count, Type type, const Sizes& sizes) {
  if (!options.codec) return false;
  const std::int64_t least = options.exact_below == exact_below_measured ? sizes.exact_below : options.exact_below;
  return count * static_cast<std::int64_t>(size_of(type)) >= least;
}

AllReduceAlgorithm choose(const AllReduceOptions& options, std::int64_t count, Type type, const Sizes& sizes) {
  if (options.algorithm == AllReduceAlgorithm::ring && !quantized(options, count, type, sizes))
    return AllReduceAlgorithm::two_shot;
  if (options.algorithm != AllReduceAlgorithm::automatic) return options.algorithm;
  // Through a codec, one-shot costs more as soon as it sends more than its waits take (measured on two H200s).
  constexpr std::int64_t most_quantized = 256 << 10;
  const std::int64_t most =
      quantized(options, count, type, sizes) ? std::min(sizes.one_shot_bytes, most_quantized) : sizes.one_shot_bytes;
  const bool small = count * static_cast<std::int64_t>(size_of(type)) <= most;
  return small && !options.batch_invariant ? AllReduceAlgorithm::one_shot : AllReduceAlgorithm::two_shot;
}

int tolerance_shares(AllReduceAlgorithm algorithm, int ranks) {
  return algorithm == AllReduceAlgorithm::one_shot ? ranks : ranks + 1;
}

AllReduceReport merge(World& world, const CallRecord& own) {
  std::vector<CallRecord> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  AllReduceReport report;
  report.algorithm = static_cast<AllReduceAlgorithm>(own.algorithm);
  report.exact = own.exact != 0;
  for (const CallRecord& record : all) {
    report.largest_error = std::max(report.largest_error, record.largest_error);
    report.non_finite += record.non_finite;
    report.groups += record.groups;
    report.raw_groups += record.raw_groups;
  }
  return report;
}

}  // namespace collectives
}  // namespace imbrex
