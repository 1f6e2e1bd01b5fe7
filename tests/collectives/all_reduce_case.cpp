#include "collectives/all_reduce_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/convert.hpp"
#include "base/hash.hpp"
#include "codec/forms.hpp"

namespace imbrex::test {

Tensors random_tensors(std::uint64_t seed, int ranks, Type type, std::int64_t count, bool hostile) {
  std::mt19937_64 random(seed);
  Tensors tensors{type, {}};
  const bool alike = random() % 4 != 0;
  const std::uint64_t kind = random();
  for (int rank = 0; rank < ranks; ++rank) {
    std::mt19937_64 own(alike ? kind : random());
    std::vector<float> values = random_values(own, type, static_cast<std::size_t>(count));
    if (alike) std::shuffle(values.begin(), values.end(), random);
    tensors.inputs.push_back(std::move(values));
  }
  if (!hostile || count == 0) return tensors;
  const float infinity = std::numeric_limits<float>::infinity(), largest = codec::range_of(type).largest;
  for (std::uint64_t i = 0; i < 1 + random() % 20; ++i)
    tensors.inputs[random() % tensors.inputs.size()][random() % static_cast<std::uint64_t>(count)] =
        std::array{std::nanf(""), infinity, -infinity, largest, -largest}[random() % 5];
  return tensors;
}

Checked check_output(const Tensors& tensors, const std::vector<std::byte>& output, const AllReduceReport& report,
                     const AllReduceOptions& options) {
  Checked checked;
  checked.report = report;
  checked.hash = base::hash_of(output);
  const std::size_t count = tensors.inputs.front().size();
  const std::vector<float> got = base::floats_of(tensors.type, output);
  const double bound = static_cast<double>(report.largest_error),
               overflow = static_cast<double>(codec::range_of(tensors.type).largest);
  const auto say = [&](std::size_t i, const std::string& what, double want) {
    if (checked.fault.empty()) checked.fault = fmt::format("element {} is {}, not {}: {}", i, got[i], want, what);
  };
  std::int64_t non_finite = 0;
  double magnitude = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bool finite = true;
    float in_order = 0;
    double exact = 0, parts = 0;
    for (const auto& input : tensors.inputs) {
      finite &= std::isfinite(input[i]) != 0;
      in_order += input[i];
      exact += static_cast<double>(input[i]);
      parts += std::fabs(static_cast<double>(input[i]));
    }
    if (!std::isfinite(got[i])) ++non_finite;
    if (!finite) {
      // The order of infinities and overflows does not matter, unless large finite parts overflow the other way.
      if (std::isnan(in_order) ? !std::isnan(got[i]) && parts < HUGE_VAL : got[i] != in_order && !std::isnan(got[i]))
        say(i, "a part is not finite", static_cast<double>(in_order));
    } else if (!std::isfinite(got[i])) {
      if (parts + bound < overflow) say(i, "all parts are finite and nothing overflows", exact);
    } else {
      const double error = std::fabs(static_cast<double>(got[i]) - exact);
      checked.squares += error * error;
      magnitude = std::max(magnitude, parts);
      if (error > bound) say(i, fmt::format("off by {}, more than the bound {}", error, bound), exact);
      if (bound > 0) checked.ratio = std::max(checked.ratio, error / bound);
      // What a tolerance promises: no more than it, and the roundings that any sum has.
      const double ranks = static_cast<double>(tensors.inputs.size());
      const double roundings = (ranks * 0x1.1p-24 + unit_roundoff(tensors.type)) *
                                   (parts + (options.tolerance ? static_cast<double>(*options.tolerance) : 0)) * 1.01 +
                               0x1p-24;
      if (options.tolerance && error > static_cast<double>(*options.tolerance) + roundings)
        say(i, fmt::format("off by {}, more than the tolerance {}", error, *options.tolerance), exact);
    }
  }
  if (non_finite != report.non_finite && checked.fault.empty())
    checked.fault = fmt::format("{} elements are not finite, {} reported", non_finite, report.non_finite);
  return checked;
}

Checked run_and_check(World& world, collectives::AllReduceBackend& op, const AllReduceOptions& options,
                      const Tensors& tensors) {
  const std::vector<std::byte> in =
      base::elements_of(tensors.type, tensors.inputs[static_cast<std::size_t>(world.rank())]);
  std::vector<std::byte> out(in.size(), std::byte{0xff});
  op(in.data(), out.data(), tensors.count());
  Checked checked = check_output(tensors, out, op.report(), options);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(world.size()));
  world.all_gather(&checked.hash, hashes.data(), sizeof checked.hash);
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    if (hashes[rank] != hashes[0] && checked.fault.empty())
      checked.fault = fmt::format("the output of rank {} is not that of rank 0", rank);
  return checked;
}

}  // namespace imbrex::test
