// imbrex_operator_packed_layout's structure, and imbrex_put_back.
#include "imbrex/packed.hpp"

#include <cstddef>

#include "c/convert.hpp"

namespace imbrex::c {
namespace {

constexpr std::size_t first_layout = 56;
static_assert(sizeof(imbrex_packed_layout) == first_layout);

static_assert(static_cast<int>(RowOperation::copy) == IMBREX_COPY &&
              static_cast<int>(RowOperation::rms_norm) == IMBREX_RMS_NORM &&
              static_cast<int>(RowOperation::silu_multiply) == IMBREX_SILU_MULTIPLY &&
              static_cast<int>(RowOperation::gelu) == IMBREX_GELU);

PackedLayout layout_of(const imbrex_packed_layout* given) {
  const auto l = structure_of(given, first_layout, "imbrex_packed_layout");
  return {l.rows, l.cols, l.block_rows, l.block_cols, l.first_rows, device_of(l.device)};
}

}  // namespace

void write_layout(imbrex_packed_layout* to, const PackedLayout& l) {
  write_structure(to,
                  {.size = 0,
                   .rows = l.rows,
                   .cols = l.cols,
                   .block_rows = l.block_rows,
                   .block_cols = l.block_cols,
                   .first_rows = l.first_rows,
                   .device = number_of(l.device),
                   .reserved = 0},
                  first_layout, "imbrex_packed_layout");
}

}  // namespace imbrex::c

using namespace imbrex;

imbrex_status imbrex_put_back(imbrex_row_operation operation, const imbrex_packed_layout* layout,
                              const imbrex_operand* operands, size_t count, float eps, void* stream) noexcept {
  return c::guarded([&] {
    const auto kind = static_cast<RowOperation>(c::kind_of(operation, 4, "operation"));
    put_back(kind, c::layout_of(layout), c::CallOperands(operands, count).list(), eps, static_cast<CudaStream>(stream));
  });
}
