// imbrex_operator_*.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "c/operator_options.hpp"
#include "c/worlds.hpp"
#include "imbrex/ops.hpp"

namespace imbrex::c {
namespace {

struct OperatorObject {
  Member member;
  runtime::Calls& calls;
  std::shared_ptr<GemmOperator> op;
  std::vector<std::string> names;  // names of the operands, for C: they end with a zero
  std::string plan;
};

OperatorObject& operator_of(imbrex_operator* op) {
  expect_given(op, "op");
  return *static_cast<OperatorObject*>(static_cast<void*>(op));
}

const OperatorObject& operator_of(const imbrex_operator* op) {
  expect_given(op, "op");
  return *static_cast<const OperatorObject*>(static_cast<const void*>(op));
}

constexpr std::size_t first_gemm = 48;
static_assert(offsetof(imbrex_gemm, any_m) == first_gemm);
static_assert(IMBREX_MOST_PRODUCTS == max_products);

static_assert(static_cast<int>(Scales::none) == IMBREX_SCALES_NONE &&
              static_cast<int>(Scales::tensor) == IMBREX_SCALES_TENSOR &&
              static_cast<int>(Scales::row) == IMBREX_SCALES_ROW);
static_assert(static_cast<int>(Layout::row_major) == IMBREX_ROW_MAJOR &&
              static_cast<int>(Layout::column_major) == IMBREX_COLUMN_MAJOR);
static_assert(static_cast<int>(OperandRole::input) == IMBREX_INPUT &&
              static_cast<int>(OperandRole::output) == IMBREX_OUTPUT);

GemmShape shape_of(const imbrex_gemm* given) {
  const auto gemm = structure_of(given, first_gemm, "imbrex_gemm");
  return {.m = gemm.m,
          .n = gemm.n,
          .k = gemm.k,
          .type = type_of(gemm.type),
          .bias = gemm.bias != 0,
          .scales = static_cast<Scales>(kind_of(gemm.scales, 3, "scales")),
          .b_layout = static_cast<Layout>(kind_of(gemm.b_layout, 2, "b_layout")),
          .any_m = gemm.any_m != 0,
          .more_n = {gemm.more_n[0], gemm.more_n[1]},
          .gathered_a = gemm.gathered_a != 0,
          .lda = gemm.lda,
          .ldb = gemm.ldb,
          .ldo = gemm.ldo,
          .more_ldb = {gemm.more_ldb[0], gemm.more_ldb[1]},
          .more_ldo = {gemm.more_ldo[0], gemm.more_ldo[1]},
          .packed = gemm.packed != 0};
}

struct Wanted {
  Operator kind;
  GemmShape shape;
  OperatorOptions options;
};

}  // namespace
}  // namespace imbrex::c

using namespace imbrex;
using imbrex::c::guarded;

imbrex_status imbrex_operator_make(imbrex_world* world, imbrex_operator_kind kind, const imbrex_gemm* gemm,
                                   const imbrex_operator_options* options, imbrex_operator** made) noexcept {
  if (made != nullptr) *made = nullptr;
  return guarded([&] {
    c::WorldObject& object = c::world_object(world);
    World& own = *object.world;
    const c::Wanted wanted = c::converted(own, [&] {
      c::expect_given(made, "made");
      const Operator op = c::product_operator(kind);
      const GemmShape shape = c::shape_of(gemm);
      return c::Wanted{op, shape, c::operator_options(options)};
    });
    std::shared_ptr<GemmOperator> op = make_operator(own, wanted.kind, wanted.shape, wanted.options);
    std::vector<std::string> names;
    for (const OperandInfo& info : op->operands()) names.emplace_back(info.name);
    *made = static_cast<imbrex_operator*>(static_cast<void*>(
        new c::OperatorObject{c::Member(object), runtime::calls_of(own), std::move(op), std::move(names), {}}));
  });
}

imbrex_status imbrex_operator_grow(imbrex_operator* op, int64_t m) noexcept {
  return guarded([&] {
    c::OperatorObject& object = c::operator_of(op);
    object.op->grow(m);
    object.plan.clear();
  });
}

imbrex_status imbrex_operator_destroy(imbrex_operator* op) noexcept {
  if (op == nullptr) return IMBREX_OK;
  return guarded([&] { delete &c::operator_of(op); });
}

int32_t imbrex_operator_operands(const imbrex_operator* op) noexcept {
  return c::guarded_value(-1, [&] { return static_cast<int32_t>(c::operator_of(op).names.size()); });
}

imbrex_status imbrex_operator_operand(const imbrex_operator* op, int32_t index, imbrex_operand_info* info) noexcept {
  return guarded([&] {
    const c::OperatorObject& object = c::operator_of(op);
    const auto at = static_cast<std::size_t>(c::kind_of(index, static_cast<int>(object.names.size()), "index"));
    const OperandInfo& own = object.op->operands()[at];
    const imbrex_operand_info told{.size = 0,
                                   .name = object.names[at].c_str(),
                                   .role = static_cast<imbrex_role>(own.role),
                                   .layout = static_cast<imbrex_layout>(own.layout),
                                   .rows = own.rows,
                                   .cols = own.cols,
                                   .bytes = own.bytes(),
                                   .view = c::view_of(own.at(static_cast<void*>(nullptr)))};
    c::write_structure(info, told, c::first_info, "imbrex_operand_info");
  });
}

imbrex_status imbrex_operator_run(imbrex_operator* op, const imbrex_operand* operands, size_t count,
                                  void* stream) noexcept {
  return guarded([&] {
    c::OperatorObject& object = c::operator_of(op);
    c::call(object.calls, operands, count,
            [&](const Operands& given) { object.op->run(given, static_cast<CudaStream>(stream)); });
  });
}

imbrex_status imbrex_operator_run_and_wait(imbrex_operator* op, const imbrex_operand* operands, size_t count,
                                           double* seconds) noexcept {
  return guarded([&] {
    c::OperatorObject& object = c::operator_of(op);
    c::call(object.calls, operands, count, [&](const Operands& given) {
      const Report report = object.op->run_and_wait(given);
      if (seconds != nullptr) *seconds = report.seconds;
    });
  });
}

imbrex_status imbrex_operator_check(imbrex_operator* op) noexcept {
  return guarded([&] { c::operator_of(op).op->check(); });
}

imbrex_status imbrex_operator_synchronize(imbrex_operator* op, void* stream) noexcept {
  return guarded([&] { c::operator_of(op).op->synchronize(static_cast<CudaStream>(stream)); });
}

imbrex_status imbrex_operator_codec_report(imbrex_operator* op, void* stream, imbrex_report* report) noexcept {
  return guarded([&] {
    const CodecReport told = c::operator_of(op).op->codec_report(static_cast<CudaStream>(stream));
    c::write_structure(report,
                       imbrex_report{.size = 0,
                                     .largest_error = told.largest_error,
                                     .non_finite = told.non_finite,
                                     .groups = told.groups,
                                     .raw_groups = 0,
                                     .exact = told.groups == 0 ? 1 : 0,
                                     .reserved = 0,
                                     .algorithm = nullptr},
                       c::first_report, "imbrex_report");
  });
}

imbrex_status imbrex_operator_allocate_output(imbrex_operator* op, void** memory) noexcept {
  if (memory != nullptr) *memory = nullptr;
  return guarded([&] {
    c::OperatorObject& object = c::operator_of(op);
    c::expect_given(memory, "memory");
    std::shared_ptr<void> output = object.op->allocate_output();
    void* address = output.get();
    object.member.world().outputs.emplace(address, std::move(output));
    *memory = address;
  });
}

imbrex_status imbrex_operator_free_output(imbrex_world* world, void* memory) noexcept {
  return guarded([&] {
    c::WorldObject& object = c::world_object(world);
    IMBREX_EXPECTS(object.outputs.erase(memory) == 1, "memory = {}: no output was allocated there", memory);
  });
}

imbrex_status imbrex_operator_packed_layout(const imbrex_operator* op, imbrex_packed_layout* layout) noexcept {
  return guarded([&] {
    const c::OperatorObject& object = c::operator_of(op);
    c::expect_given(layout, "layout");
    c::write_layout(layout, object.op->packed_layout());
  });
}

imbrex_device imbrex_operator_device(const imbrex_operator* op) noexcept {
  return c::guarded_value(-1, [&] { return c::number_of(c::operator_of(op).op->device()); });
}

const char* imbrex_operator_why_cpu(const imbrex_operator* op) noexcept {
  return c::guarded_value("", [&] { return c::operator_of(op).op->why_cpu().c_str(); });
}

imbrex_status imbrex_operator_plan(imbrex_operator* op, const char** json) noexcept {
  if (json != nullptr) *json = nullptr;
  return guarded([&] {
    c::OperatorObject& object = c::operator_of(op);
    c::expect_given(json, "json");
    if (object.plan.empty()) object.plan = to_json(object.op->plan());
    *json = object.plan.c_str();
  });
}
