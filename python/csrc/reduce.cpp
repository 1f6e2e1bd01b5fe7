// The all-reduce alone, and fused with the residual's addition and RMSNorm.
#include <bit>

#include "groups.hpp"
#include "kernels.hpp"
#include "stream.hpp"
#include "tensor.hpp"

namespace imbrex_torch {
namespace {

// An object takes tensors up to a size. Rounded up, a few serve all sizes that a model has.
std::int64_t capacity(std::int64_t count) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
}

// The tensor's sizes, without gaps.
Tensor empty_like(const Tensor& x) {
  std::array<std::int64_t, IMBREX_MOST_DIMS> sizes{};
  for (int i = 0; i < x.dims(); ++i) sizes[static_cast<std::size_t>(i)] = x.size(i);
  return Tensor::empty({sizes.data(), static_cast<std::size_t>(x.dims())}, x.type(), x);
}

void expect_alike(const Tensor& one, const Tensor& x) {
  bool alike = one.dims() == x.dims() && one.type() == x.type() && one.on_gpu() == x.on_gpu() &&
               one.device_index() == x.device_index();
  for (int i = 0; alike && i < x.dims(); ++i) alike = one.size(i) == x.size(i);
  if (!alike)
    refuse(std::string(one.name()) + " is " + one.shape() + " of " + name_of(one.type()) + " on " + one.device_name() +
           ": it must be as x, " + x.shape() + " of " + name_of(x.type()) + " on " + x.device_name());
}

std::string none_of(const Tensor& x) { return "x is " + x.shape() + ": its size must be the same on every rank"; }

struct Reduction {
  Tensor x;
  std::string group;
  std::optional<std::string> codec;
  std::optional<double> tolerance;
  bool report;
  Tensor out;

  Reduction(Arguments stack, bool into_out)
      : x(stack.tensor("x")),
        group(stack.text()),
        codec(stack.optional_text()),
        tolerance(stack.optional_number()),
        report(stack.integer() != 0),
        out(into_out ? stack.tensor("out") : Tensor()) {}

  void run();
};

void Reduction::run() {
  Group& in = find_group(group);
  const std::lock_guard lock(in.mutex);
  void* stream = nullptr;
  const Made* made = nullptr;
  prepare_call(in, [&] {
    x.read();
    if (out) {
      out.read();
      expect_alike(out, x);
    } else {
      out = empty_like(x);
    }
    if (x.count() == 0) return;
    stream = x.on_gpu() ? current_stream(x.device_index()) : nullptr;
    const std::int64_t most = capacity(x.count());
    Key key;
    key.numbers = {100,
                   most,
                   x.type(),
                   x.on_gpu(),
                   report,
                   tolerance.has_value(),
                   std::bit_cast<std::int64_t>(tolerance.value_or(0)),
                   0,
                   0,
                   0};
    if (codec) key.text = *codec;
    made = &find_or_make(in, key, x.on_gpu(), stream, [&] {
      const auto limit = static_cast<float>(tolerance.value_or(0));
      imbrex_all_reduce_options options{};
      options.size = sizeof(options);
      options.codec = codec ? for_c("codec", *codec) : nullptr;
      options.tolerance = tolerance ? &limit : nullptr;
      options.no_report = report ? 0 : 1;
      options.device = x.on_gpu() ? IMBREX_CUDA : IMBREX_CPU;
      Made result;
      check(imbrex_all_reduce_make(in.world, most, x.type(), &options, &result.collective));
      return result;
    });
  });
  if (made == nullptr) return skip_call(in, none_of(x));
  const std::array operands{imbrex_operand{"in", x.view()}, imbrex_operand{"out", out.view()}};
  check(imbrex_collective_run(made->collective, operands.data(), operands.size(), stream));
  if (report) in.last = made->collective;
  count(Count::all_reduce);
}

struct Norm {
  Tensor x, residual, weight;
  double eps;
  std::string group;
  Tensor out, residual_out;

  Norm(Arguments stack, bool into_out)
      : x(stack.tensor("x")),
        residual(stack.optional_tensor("residual")),
        weight(stack.tensor("weight")),
        eps(stack.number()),
        group(stack.text()),
        out(into_out ? stack.tensor("out") : Tensor()),
        residual_out(into_out ? stack.tensor("residual_out") : Tensor()) {}

  void run();
};

void Norm::run() {
  Group& in = find_group(group);
  const std::lock_guard lock(in.mutex);
  void* stream = nullptr;
  const Made* made = nullptr;
  std::array<imbrex_operand, 5> operands;
  std::size_t given = 0;
  prepare_call(in, [&] {
    x.read();
    if (x.dims() == 0) refuse("x is " + x.shape() + ": it must have a dimension");
    weight.read();
    const std::int64_t hidden = x.size(x.dims() - 1);
    if (hidden == 0) refuse("x is " + x.shape() + ": a row must have elements");
    const imbrex_type weights = weight.type();
    if (weight.count() != hidden || (weights != x.type() && weights != IMBREX_FP32) || weight.on_gpu() != x.on_gpu())
      refuse("weight is " + weight.shape() + " of " + name_of(weights) + " on " + weight.device_name() +
             ": with x of " + x.shape() + " it must be " + std::to_string(hidden) + " of " + name_of(x.type()) +
             (x.type() == IMBREX_FP32 ? "" : " or fp32") + " on " + x.device_name());
    if (residual) {
      residual.read();
      expect_alike(residual, x);
    }
    for (Tensor* one : {&out, &residual_out})
      if (*one) {
        one->read();
        expect_alike(*one, x);
      } else {
        *one = empty_like(x);
      }
    if (x.count() == 0) return;
    stream = x.on_gpu() ? current_stream(x.device_index()) : nullptr;
    const std::int64_t most = capacity(x.count() / hidden);
    Key key;
    key.numbers = {101, most, hidden, x.type(), x.on_gpu(), std::bit_cast<std::int64_t>(eps), weights};
    made = &find_or_make(in, key, x.on_gpu(), stream, [&] {
      const auto value = static_cast<float>(eps);
      imbrex_rms_norm_options options{};
      options.size = sizeof(options);
      options.eps = &value;
      options.weight_type = &weights;
      options.device = x.on_gpu() ? IMBREX_CUDA : IMBREX_CPU;
      Made result;
      check(imbrex_all_reduce_rms_norm_make(in.world, most, hidden, x.type(), &options, &result.collective));
      return result;
    });
    operands[given++] = {"in", x.view()};
    if (residual) operands[given++] = {"residual", residual.view()};
    operands[given++] = {"weight", weight.view()};
    operands[given++] = {"residual_out", residual_out.view()};
    operands[given++] = {"out", out.view()};
  });
  if (made == nullptr) return skip_call(in, none_of(x));
  check(imbrex_collective_run(made->collective, operands.data(), given, stream));
  count(Count::all_reduce_rms_norm);
}

}  // namespace

void all_reduce(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Reduction call(Arguments(stack), false);
  call.run();
  stack[0] = call.out.give();
}

void all_reduce_out(StableIValue* stack, std::uint64_t, std::uint64_t) { Reduction(Arguments(stack), true).run(); }

void all_reduce_rms_norm(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Norm call(Arguments(stack), false);
  call.run();
  stack[0] = call.out.give();
  stack[1] = call.residual_out.give();
}

void all_reduce_rms_norm_out(StableIValue* stack, std::uint64_t, std::uint64_t) { Norm(Arguments(stack), true).run(); }

}  // namespace imbrex_torch
