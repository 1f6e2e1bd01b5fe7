// Products with the collective that depends on them.
#include <algorithm>
#include <array>

#include "groups.hpp"
#include "kernels.hpp"
#include "stream.hpp"
#include "tensor.hpp"

namespace imbrex_torch {
namespace {

// The operators that take a codec.
constexpr bool sums(imbrex_operator_kind kind) {
  return kind == IMBREX_GEMM_REDUCE_SCATTER || kind == IMBREX_GEMM_ALL_REDUCE;
}

// One call: its arguments, and what follows from their shapes.
struct Call {
  imbrex_operator_kind kind;
  Tensor a, b;
  std::string group;
  int dim;
  Tensor bias, scale_a, scale_b;
  std::optional<std::int32_t> out_dtype;
  std::optional<std::string> codec;
  Tensor out;
  // What belongs to a further B.
  struct Further {
    Tensor b, bias, out;
  };
  std::array<Further, IMBREX_MOST_PRODUCTS - 1> more;
  bool gathers = false;
  Tensor gathered;

  Call(imbrex_operator_kind of, Arguments stack, bool into_out)
      : kind(of),
        a(stack.tensor("a")),
        b(stack.tensor("b")),
        group(stack.text()),
        dim(static_cast<int>(stack.integer())),
        bias(stack.optional_tensor("bias")),
        scale_a(stack.optional_tensor("scale_a")),
        scale_b(stack.optional_tensor("scale_b")),
        out_dtype(into_out ? std::nullopt : stack.optional_dtype()),
        codec(sums(of) ? stack.optional_text() : std::nullopt),
        out(into_out ? stack.tensor("out") : Tensor()) {}

  // A plain call: of a, b and a group alone.
  Call(imbrex_operator_kind of, Tensor&& a_, Tensor&& b_, std::string_view group_, Tensor&& out_)
      : kind(of), a(std::move(a_)), b(std::move(b_)), group(group_), dim(0), out(std::move(out_)) {}

  // A call with several B.
  explicit Call(Arguments stack) : kind(IMBREX_ALL_GATHER_GEMM), a(stack.tensor("a")), b(stack.tensor("b")) {
    more[0].b = stack.optional_tensor("b1");
    more[1].b = stack.optional_tensor("b2");
    group = stack.text();
    dim = static_cast<int>(stack.integer());
    bias = stack.optional_tensor("bias");
    more[0].bias = stack.optional_tensor("bias1");
    more[1].bias = stack.optional_tensor("bias2");
    gathers = stack.integer() != 0;
  }

  void read();
  void read_further();
  imbrex_type out_type() const { return a.type() == IMBREX_E4M3 ? IMBREX_BF16 : a.type(); }
  imbrex_scales scales() const {
    if (!scale_a) return IMBREX_SCALES_NONE;
    return scale_a.count() == 1 && scale_b.count() == 1 ? IMBREX_SCALES_TENSOR : IMBREX_SCALES_ROW;
  }
  // A linear layer's weights lie by columns, as its `weight.t()`. What lies neither way is told so by the library.
  bool b_by_columns() const { return by_columns(b); }
  static bool by_columns(const Tensor& b) { return b.stride(1) != 1 && (b.stride(0) == 1 || b.size(0) == 1); }
  /// `out` is there. Further outputs lie without gaps, as make_out's do.
  imbrex_gemm gemm(std::int32_t ranks) const;
  void make_out(std::int32_t ranks);
  Tensor gathered_rows(std::int32_t ranks, std::int64_t cols, imbrex_type type) const;
};

void expect_beside(const Tensor& one, const Tensor& a) {
  if (one.on_gpu() != a.on_gpu() || one.device_index() != a.device_index())
    refuse(std::string(one.name()) + " is on " + one.device_name() + ", a on " + a.device_name() +
           ": all tensors must be on one device");
}

void Call::read() {
  for (Tensor* one : {&a, &b, &bias, &scale_a, &scale_b, &out})
    if (*one) {
      one->read();
      expect_beside(*one, a);
    }
  if (a.dims() < 2 || a.dims() > 3) refuse("a is " + a.shape() + ": it must have 2 or 3 dimensions");
  if (b.dims() != 2) refuse("b is " + b.shape() + ": it must have 2 dimensions");
  if (dim < 0 || dim > a.dims() - 2)
    refuse("dim = " + std::to_string(dim) + " with a of " + a.shape() +
           ": it must be a dimension of a before its last");
  if (a.type() != b.type())
    refuse(std::string("a is of type ") + name_of(a.type()) + ", b of type " + name_of(b.type()) +
           ": they must be of one type");
  if (a.size(a.dims() - 1) != b.size(0))
    refuse("a is " + a.shape() + ", b " + b.shape() + ": a's last dimension must be b's first");
  // All ranks may have no rows.
  for (const std::int64_t size : {b.size(0), b.size(1)})
    if (size == 0) refuse("a is " + a.shape() + ", b " + b.shape() + ": only a's rows may be none");
  if (!scale_a != !scale_b) refuse("scale_a and scale_b: both must be given, or neither");
  if (scale_a && a.type() != IMBREX_E4M3)
    refuse(std::string("scale_a with a of type ") + name_of(a.type()) + ": only float8_e4m3fn has scales");
  if (out_dtype && *out_dtype != dtype_of(out_type()))
    refuse(std::string("out_dtype: of a and b of type ") + name_of(a.type()) + " the result is " + name_of(out_type()));
}

void Call::read_further() {
  for (auto& [b1, bias1, out1] : more)
    for (Tensor* one : {&b1, &bias1})
      if (*one) {
        one->read();
        expect_beside(*one, a);
      }
  if (more[1].b && !more[0].b) refuse("b2 is given, and b1 is not");
  for (const auto& [b1, bias1, out1] : more) {
    if (!b1 && bias1) refuse(std::string(bias1.name()) + " is given, and no b for it");
    if (!b1) continue;
    if (b1.dims() != 2 || b1.size(0) != b.size(0) || b1.type() != b.type() || b1.count() == 0)
      refuse(std::string(b1.name()) + " is " + b1.shape() + " of type " + name_of(b1.type()) + ", b " + b.shape() +
             " of type " + name_of(b.type()) + ": they must have as many rows, and one type");
    if (by_columns(b1) != b_by_columns())
      refuse(std::string(b1.name()) + " and b lie by rows and by columns: all must lie alike");
    if (!bias1 != !bias) refuse(std::string("a bias of b, or of ") + b1.name() + ", is missing: all have one, or none");
  }
}

imbrex_gemm Call::gemm(std::int32_t ranks) const {
  imbrex_gemm result{};
  result.size = sizeof(result);
  result.k = b.size(0);
  result.n = b.size(1);
  result.m = a.count() / result.k;
  if (kind == IMBREX_ALL_GATHER_GEMM) result.m *= ranks, result.n *= ranks;
  if (sums(kind)) result.k *= ranks;
  result.type = a.type();
  result.bias = bias ? 1 : 0;
  result.scales = scales();
  result.b_layout = (result.type != IMBREX_E4M3 && b_by_columns()) ? IMBREX_COLUMN_MAJOR : IMBREX_ROW_MAJOR;
  for (std::size_t i = 0; i < more.size(); ++i)
    if (more[i].b) result.more_n[i] = more[i].b.size(1) * ranks;
  result.gathered_a = gathers ? 1 : 0;
  const bool columns = b_by_columns() || result.type == IMBREX_E4M3;
  result.lda = leading_dimension(a.matrix(dim));
  result.ldb = leading_dimension(b.view(), columns);
  result.ldo = leading_dimension(out.matrix(dim));
  for (std::size_t i = 0; i < more.size(); ++i)
    if (more[i].b) result.more_ldb[i] = leading_dimension(more[i].b.view(), columns);
  return result;
}

// As a, with its dimension `dim` of all ranks, and so many columns.
Tensor Call::gathered_rows(std::int32_t ranks, std::int64_t cols, imbrex_type type) const {
  std::array<std::int64_t, IMBREX_MOST_DIMS> sizes{};
  for (int i = 0; i < a.dims() - 1; ++i) sizes[static_cast<std::size_t>(i)] = a.size(i);
  sizes[static_cast<std::size_t>(dim)] *= ranks;
  sizes[static_cast<std::size_t>(a.dims() - 1)] = cols;
  return Tensor::empty({sizes.data(), static_cast<std::size_t>(a.dims())}, dim, type, a);
}

// The shape of a with the collective's dimension grown or split and the product's columns last; in memory that
// dimension comes first, as the library works.
void Call::make_out(std::int32_t ranks) {
  std::array<std::int64_t, IMBREX_MOST_DIMS> sizes{};
  const int dims = a.dims();
  for (int i = 0; i < dims - 1; ++i) sizes[static_cast<std::size_t>(i)] = a.size(i);
  sizes[static_cast<std::size_t>(dims - 1)] = b.size(1);
  std::int64_t& split = sizes[static_cast<std::size_t>(dim)];
  if (kind == IMBREX_ALL_GATHER_GEMM) split *= ranks;
  if (kind == IMBREX_GEMM_REDUCE_SCATTER) {
    if (split % ranks != 0)
      refuse("a is " + a.shape() + ": its dimension " + std::to_string(dim) + " must divide by the " +
             std::to_string(ranks) + " ranks");
    split /= ranks;
  }
  const std::span<const std::int64_t> wanted(sizes.data(), static_cast<std::size_t>(dims));
  if (!out) {
    out = Tensor::empty(wanted, dim, out_type(), a);
    return;
  }
  bool fits = out.dims() == dims;
  for (int i = 0; fits && i < dims; ++i) fits = out.size(i) == sizes[static_cast<std::size_t>(i)];
  if (!fits) {
    std::string text;
    for (const std::int64_t size : wanted) text += (text.empty() ? "" : " x ") + std::to_string(size);
    refuse("out is " + out.shape() + ": it must be " + text);
  }
}

// Where ranks do not have as many rows, which the library says of its M, the error names what takes such rows.
template <typename Body>
void with_way_out(imbrex_operator_kind kind, const Body& body) {
  try {
    body();
  } catch (const std::runtime_error&) {
    const std::string message = last_message();
    const auto tells = [&](const char* text) { return message.find(text) != std::string::npos; };
    const bool takes_rows = kind == IMBREX_ALL_GATHER_GEMM || kind == IMBREX_GEMM_REDUCE_SCATTER;
    const bool is_of_rows = tells(" M = ") || tells(" m = ") || tells("a larger M") || tells("prepares an object") ||
                            tells("the rows must be as many");
    if (!takes_rows || !is_of_rows || last_code() != IMBREX_INVALID_INPUT || tells("rows = [")) throw;
    refuse(message + "; rows=[...] takes rows that are not as many on every rank");
  }
}

// All but M.
Key key_of(const Call& call, const imbrex_gemm& gemm) {
  Key key;
  key.numbers = {
      call.kind,        gemm.n,          gemm.k,         gemm.type,       gemm.bias, gemm.scales, call.b_by_columns(),
      call.a.on_gpu(),  gemm.more_n[0],  gemm.more_n[1], gemm.gathered_a, gemm.lda,  gemm.ldb,    gemm.ldo,
      gemm.more_ldb[0], gemm.more_ldb[1]};
  if (call.codec) key.text = *call.codec;
  return key;
}

// What calls of the form of one that was made begin with.
Ready ready_of(const Call& call, Made& made, const imbrex_operand* operands) {
  Ready result;
  result.made = &made;
  std::copy_n(operands, result.operands.size(), result.operands.begin());
  result.dims = call.out.dims();
  result.dtype = call.out.dtype();
  for (int i = 0; i < result.dims; ++i) {
    result.sizes[static_cast<std::size_t>(i)] = call.out.size(i);
    result.strides[static_cast<std::size_t>(i)] = call.out.stride(i);
  }
  return result;
}

// A call with a form, which is a plain one, is ready after this, unless it has no rows.
void run(Call& call, const Form* form = nullptr) {
  // First: peers whose call is right connect the group, too.
  Group& group = find_group(call.group);
  const std::lock_guard lock(group.mutex);
  std::array<imbrex_operand, 11> operands;
  std::size_t count = 0;
  void* stream = nullptr;
  Made* made = nullptr;
  prepare_call(group, [&] {
    call.read();
    call.read_further();
    stream = call.a.on_gpu() ? current_stream(call.a.device_index()) : nullptr;
    call.make_out(group.size);
    for (Call::Further& further : call.more)
      if (further.b) further.out = call.gathered_rows(group.size, further.b.size(1), call.out_type());
    if (call.gathers) call.gathered = call.gathered_rows(group.size, call.b.size(0), call.a.type());
    if (call.a.count() == 0) return;
    const imbrex_gemm gemm = call.gemm(group.size);

    operands[count++] = {"a", call.a.matrix(call.dim)};
    operands[count++] = {"b", call.b.view()};
    if (call.bias) operands[count++] = {"bias", call.bias.view()};
    if (call.scale_a) {
      operands[count++] = {"a_scale", call.scale_a.view()};
      operands[count++] = {"b_scale", call.scale_b.view()};
    }
    operands[count++] = {"out", call.out.matrix(call.dim)};
    constexpr const char* names[][3] = {{"b1", "bias1", "out1"}, {"b2", "bias2", "out2"}};
    for (std::size_t i = 0; i < call.more.size(); ++i) {
      const auto& [b, bias, out] = call.more[i];
      if (!b) break;
      operands[count++] = {names[i][0], b.view()};
      if (bias) operands[count++] = {names[i][1], bias.view()};
      operands[count++] = {names[i][2], out.matrix(call.dim)};
    }
    if (call.gathered) operands[count++] = {"gathered", call.gathered.matrix(call.dim)};

    const auto make = [&] {
      imbrex_gemm of_any_m = gemm;
      of_any_m.any_m = 1;
      imbrex_operator_options options{};
      options.size = sizeof(options);
      options.device = call.a.on_gpu() ? IMBREX_CUDA : IMBREX_CPU;
      options.cpu_workers = group.cpu_workers;
      options.heap_limit = group.gpu_heap_limit;
      options.codec = call.codec ? for_c("codec", *call.codec) : nullptr;
      Made result;
      check(imbrex_operator_make(group.world, call.kind, &of_any_m, &options, &result.product));
      return result;
    };
    made = &find_or_make_of_any_m(group, key_of(call, gemm), gemm.m, call.a.on_gpu(), stream, make);
  });
  if (made == nullptr) return skip_call(group, "a is " + call.a.shape() + ": the rows must be as many on every rank");
  check(imbrex_operator_run(made->product, operands.data(), count, stream));
  if (!form) return;
  if (group.ready.size() >= most_forms) group.ready.clear();
  group.ready.insert_or_assign(*form, ready_of(call, *made, operands.data()));
}

// Runs the call if one of its form is ready, and makes its result where there is none.
bool run_again(Group& group, const Form& form, const Tensor& a, const Tensor& b, Tensor& out) {
  const std::lock_guard lock(group.mutex);
  const auto found = group.ready.find(form);
  if (found == group.ready.end()) return false;
  const Ready& ready = found->second;
  if (!out) out = Tensor::empty(ready.dims, ready.sizes.data(), ready.strides.data(), ready.dtype, a);
  std::array operands = ready.operands;
  operands[0].view.data = a.data();
  operands[1].view.data = b.data();
  operands[2].view.data = out.data();
  void* const stream = ready.made->on_gpu ? current_stream(a.device_index()) : nullptr;
  check(imbrex_operator_run(ready.made->product, operands.data(), operands.size(), stream));
  return true;
}

template <imbrex_operator_kind kind>
void plain(StableIValue* stack, bool into_out) {
  Tensor a(reinterpret_cast<AtenTensorHandle>(stack[0]), "a"), b(reinterpret_cast<AtenTensorHandle>(stack[1]), "b");
  const Text name(stack[2]);
  Tensor out = into_out ? Tensor(reinterpret_cast<AtenTensorHandle>(stack[3]), "out") : Tensor();
  Form form{};
  form[0] = kind;
  bool has_form = true;
  std::int64_t* words = form.data() + 1;
  for (Tensor* one : {&a, &b, &out}) {
    if (!*one) continue;  // words of 0, which no tensor's are
    one->fetch();
    has_form = one->write_form(words) && has_form;
    words += Tensor::form_words;
  }
  Group* const group = has_form ? connected_group(name.view()) : nullptr;
  with_way_out(kind, [&] {
    if (group && run_again(*group, form, a, b, out)) return;
    Call call(kind, std::move(a), std::move(b), name.view(), std::move(out));
    run(call, has_form ? &form : nullptr);
    out = std::move(call.out);
  });
  if (!into_out) stack[0] = out.give();
}

template <imbrex_operator_kind kind>
void functional(StableIValue* stack) {
  Call call(kind, Arguments(stack), false);
  with_way_out(kind, [&] { run(call); });
  stack[0] = call.out.give();
}

template <imbrex_operator_kind kind>
void into_out(StableIValue* stack) {
  Call call(kind, Arguments(stack), true);
  with_way_out(kind, [&] { run(call); });
}

}  // namespace

void all_gather_matmuls(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Call call{Arguments(stack)};
  with_way_out(IMBREX_ALL_GATHER_GEMM, [&] { run(call); });
  const auto given = [&](Tensor& result) {
    constexpr std::int64_t none = 0;
    return (result ? std::move(result) : Tensor::empty({&none, 1}, 0, call.out_type(), call.a)).give();
  };
  stack[0] = given(call.gathered);
  stack[1] = call.out.give();
  for (std::size_t i = 0; i < call.more.size(); ++i) stack[2 + i] = given(call.more[i].out);
  count(Count::all_gather_matmul);
}

#define IMBREX_GEMM_KERNELS(name, kind)                                      \
  void name(StableIValue* stack, std::uint64_t, std::uint64_t) {             \
    functional<kind>(stack);                                                 \
    count(Count::name);                                                      \
  }                                                                          \
  void name##_out(StableIValue* stack, std::uint64_t, std::uint64_t) {       \
    into_out<kind>(stack);                                                   \
    count(Count::name);                                                      \
  }                                                                          \
  void name##_plain(StableIValue* stack, std::uint64_t, std::uint64_t) {     \
    plain<kind>(stack, false);                                               \
    count(Count::name);                                                      \
  }                                                                          \
  void name##_plain_out(StableIValue* stack, std::uint64_t, std::uint64_t) { \
    plain<kind>(stack, true);                                                \
    count(Count::name);                                                      \
  }
IMBREX_GEMM_KERNELS(all_gather_matmul, IMBREX_ALL_GATHER_GEMM)
IMBREX_GEMM_KERNELS(matmul_reduce_scatter, IMBREX_GEMM_REDUCE_SCATTER)
IMBREX_GEMM_KERNELS(matmul_all_reduce, IMBREX_GEMM_ALL_REDUCE)
IMBREX_GEMM_KERNELS(matmul_all_to_all, IMBREX_GEMM_ALL_TO_ALL)

}  // namespace imbrex_torch
