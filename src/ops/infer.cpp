#include "ops/infer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "imbrex/integers.hpp"
#include "ops/gemm_request.hpp"
#include "problem/parts.hpp"
#include "problem/products.hpp"

namespace imbrex::ops {
namespace {

using problem::name_of_b, problem::name_of_bias, problem::name_of_out, problem::Parts;

// The call's operands by their places in the operator's order; null: not given.
struct Given {
  const View *a = nullptr, *a_scale = nullptr, *b_scale = nullptr, *gathered = nullptr;
  std::array<const View*, max_products> b{}, bias{}, out{};

  const View** place_of(std::string_view name) {
    if (name == "a") return &a;
    for (int product = 0; product < max_products; ++product) {
      const std::size_t at = base::index(product);
      if (name == name_of_b(product)) return &b[at];
      if (name == name_of_out(product)) return &out[at];
      if (name == name_of_bias(product)) return &bias[at];
    }
    if (name == "a_scale") return &a_scale;
    if (name == "b_scale") return &b_scale;
    if (name == "gathered") return &gathered;
    return nullptr;
  }
};

std::int64_t size_at(const View& view, int dim) { return view.extents[base::index(dim)]; }
std::int64_t stride_at(const View& view, int dim) { return view.strides[base::index(dim)]; }
std::int64_t last_of(const View& view) { return size_at(view, view.dims - 1); }

std::string text_of(const View& view) {
  if (view.dims == 0) return "one element";
  return fmt::format("{}", fmt::join(view.extents.begin(), view.extents.begin() + view.dims, " x "));
}

bool holds_one(const View& view) {
  return std::all_of(view.extents.begin(), view.extents.begin() + view.dims, [](std::int64_t e) { return e == 1; });
}

// A linear layer's weights lie by columns, as its `weight.t()`. What lies neither way is told so by the call.
bool by_columns(const View& b) { return stride_at(b, 1) != 1 && (stride_at(b, 0) == 1 || size_at(b, 0) == 1); }

Given sorted(const CallForm& call) {
  Given given;
  for (const auto& [name, view] : call.operands) {
    const View** place = given.place_of(name);
    IMBREX_EXPECTS(place != nullptr, "operand {}: {} has none of that name", name, name_of(call.op));
    IMBREX_EXPECTS(*place == nullptr, "operand {} is given twice", name);
    IMBREX_EXPECTS(view.dims >= 0 && view.dims <= static_cast<int>(View::most_dims),
                   "{} has {} dimensions: there may be 0 to {}", name, view.dims, View::most_dims);
    for (int i = 0; i < view.dims; ++i)
      IMBREX_EXPECTS(size_at(view, i) >= 0, "{} is {}: no extent may be negative", name, text_of(view));
    *place = &view;
  }
  IMBREX_EXPECTS(given.a != nullptr, "operand a is missing");
  IMBREX_EXPECTS(given.b[0] != nullptr, "operand b is missing");
  return given;
}

void expect_product(const Given& given, int dim) {
  const View &a = *given.a, &b = *given.b[0];
  IMBREX_EXPECTS(a.dims == 2 || a.dims == 3, "a is {}: it must have 2 or 3 dimensions", text_of(a));
  IMBREX_EXPECTS(b.dims == 2, "b is {}: it must have 2 dimensions", text_of(b));
  IMBREX_EXPECTS(dim >= 0 && dim <= a.dims - 2, "dim = {} with a of {}: it must be a dimension of a before its last",
                 dim, text_of(a));
  IMBREX_EXPECTS(!is_integer(a.type), "a is of type {}: it must be bf16, fp16, fp32 or e4m3", name_of(a.type));
  IMBREX_EXPECTS(a.type == b.type, "a is of type {}, b of type {}: they must be of one type", name_of(a.type),
                 name_of(b.type));
  IMBREX_EXPECTS(last_of(a) == size_at(b, 0), "a is {}, b {}: a's last dimension must be b's first", text_of(a),
                 text_of(b));
  IMBREX_EXPECTS(size_at(b, 0) != 0 && size_at(b, 1) != 0, "a is {}, b {}: only a's rows may be none", text_of(a),
                 text_of(b));
  IMBREX_EXPECTS((given.a_scale == nullptr) == (given.b_scale == nullptr),
                 "scales of a and b: both must be given, or neither");
  IMBREX_EXPECTS(given.a_scale == nullptr || a.type == Type::e4m3, "scales with a of type {}: only e4m3 has scales",
                 name_of(a.type));
}

// Further B, with biases as the first one has.
void expect_further(const Given& given) {
  const View& b = *given.b[0];
  for (int product = 1; product < max_products; ++product) {
    const std::size_t at = base::index(product);
    const View *further = given.b[at], *bias = given.bias[at];
    const std::string_view name = name_of_b(product);
    if (further == nullptr) {
      IMBREX_EXPECTS(bias == nullptr, "{} is given, and {} is not", name_of_bias(product), name);
      IMBREX_EXPECTS(given.out[at] == nullptr, "{} is given, and {} is not", name_of_out(product), name);
      continue;
    }
    IMBREX_EXPECTS(given.b[at - 1] != nullptr, "{} is given, and {} is not", name, name_of_b(product - 1));
    IMBREX_EXPECTS(further->dims == 2 && size_at(*further, 0) == size_at(b, 0) && size_at(*further, 1) != 0 &&
                       further->type == b.type,
                   "{} is {} of type {}, b {} of type {}: they must have as many rows, and one type", name,
                   text_of(*further), name_of(further->type), text_of(b), name_of(b.type));
    IMBREX_EXPECTS(by_columns(*further) == by_columns(b), "{} and b lie by rows and by columns: all must lie alike",
                   name);
    IMBREX_EXPECTS((bias == nullptr) == (given.bias[0] == nullptr),
                   "a bias of b, or of {}, is missing: all have one, or none", name);
  }
}

// As a, with so many columns, and of its dimension `dim` so many times as much, over so many.
View like(const View& a, int dim, std::int64_t times, std::int64_t over, std::int64_t cols, Type type) {
  View result{nullptr, type, a.dims, a.extents, {}};
  result.extents[base::index(dim)] = base::counted_product(size_at(a, dim), times) / over;
  result.extents[base::index(a.dims - 1)] = cols;
  std::int64_t stride = 1;
  for (int i = a.dims - 1; i >= 0; --i)
    if (i != dim)
      result.strides[base::index(i)] = std::exchange(stride, base::counted_product(stride, size_at(result, i)));
  result.strides[base::index(dim)] = stride;
  return result;
}

// A matrix whose rows may be split over two dimensions, `dim` in front, as one of two.
View matrix_of(std::string_view name, const View& view, int dim) {
  if (view.dims != 3) return view;
  const int batch = 1 - dim;
  const std::int64_t rows = size_at(view, dim), blocks = size_at(view, batch);
  const bool none = rows == 0 || blocks == 0;
  std::int64_t whole = 0;  // from one row of dimension `dim` to the next, if all rows lie evenly
  const bool even = rows <= 1 || blocks <= 1 ||
                    (!__builtin_mul_overflow(stride_at(view, batch), blocks, &whole) && stride_at(view, dim) == whole);
  const auto strides = [&] { return fmt::join(view.strides.begin(), view.strides.begin() + view.dims, ", "); };
  IMBREX_EXPECTS(none || even,
                 "{} is {} with strides of {} elements: with dimension {} in front, its rows must lie evenly: copy it "
                 "so",
                 name, text_of(view), strides(), dim);
  IMBREX_EXPECTS(none || stride_at(view, 2) == 1 || size_at(view, 2) == 1,
                 "{} is {} with strides of {} elements: its last one must be 1", name, text_of(view), strides());
  return {view.data,
          view.type,
          2,
          {base::counted_product(rows, blocks), size_at(view, 2)},
          {stride_at(view, blocks != 1 ? batch : dim), stride_at(view, 2)}};
}

// Elements from one row in memory to the next, where there is something between them. 0: there is nothing, or the view
// lies as no matrix does, which the call refuses by name.
std::int64_t leading_dimension(const View& view, bool columns = false) {
  const int along = columns ? 0 : 1, across = 1 - along;
  const std::int64_t length = size_at(view, along), step = stride_at(view, across);
  const bool rows_are_whole = length == 1 || stride_at(view, along) == 1;
  return size_at(view, across) > 1 && rows_are_whole && step > length ? step : 0;
}

// A call that has passed what is asked of its operands by themselves.
class Inference {
 public:
  Inference(const CallForm& call, const Given& given)
      : call_(call), given_(given), parts_(problem::parts_of(call.op, call.ranks)), columns_(lies_by_columns()) {}

  Inferred run() {
    lay_results();
    take_operands();
    take_sizes();
    expect_valid();
    return made_;
  }

 private:
  const View& a() const { return *given_.a; }
  const View& b(std::size_t product) const { return *given_.b[product]; }
  // B of e4m3 lies so always.
  bool lies_by_columns() const { return by_columns(b(0)) || a().type == Type::e4m3; }

  void lay_results() {
    const std::int64_t own = size_at(a(), call_.dim);
    IMBREX_EXPECTS(own % parts_.rows_over == 0, "a is {}: its dimension {} must divide by the {} ranks", text_of(a()),
                   call_.dim, parts_.rows_over);
    const Type type = output_type(a().type);
    for (std::size_t i = 0; i < max_products && given_.b[i] != nullptr; ++i)
      made_.out[i] = like(a(), call_.dim, parts_.rows_times, parts_.rows_over, size_at(b(i), 1), type);
    if (gathers()) made_.gathered = like(a(), call_.dim, parts_.rows_times, 1, last_of(a()), a().type);
  }

  bool gathers() const { return call_.gathered_a || given_.gathered != nullptr; }

  View take(std::string_view name, const View& view) {
    made_.operands[made_.count++] = {name, view};
    return view;
  }
  // The result that is given, which must have that shape, or its place.
  View take_result(std::string_view name, const View& wanted, const View* given) {
    IMBREX_EXPECTS(given == nullptr || (given->dims == wanted.dims && given->extents == wanted.extents),
                   "{} is {}: it must be {}", name, text_of(*given), text_of(wanted));
    return take(name, matrix_of(name, given == nullptr ? wanted : *given, call_.dim));
  }

  void take_operands() {
    GemmShape& shape = made_.shape;
    shape.lda = leading_dimension(take("a", matrix_of("a", a(), call_.dim)));
    for (std::size_t i = 0; i < max_products && given_.b[i] != nullptr; ++i) {
      const int product = static_cast<int>(i);
      const std::int64_t ldb = leading_dimension(take(name_of_b(product), b(i)), columns_);
      if (given_.bias[i] != nullptr) take(name_of_bias(product), *given_.bias[i]);
      if (i == 0 && given_.a_scale != nullptr) take("a_scale", *given_.a_scale), take("b_scale", *given_.b_scale);
      const std::int64_t ldo = leading_dimension(take_result(name_of_out(product), made_.out[i], given_.out[i]));
      (i == 0 ? shape.ldb : shape.more_ldb[i - 1]) = ldb;
      (i == 0 ? shape.ldo : shape.more_ldo[i - 1]) = ldo;
    }
    if (gathers()) take_result("gathered", made_.gathered, given_.gathered);
  }

  void take_sizes() {
    GemmShape& shape = made_.shape;
    shape.m = parts_.m;
    for (int i = 0; i < a().dims - 1; ++i) shape.m = base::counted_product(shape.m, size_at(a(), i));
    shape.n = base::counted_product(size_at(b(0), 1), parts_.n);
    shape.k = base::counted_product(size_at(b(0), 0), parts_.k);
    shape.type = a().type;
    shape.bias = given_.bias[0] != nullptr;
    if (given_.a_scale != nullptr)
      shape.scales = holds_one(*given_.a_scale) && holds_one(*given_.b_scale) ? Scales::tensor : Scales::row;
    shape.b_layout = by_columns(b(0)) && shape.type != Type::e4m3 ? Layout::column_major : Layout::row_major;
    for (std::size_t i = 1; i < max_products && given_.b[i] != nullptr; ++i)
      shape.more_n[i - 1] = base::counted_product(size_at(b(i), 1), parts_.n);
    shape.gathered_a = gathers();
  }

  // What making the operator would say. Where A has no rows, of all else.
  void expect_valid() const {
    Problem problem = problem_of(call_.op, made_.shape, call_.ranks);
    if (problem.m == 0) problem.m = call_.ranks;
    validate(problem);
  }

  const CallForm& call_;
  const Given& given_;
  Parts parts_;
  bool columns_;
  Inferred made_;
};

}  // namespace

Inferred infer(const CallForm& call) {
  const Given given = sorted(call);
  expect_product(given, call.dim);
  expect_further(given);
  return Inference(call, given).run();
}

}  // namespace imbrex::ops
