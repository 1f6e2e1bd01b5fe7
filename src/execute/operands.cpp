#include "execute/operands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/problem.hpp"

namespace imbrex::execute {
namespace {

std::string names_of(const std::vector<OperandInfo>& infos) {
  std::vector<std::string_view> names;
  for (const OperandInfo& info : infos) names.push_back(info.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// A view's extents and strides without those of one element.
struct Shape {
  std::array<std::int64_t, View::most_dims> extents{}, strides{};
  std::size_t dims = 0;

  explicit Shape(const View& view) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(view.dims); ++i)
      if (view.extents[i] != 1) extents[dims] = view.extents[i], strides[dims++] = view.strides[i];
  }

  // Rows that are split over several extents become one extent again, where they lie as evenly as one would. What 64
  // bits do not count is no tensor, and stays split.
  void join_rows() {
    std::int64_t stride = 0, rows = 0;
    while (dims > 2 && !__builtin_mul_overflow(strides[dims - 2], extents[dims - 2], &stride) &&
           strides[dims - 3] == stride && !__builtin_mul_overflow(extents[dims - 3], extents[dims - 2], &rows)) {
      extents[dims - 3] = rows;
      strides[dims - 3] = strides[dims - 2];
      extents[dims - 2] = extents[dims - 1], strides[dims - 2] = strides[dims - 1];
      --dims;
      extents[dims] = strides[dims] = 0;
    }
  }

  bool operator==(const Shape&) const = default;
  bool same_extents(const Shape& other) const {
    return dims == other.dims &&
           std::equal(extents.begin(), extents.begin() + static_cast<std::ptrdiff_t>(dims), other.extents.begin());
  }
};

std::string text_of(const std::array<std::int64_t, View::most_dims>& values, int dims, const char* between) {
  if (dims == 0) return "no extents";
  return fmt::format("{}", fmt::join(values.begin(), values.begin() + dims, between));
}

// It has an address, and extents that count.
void expect_view(const OperandInfo& info, const View& view) {
  IMBREX_EXPECTS(view.data != nullptr, "operand {}: its address is null", info.name);
  IMBREX_EXPECTS(view.type == info.type, "operand {} is of type {}; it must be {}", info.name, name_of(view.type),
                 name_of(info.type));
  IMBREX_EXPECTS(view.dims >= 0 && static_cast<std::size_t>(view.dims) <= View::most_dims,
                 "operand {} has {} extents; there may be 0 to {}", info.name, view.dims, View::most_dims);
  for (int i = 0; i < view.dims; ++i)
    IMBREX_EXPECTS(view.extents[static_cast<std::size_t>(i)] > 0, "operand {} has extents {}; all must be 1 or more",
                   info.name, text_of(view.extents, view.dims, " x "));
}

void expect_fits(const OperandInfo& info, const View& view) {
  expect_view(info, view);
  Shape given(view), wanted(info.at(view.data));
  given.join_rows();
  IMBREX_EXPECTS(given.same_extents(wanted), "operand {} is {}; it must be {} x {}", info.name,
                 text_of(view.extents, view.dims, " x "), info.rows, info.cols);
  IMBREX_EXPECTS(given.strides == wanted.strides,
                 "operand {} has strides of {} elements; it must lie {} {}, with strides of {} and {}", info.name,
                 text_of(view.strides, view.dims, ", "), info.layout == Layout::column_major ? "by columns" : "by rows",
                 info.pitch == 0 || info.pitch == info.length() ? "without gaps" : "at the problem's leading dimension",
                 info.at(view.data).strides[0], info.at(view.data).strides[1]);
}

}  // namespace

OperandRules::OperandRules(const Problem& problem, bool any_m)
    : problem_(problem), any_m_(any_m), infos_(operands_of(problem)), known_(infos_.size()), m_(problem.m) {
  for (std::size_t i = 0; i < infos_.size(); ++i) known_[i].name = infos_[i].name;
  found_ = known_;
  // Rows that depend on M are M, or a rank's part of it.
  Problem one = problem, two = problem;
  one.m = problem.ranks;
  two.m = 2 * one.m;
  const std::vector<OperandInfo> less = operands_of(one), more = operands_of(two);
  for (std::size_t i = 0; i < infos_.size(); ++i)
    m_per_row_.push_back(less[i].rows == more[i].rows ? 0 : one.m / less[i].rows);
  for (std::size_t i = 0; i < infos_.size(); ++i)
    if (infos_[i].role == OperandRole::output) outputs_.push_back({i});
  lay_lines(m_);
}

void OperandRules::lay_lines(std::int64_t m) {
  lines_.resize(infos_.size());
  const auto pitch_of = [](const OperandInfo& info) { return info.pitch == 0 ? info.length() : info.pitch; };
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const OperandInfo info = info_at(i, m);
    const auto size = static_cast<std::int64_t>(size_of(info.type));
    lines_[i] = Lines::of(info.lines(), info.length() * size, pitch_of(info) * size);
  }
  const OperandInfo a = info_at(0, m);
  for (Output& output : outputs_) {
    const OperandInfo info = info_at(output.place, m);
    output.takes_a = problem_.op == Operator::all_gather_gemm && info.type == a.type && info.cols == a.cols &&
                     (a.rows == 1 || pitch_of(info) == pitch_of(a));
    output.part = static_cast<std::uintptr_t>(a.rows * pitch_of(info)) * size_of(info.type);
  }
  lines_m_ = m;
}

bool OperandRules::expect_apart(std::int64_t m) {
  if (m != lines_m_) lay_lines(m);
  for (std::size_t i = 0; i < found_.size(); ++i)
    lines_[i].begin = reinterpret_cast<std::uintptr_t>(found_[i].view.data);
  bool in_place = false;
  for (const Output& output : outputs_) {
    const Lines& out = lines_[output.place];
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (i == output.place || !touch(out, lines_[i])) continue;
      // What begins after the output has no byte in common with it: there are so many parts as ranks.
      const bool part =
          i == 0 && output.takes_a && lines_[0].begin >= out.begin && (lines_[0].begin - out.begin) % output.part == 0;
      in_place = in_place || part;
      IMBREX_EXPECTS(part,
                     "operand {} at {} overlaps operand {} at {}: an output must be apart from every other "
                     "operand{}",
                     infos_[output.place].name, found_[output.place].view.data, infos_[i].name, found_[i].view.data,
                     output.takes_a ? "; only a may lie in it, as a rank's rows of it" : "");
    }
  }
  return in_place;
}

OperandInfo OperandRules::info_at(std::size_t place, std::int64_t m) const {
  OperandInfo info = infos_[place];
  if (m_per_row_[place] != 0) info.rows = m / m_per_row_[place];
  return info;
}

OperandInfo OperandRules::info(std::string_view name, std::int64_t m) const {
  const std::size_t place = place_of(name, 0);
  expect_m(m, infos_[place], nullptr);
  return info_at(place, m);
}

void OperandRules::expect_m(std::int64_t m, const OperandInfo& info, const View* view) const {
  // Only where it is refused: texts take longer than all else.
  const auto operand = [&] {
    return view == nullptr ? std::string(info.name)
                           : fmt::format("{} is {}", info.name, text_of(view->extents, view->dims, " x "));
  };
  IMBREX_EXPECTS(any_m_ || m == problem_.m, "operand {}: M = {}; this operator takes M = {} only", operand(), m,
                 problem_.m);
  IMBREX_EXPECTS(m >= 1 && m <= problem_.m, "operand {}: M = {}; this operator takes M from 1 to {}", operand(), m,
                 problem_.m);
  IMBREX_EXPECTS(!plan::splits_m(problem_.op) || m % problem_.ranks == 0,
                 "operand {}: M = {} does not divide by {} ranks; {} splits it over the ranks", operand(), m,
                 problem_.ranks, name_of(problem_.op));
}

std::int64_t OperandRules::m_of(const View& a) const {
  const OperandInfo& info = infos_.front();
  expect_view(info, a);
  const Shape shape(a);
  const std::size_t wide = info.cols > 1 ? 1 : 0;
  IMBREX_EXPECTS(wide == 0 || (shape.dims > 0 && shape.extents[shape.dims - 1] == info.cols),
                 "operand {} is {}; its rows must have {} elements", info.name, text_of(a.extents, a.dims, " x "),
                 info.cols);
  std::int64_t m = m_per_row_.front();
  for (std::size_t i = 0; i + wide < shape.dims; ++i) m = base::counted_product(m, shape.extents[i]);
  expect_m(m, info, &a);
  return m;
}

std::size_t OperandRules::place_of(std::string_view name, std::size_t guess) const {
  if (guess < infos_.size() && infos_[guess].name == name) return guess;
  for (std::size_t i = 0; i < infos_.size(); ++i)
    if (infos_[i].name == name) return i;
  throw Error(ErrorCode::invalid_input,
              fmt::format("operand {}: this operator has no operand of that name; its operands are {}", name,
                          names_of(infos_)));
}

Addresses OperandRules::resolve(const Operands& operands) {
  if (operands.size() == known_.size() && std::equal(operands.begin(), operands.end(), known_.begin()) &&
      addresses_.a != nullptr)
    return addresses_;
  std::array<bool, most_operands> given{};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::size_t place = place_of(operands[i].name, i);
    IMBREX_EXPECTS(!given[place], "operand {} is given twice", operands[i].name);
    given[place] = true;
    found_[place].view = operands[i].view;
  }
  for (std::size_t i = 0; i < found_.size(); ++i)
    IMBREX_EXPECTS(given[i], "operand {} is missing; this operator's operands are {}", infos_[i].name,
                   names_of(infos_));
  const std::int64_t m = any_m_ ? m_of(found_.front().view) : m_;
  for (std::size_t i = 0; i < found_.size(); ++i)
    if (found_[i] != known_[i] || (m != m_ && m_per_row_[i] != 0)) expect_fits(info_at(i, m), found_[i].view);
  const bool in_place = expect_apart(m);
  Addresses addresses;
  if (in_place) {
    const OperandInfo a = info_at(0, m);
    const auto elements = static_cast<std::size_t>(a.pitch == 0 ? a.cols : a.pitch), size = size_of(a.type);
    addresses.aside = {nullptr, static_cast<std::size_t>(a.rows), static_cast<std::size_t>(a.cols) * size,
                       elements * size};
  }
  for (const Operand& operand : found_) {
    void* data = operand.view.data;
    if (operand.name == "a") addresses.a = data;
    if (operand.name == "b") addresses.b = data;
    if (operand.name == "bias") addresses.bias = data;
    if (operand.name == "a_scale") addresses.a_scale = static_cast<const float*>(data);
    if (operand.name == "b_scale") addresses.b_scale = static_cast<const float*>(data);
    if (operand.name == "out") addresses.out = data;
    for (int product = 1; product < max_products; ++product) {
      Addresses::Further& further = addresses.more[static_cast<std::size_t>(product) - 1];
      if (operand.name == plan::name_of_b(product)) further.b = data;
      if (operand.name == plan::name_of_bias(product)) further.bias = data;
      if (operand.name == plan::name_of_out(product)) further.out = data;
    }
    if (operand.name == "gathered") addresses.gathered = data;
  }
  std::swap(known_, found_);
  addresses_ = addresses;
  m_ = m;
  return addresses;
}

}  // namespace imbrex::execute
