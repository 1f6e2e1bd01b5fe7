// Products with the collective that depends on them.
#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "groups.hpp"
#include "kernels.hpp"
#include "stream.hpp"
#include "tensor.hpp"

namespace imbrex_torch {
namespace {

// The operators that take a codec.
constexpr bool sums(imbrex_operator_kind kind) {
  constexpr bool SUM = true, EXCHANGE = false;
#define IMBREX_SUMS(name, number, sums_) \
  if (kind == number) return sums_;
  IMBREX_PRODUCTS(IMBREX_SUMS)
#undef IMBREX_SUMS
  return EXCHANGE;
}

constexpr std::size_t most_operands = 16;
constexpr const char* further_names[][3] = {{"b1", "bias1", "out1"}, {"b2", "bias2", "out2"}};

// One call: its arguments, and what follows from them.
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
    for (std::size_t i = 0; i < more.size(); ++i) more[i].b = stack.optional_tensor(further_names[i][0]);
    group = stack.text();
    dim = static_cast<int>(stack.integer());
    bias = stack.optional_tensor("bias");
    for (std::size_t i = 0; i < more.size(); ++i) more[i].bias = stack.optional_tensor(further_names[i][1]);
    gathers = stack.integer() != 0;
  }

  /// Reads the tensors, has the library say what follows from them, and makes the results that are not there.
  void read(std::int32_t ranks);

  imbrex_gemm gemm{};                                  // after read()
  imbrex_results results{};                            // as torch sees them
  std::array<imbrex_operand, most_operands> operands;  // as the library takes them
  std::uint64_t count = 0;

 private:
  void make(const char* operand, const imbrex_view& result, Tensor& into);
};

// A result, where it is not given.
void Call::make(const char* operand, const imbrex_view& result, Tensor& into) {
  if (into || result.dims == 0) return;
  into = Tensor::empty(result.dims, result.extents, result.strides, dtype_of(result.type), a);
  for (std::uint64_t i = 0; i < count; ++i)
    if (std::string_view(operands[i].name) == operand) operands[i].view.data = into.data();
}

void Call::read(std::int32_t ranks) {
  std::array<imbrex_operand, most_operands> given;
  std::uint64_t count_given = 0;
  const auto take = [&](const char* operand, Tensor& one) {
    if (!one) return;
    one.read();
    if (one.on_gpu() != a.on_gpu() || one.device_index() != a.device_index())
      refuse(std::string(one.name()) + " is on " + one.device_name() + ", a on " + a.device_name() +
             ": all must be on one device");
    given[count_given++] = {operand, one.view()};
  };
  take("a", a);
  take("b", b);
  take("bias", bias);
  take("a_scale", scale_a);
  take("b_scale", scale_b);
  for (std::size_t i = 0; i < more.size(); ++i) {
    take(further_names[i][0], more[i].b);
    take(further_names[i][1], more[i].bias);
  }
  take("out", out);
  const imbrex_call call{sizeof(call), kind, ranks, dim, gathers ? 1 : 0, given.data(), count_given};
  gemm.size = sizeof(gemm);
  results.size = sizeof(results);
  count = operands.size();
  check(imbrex_operator_infer(&call, &gemm, &results, operands.data(), &count));
  if (out_dtype && *out_dtype != dtype_of(results.out.type))
    refuse(std::string("out_dtype: of a and b of type ") + name_of(a.type()) + " the result is " +
           name_of(results.out.type));
  make("out", results.out, out);
  for (std::size_t i = 0; i < more.size(); ++i) make(further_names[i][2], results.more_out[i], more[i].out);
  make("gathered", results.gathered, gathered);
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
Key key_of(const Call& call) {
  imbrex_gemm gemm = call.gemm;
  gemm.m = 0;
  std::array<std::int64_t, sizeof(gemm) / sizeof(std::int64_t)> words;
  static_assert(sizeof(words) == sizeof(gemm) && words.size() + 2 == std::tuple_size_v<decltype(Key::numbers)>);
  std::memcpy(words.data(), &gemm, sizeof(gemm));
  Key key;
  key.numbers = {call.kind, call.a.on_gpu()};
  std::ranges::copy(words, key.numbers.begin() + 2);
  if (call.codec) key.text = *call.codec;
  return key;
}

// What calls of the form of one that was made begin with.
Ready ready_of(const Call& call, Made& made) {
  Ready result;
  result.made = &made;
  std::copy_n(call.operands.begin(), result.operands.size(), result.operands.begin());
  const imbrex_view& out = call.results.out;
  result.dims = out.dims;
  result.dtype = dtype_of(out.type);
  std::copy_n(out.extents, out.dims, result.sizes.begin());
  std::copy_n(out.strides, out.dims, result.strides.begin());
  return result;
}

// A call with a form, which is a plain one, is ready after this, unless it has no rows.
void run(Call& call, const Form* form = nullptr) {
  // First: peers whose call is right connect the group, too.
  Group& group = find_group(call.group);
  const std::lock_guard lock(group.mutex);
  void* stream = nullptr;
  Made* made = nullptr;
  prepare_call(group, [&] {
    call.read(group.size);
    stream = call.a.on_gpu() ? current_stream(call.a.device_index()) : nullptr;
    if (call.gemm.m == 0) return;
    const auto make = [&] {
      imbrex_gemm of_any_m = call.gemm;
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
    made = &find_or_make_of_any_m(group, key_of(call), call.gemm.m, call.a.on_gpu(), stream, make);
  });
  if (made == nullptr) return skip_call(group, "a is " + call.a.shape() + ": the rows must be as many on every rank");
  check(imbrex_operator_run(made->product, call.operands.data(), call.count, stream));
  if (!form) return;
  if (group.ready.size() >= most_forms) group.ready.clear();
  group.ready.insert_or_assign(*form, ready_of(call, *made));
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
    return (result ? std::move(result) : Tensor::empty({&none, 1}, call.results.out.type, call.a)).give();
  };
  stack[0] = given(call.gathered);
  stack[1] = call.out.give();
  for (std::size_t i = 0; i < call.more.size(); ++i) stack[2 + i] = given(call.more[i].out);
  count(Count::all_gather_matmul);
}

#define IMBREX_GEMM_KERNELS(name, kind, sums)                                \
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
IMBREX_PRODUCTS(IMBREX_GEMM_KERNELS)

}  // namespace imbrex_torch
