#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/check.hpp"
#include "collectives/put_back.hpp"
#include "collectives/rms_norm.hpp"
#include "imbrex/integers.hpp"
#include "ops/collective_place.hpp"
#include "plan/limits.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex {
namespace {

constexpr std::string_view put_back_operands[] = {"in", "residual", "weight", "bias", "residual_out", "out"};

void expect_layout(const PackedLayout& l) {
  IMBREX_EXPECTS(l.rows >= 0 && l.rows <= plan::most_extent && l.cols >= 1 && l.cols <= collectives::most_hidden,
                 "layout of {} x {}: rows must be from 0 to {}, cols from 1 to {}", l.rows, l.cols, plan::most_extent,
                 collectives::most_hidden);
  IMBREX_EXPECTS(l.device == Device::cpu || l.device == Device::cuda, "layout.device = {}: it must be cpu or cuda",
                 name_of(l.device));
  if (l.first_rows == nullptr) return;
  IMBREX_EXPECTS(
      l.block_rows >= 1 && l.block_rows <= plan::most_extent && l.block_cols >= 1 && l.cols % l.block_cols == 0,
      "layout in blocks of {} x {}: their rows must be from 1 to {}, and their columns divide cols = {}", l.block_rows,
      l.block_cols, plan::most_extent, l.cols);
}

// What an operation takes besides "in" and "out".
bool takes(RowOperation operation, std::string_view name) {
  if (name == "in" || name == "out") return true;
  if (operation == RowOperation::rms_norm) return name != "bias";
  return operation != RowOperation::copy && name == "bias";
}

class Checked {
 public:
  Checked(RowOperation operation, const PackedLayout& layout, const Operands& operands, float eps)
      : operands_(operands), operation_(operation) {
    IMBREX_EXPECTS(!name_of(operation).empty(), "row operation {} does not exist", static_cast<int>(operation));
    expect_layout(layout);
    IMBREX_EXPECTS(std::isfinite(eps) && eps >= 0, "eps = {}: it must be finite and not negative", eps);
    const bool halves = operation == RowOperation::silu_multiply;
    IMBREX_EXPECTS(!halves || layout.cols % 2 == 0, "silu_multiply of {} columns: they must be two halves",
                   layout.cols);
    for (const Operand& operand : operands) {
      if (operand.name == "in") work_.type = operand.view.type;
      IMBREX_EXPECTS(takes(operation, operand.name), "operand {}: {} takes no operand of that name", operand.name,
                     name_of(operation));
    }
    IMBREX_EXPECTS(work_.type != Type::e4m3 && !is_integer(work_.type),
                   "operand in is {}: it must be bf16, fp16 or fp32", name_of(work_.type));
    const ops::CollectiveOperands given(operands, work_.type, put_back_operands);
    const std::int64_t all = layout.rows * layout.cols;
    const auto take = [&](std::string_view name, std::int64_t count) -> void* {
      const View* view = given.find(name);
      if (view == nullptr) return nullptr;
      IMBREX_EXPECTS(ops::elements_of(*view) == count, "operand {} has {} elements; it must have {}", name,
                     ops::elements_of(*view), count);
      return view->data;
    };
    static_cast<void>(given.at("in")), static_cast<void>(given.at("out"));
    if (operation == RowOperation::rms_norm) static_cast<void>(given.at("weight"));
    work_.operation = operation;
    work_.layout = layout;
    work_.eps = eps;
    work_.in = take("in", all);
    work_.out = take("out", halves ? all / 2 : all);
    work_.residual = take("residual", all);
    work_.residual_out = take("residual_out", all);
    work_.weight = take("weight", layout.cols);
    work_.bias = take("bias", layout.cols);
    IMBREX_EXPECTS((work_.residual == nullptr) == (work_.residual_out == nullptr),
                   "operands residual and residual_out: both must be given, or neither");
    expect_apart();
  }

  const collectives::RowWork& work() const { return work_; }

  void expect_on_gpu() const {
    const int gpu = runtime::current_gpu();
    const PackedLayout& l = work_.layout;
    const auto expect_whole = [&](const char* what, std::int64_t elements) {
      IMBREX_EXPECTS(elements * static_cast<std::int64_t>(size_of(work_.type)) % 16 == 0,
                     "{} of {} elements: on GPUs it must be a multiple of 16 bytes", what, elements);
    };
    expect_whole("a row", l.cols);
    if (l.first_rows != nullptr) expect_whole("a row of a block", l.block_cols);
    if (operation_ == RowOperation::silu_multiply) expect_whole("a row of the result", l.cols / 2);
    for (const auto& [name, view] : operands_) {
      IMBREX_EXPECTS(runtime::on_gpu(view.data, gpu), "operand {} at {} is not in a GPU's memory", name, view.data);
      IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0,
                     "operand {} at {}: on GPUs it must be aligned to 16 bytes", name, view.data);
    }
    IMBREX_EXPECTS(l.first_rows == nullptr || runtime::on_gpu(l.first_rows, gpu),
                   "layout.first_rows at {} is not in a GPU's memory", static_cast<const void*>(l.first_rows));
  }

 private:
  void expect_apart() const {
    for (const Operand& out : operands_) {
      if (out.name != "out" && out.name != "residual_out") continue;
      for (const Operand& other : operands_)
        if (&other != &out) expect_apart(out, other);
    }
  }

  static void expect_apart(const Operand& out, const Operand& other) {
    const auto bytes = [](const View& v) { return static_cast<std::size_t>(ops::elements_of(v)) * size_of(v.type); };
    const auto* to = static_cast<const std::byte*>(out.view.data);
    const auto* from = static_cast<const std::byte*>(other.view.data);
    const bool overlap = std::less<>{}(from, to + bytes(out.view)) && std::less<>{}(to, from + bytes(other.view));
    const bool same_allowed = out.name == "residual_out" && other.name == "residual";
    IMBREX_EXPECTS(!overlap || (same_allowed && from == to),
                   "operand {} at {} overlaps operand {} at {}: they must be apart", out.name, out.view.data,
                   other.name, other.view.data);
  }

  const Operands& operands_;
  RowOperation operation_;
  collectives::RowWork work_;
};

}  // namespace

std::string_view name_of(RowOperation operation) {
  switch (operation) {
    case RowOperation::copy: return "copy";
    case RowOperation::rms_norm: return "rms_norm";
    case RowOperation::silu_multiply: return "silu_multiply";
    case RowOperation::gelu: return "gelu";
  }
  return {};
}

void put_back(RowOperation operation, const PackedLayout& layout, const Operands& operands, float eps,
              CudaStream stream) {
  const Checked checked(operation, layout, operands, eps);
  if (layout.device == Device::cpu) {
    IMBREX_EXPECTS(stream == nullptr, "a stream of CUDA is given, and the layout is one of the CPU's");
    return collectives::put_back_on_cpu(checked.work());
  }
  if (layout.rows == 0) return;
  checked.expect_on_gpu();
  collectives::put_back_on_gpu(checked.work(), stream);
}

}  // namespace imbrex
