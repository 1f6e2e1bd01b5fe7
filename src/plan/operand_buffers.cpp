#include "plan/operand_buffers.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "plan/problem.hpp"

namespace imbrex::plan {
namespace {

// Behind the first product's operands stand those of each further one: B, the bias if there is one, the output.
int first_further(const Problem& problem) { return buffer_a_scale(problem) + (problem.scales == Scales::none ? 0 : 2); }

int further(const Problem& problem, int product) {
  return first_further(problem) + (product - 1) * (problem.bias ? 3 : 2);
}

}  // namespace

int buffer_b_of(const Problem& problem, int product) { return product == 0 ? buffer_b : further(problem, product); }
int buffer_bias_of(const Problem& problem, int product) {
  return product == 0 ? buffer_bias : further(problem, product) + 1;
}
int buffer_out_of(const Problem& problem, int product) {
  return product == 0 ? buffer_out : further(problem, product) + (problem.bias ? 2 : 1);
}
int buffer_gathered(const Problem& problem) { return further(problem, count_products(problem)); }

int count_operands(const Problem& problem) {
  if (!problem::multiplies(problem)) return base::narrow<int>(operands_of(problem).size(), "operands");
  return buffer_gathered(problem) + (problem.gathered_a ? 1 : 0);
}

bool detail::is_further_bias(const Problem& problem, int buffer) {
  const int place = buffer - first_further(problem);
  return place >= 0 && place % 3 == 1 && buffer < buffer_gathered(problem);
}

OperandPlace operand_at(const Problem& problem, int buffer) {
  using What = OperandPlace::What;
  if (buffer == buffer_a) return {What::a};
  if (problem.gathered_a && buffer == buffer_gathered(problem)) return {What::gathered};
  for (int product = 0; product < count_products(problem); ++product) {
    if (buffer == buffer_b_of(problem, product)) return {What::b, product};
    if (buffer == buffer_out_of(problem, product)) return {What::out, product};
    if (problem.bias && buffer == buffer_bias_of(problem, product)) return {What::bias, product};
  }
  return {buffer == buffer_a_scale(problem) ? What::a_scale : What::b_scale};
}

std::int64_t pitch_of(const Problem& problem, const Buffer& buffer, int index) {
  using What = OperandPlace::What;
  if (buffer.role == BufferRole::workspace || !problem::multiplies(problem)) return 0;
  const auto [what, product] = operand_at(problem, index);
  const std::int64_t pitch = what == What::a     ? problem.lda
                             : what == What::b   ? ldb_of(problem, product)
                             : what == What::out ? ldo_of(problem, product)
                                                 : 0;
  return pitch == (buffer.layout == Layout::column_major ? buffer.rows : buffer.cols) ? 0 : pitch;
}

std::vector<Buffer> operand_buffers(const Problem& problem) {
  std::vector<Buffer> buffers;
  for (const OperandInfo& info : operands_of(problem))
    buffers.push_back({std::string(info.name), info.role == OperandRole::input ? BufferRole::input : BufferRole::output,
                       info.layout, info.type, info.rows, info.cols, 1});
  if (!problem::multiplies(problem)) return buffers;
  // The first output comes before what not every problem has.
  const auto out =
      std::find_if(buffers.begin(), buffers.end(), [](const Buffer& b) { return b.role == BufferRole::output; });
  std::rotate(buffers.begin() + buffer_out, out, out + 1);
  return buffers;
}

}  // namespace imbrex::plan
