// One all-reduce with residual and RMSNorm: operands, and a check of every element against float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/types.hpp"

namespace imbrex::test {

struct RmsNormCase {
  std::int64_t rows = 1, hidden = 1;
  Type type = Type::bf16;
  bool residual = true;
  bool hostile = false;  ///< NaN, infinities, denormals and the largest finite values among the elements
  float eps = 1e-6f;
  std::optional<Type> weight_type = {};  ///< not set: `type`

  Type weight() const { return weight_type.value_or(type); }
  std::int64_t count() const { return rows * hidden; }
  std::string text() const;
};

/// Elements of the case's type, except the weight.
struct RmsNormData {
  std::vector<std::vector<std::byte>> in;  ///< of each rank
  std::vector<std::byte> residual, weight;
};

RmsNormData rms_norm_data(const RmsNormCase& c, int ranks, std::uint64_t seed);

/// Empty, or what is wrong: `residual_out` must be the sums in fp32 by rank number, and then the residual, rounded
/// once; `out` within a derived bound of what float64 makes of `residual_out`.
std::string rms_norm_fault(const RmsNormCase& c, const RmsNormData& data, const std::vector<std::byte>& residual_out,
                           const std::vector<std::byte>& out);

/// First element whose bits differ, any NaN being like any other; -1 if none.
std::int64_t first_different(Type type, const std::vector<std::byte>& a, const std::vector<std::byte>& b);

}  // namespace imbrex::test
