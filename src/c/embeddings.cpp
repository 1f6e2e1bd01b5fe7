// imbrex_embedding_* and imbrex_place_tables.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "c/operator_options.hpp"
#include "c/worlds.hpp"
#include "imbrex/embedding.hpp"
#include "imbrex/integers.hpp"

namespace imbrex::c {
namespace {

struct EmbeddingObject {
  Member member;
  runtime::Calls& calls;
  std::unique_ptr<EmbeddingAllToAll> op;
  std::vector<std::string> names[2];  // names of a lookup's operands and an update's, for C: they end with a zero
  std::string plan;
};

EmbeddingObject& embedding_of(imbrex_embedding* embedding) {
  expect_given(embedding, "embedding");
  return *static_cast<EmbeddingObject*>(static_cast<void*>(embedding));
}

const EmbeddingObject& embedding_of(const imbrex_embedding* embedding) {
  expect_given(embedding, "embedding");
  return *static_cast<const EmbeddingObject*>(static_cast<const void*>(embedding));
}

const std::vector<EmbeddingOperand>& operands_of(const EmbeddingObject& object, int32_t update) {
  return update != 0 ? object.op->update_operands() : object.op->operands();
}

constexpr std::size_t first_shape = 88;
static_assert(sizeof(imbrex_embedding_shape) == first_shape);
static_assert(sizeof(imbrex_table_shard) == sizeof(EmbeddingShard) &&
              offsetof(imbrex_table_shard, rank) == offsetof(EmbeddingShard, rank) &&
              offsetof(imbrex_table_shard, begin) == offsetof(EmbeddingShard, begin));
static_assert(static_cast<int>(TableRows::fp32) == IMBREX_ROWS_FP32 &&
              static_cast<int>(TableRows::fp16) == IMBREX_ROWS_FP16 &&
              static_cast<int>(TableRows::bf16) == IMBREX_ROWS_BF16 &&
              static_cast<int>(TableRows::int8) == IMBREX_ROWS_INT8);
static_assert(static_cast<int>(Pooling::sum) == IMBREX_POOLING_SUM &&
              static_cast<int>(Pooling::mean) == IMBREX_POOLING_MEAN);
static_assert(static_cast<int>(Optimizer::sgd) + 1 == IMBREX_SGD &&
              static_cast<int>(Optimizer::row_wise_adagrad) + 1 == IMBREX_ROW_WISE_ADAGRAD);

IndexType index_type_of(imbrex_type type) {
  IMBREX_EXPECTS(type == 0 || type == IMBREX_INT32 || type == IMBREX_INT64,
                 "index_type = {}: it must be 17 (int32), or 18 or 0 (int64)", type);
  return type == IMBREX_INT32 ? IndexType::int32 : IndexType::int64;
}

EmbeddingShape shape_of(const imbrex_embedding_shape* given) {
  const auto read = structure_of(given, first_shape, "imbrex_embedding_shape");
  constexpr std::uint64_t most = std::uint64_t{1} << 20;
  IMBREX_EXPECTS(read.table_count <= most && read.shard_count <= most, "{} tables, {} shards: at most {} each",
                 read.table_count, read.shard_count, most);
  IMBREX_EXPECTS(read.tables != nullptr || read.table_count == 0, "tables is null, and there are {}", read.table_count);
  IMBREX_EXPECTS(read.shards != nullptr || read.shard_count == 0, "shards is null, and there are {}", read.shard_count);
  EmbeddingShape shape;
  for (std::size_t i = 0; i < read.table_count; ++i)
    shape.tables.push_back(
        {read.tables[i].rows, read.tables[i].dim, read.tables[i].hotness == 0 ? 1 : read.tables[i].hotness});
  for (std::size_t i = 0; i < read.shard_count; ++i) {
    const auto& [table, rank, begin, end] = read.shards[i];
    shape.shards.push_back({table, rank, begin, end});
  }
  shape.rows = static_cast<TableRows>(kind_of(read.rows, 4, "rows"));
  shape.batch = read.batch;
  shape.pooling = static_cast<Pooling>(kind_of(read.pooling, 2, "pooling"));
  shape.index_type = index_type_of(read.index_type);
  shape.weighted = read.weighted != 0;
  shape.out = type_of(read.out);
  shape.misfits = read.ignore_misfits != 0 ? Misfits::ignored : Misfits::refused;
  if (const int optimizer = kind_of(read.optimizer, 3, "optimizer"); optimizer != 0)
    shape.optimizer = static_cast<Optimizer>(optimizer - 1);
  if (read.epsilon != nullptr) shape.epsilon = *read.epsilon;
  return shape;
}

// This rank's next call is refused: by every rank on the CPU, where the ranks come together in each.
void refuse(EmbeddingObject& object, const Error& error) {
  if (object.op->device() == Device::cuda) return object.calls.refuse(error);
  World& world = *object.member.world().world;
  object.calls.make([&] { return converted(world, [&]() -> int { throw error; }); },
                    [](int) { return runtime::CallNote{}; },
                    [](int) { return runtime::Terms("a call of an embedding"); }, [](int) {});
}

template <typename Call>
void call_embedding(EmbeddingObject& object, const imbrex_operand* operands, std::size_t count, Call&& run) {
  // Rows and states of all shards, and what else there is.
  const std::size_t most = std::max(object.names[0].size(), object.names[1].size()) + CallOperands::few;
  call_or([&](const Error& error) { refuse(object, error); }, operands, count, most, std::forward<Call>(run));
}

}  // namespace
}  // namespace imbrex::c

using namespace imbrex;
using imbrex::c::guarded;

imbrex_status imbrex_place_tables(const imbrex_embedding_shape* shape, int32_t ranks, int64_t memory,
                                  imbrex_table_shard* shards, uint64_t* count, double* balance) noexcept {
  return guarded([&] {
    c::expect_given(count, "count");
    const EmbeddingShape of = c::shape_of(shape);
    const Placement placed =
        place_tables(of.tables, {.ranks = ranks, .rows = of.rows, .out = of.out, .memory = memory});
    const auto room = std::exchange(*count, placed.shards.size());
    if (balance != nullptr) *balance = placed.balance;
    if (shards == nullptr || room < placed.shards.size()) return;
    for (const EmbeddingShard& s : placed.shards) *shards++ = {s.table, s.rank, s.begin, s.end};
  });
}

imbrex_status imbrex_embedding_make(imbrex_world* world, const imbrex_embedding_shape* shape,
                                    const imbrex_operator_options* options, imbrex_embedding** made) noexcept {
  if (made != nullptr) *made = nullptr;
  return guarded([&] {
    c::WorldObject& object = c::world_object(world);
    World& own = *object.world;
    const auto wanted = c::converted(own, [&] {
      c::expect_given(made, "made");
      EmbeddingShape of = c::shape_of(shape);
      OperatorOptions with = c::operator_options(options);
      return std::pair(std::move(of), std::move(with));
    });
    auto op = std::make_unique<EmbeddingAllToAll>(own, wanted.first, wanted.second);
    std::unique_ptr<c::EmbeddingObject> handle(
        new c::EmbeddingObject{c::Member(object), runtime::calls_of(own), std::move(op), {}, {}});
    for (const int update : {0, 1})
      for (const EmbeddingOperand& info : c::operands_of(*handle, update))
        handle->names[update].emplace_back(info.name);
    *made = static_cast<imbrex_embedding*>(static_cast<void*>(handle.release()));
  });
}

imbrex_status imbrex_embedding_destroy(imbrex_embedding* embedding) noexcept {
  if (embedding == nullptr) return IMBREX_OK;
  return guarded([&] { delete &c::embedding_of(embedding); });
}

imbrex_status imbrex_embedding_shards(const imbrex_embedding* embedding, const imbrex_table_shard** shards,
                                      uint64_t* count) noexcept {
  return guarded([&] {
    c::expect_given(shards, "shards");
    c::expect_given(count, "count");
    const std::vector<EmbeddingShard>& all = c::embedding_of(embedding).op->shards();
    *shards = reinterpret_cast<const imbrex_table_shard*>(all.data());
    *count = all.size();
  });
}

int32_t imbrex_embedding_operands(const imbrex_embedding* embedding, int32_t update) noexcept {
  return c::guarded_value(
      -1, [&] { return static_cast<int32_t>(c::operands_of(c::embedding_of(embedding), update).size()); });
}

imbrex_status imbrex_embedding_operand(const imbrex_embedding* embedding, int32_t update, int32_t index,
                                       imbrex_operand_info* info) noexcept {
  return guarded([&] {
    const c::EmbeddingObject& object = c::embedding_of(embedding);
    const auto& names = object.names[update != 0 ? 1 : 0];
    const auto at = static_cast<std::size_t>(c::kind_of(index, static_cast<int>(names.size()), "index"));
    const EmbeddingOperand& own = c::operands_of(object, update)[at];
    const View& view = own.view;
    const std::int64_t cols = view.dims == 2 ? view.extents[1] : 1;
    imbrex_operand_info told{.size = 0,
                             .name = names[at].c_str(),
                             .role = static_cast<imbrex_role>(own.role),
                             .layout = IMBREX_ROW_MAJOR,
                             .rows = view.extents[0],
                             .cols = cols,
                             .bytes = static_cast<std::uint64_t>(view.extents[0] * cols) * bytes_of(view.type),
                             .view = c::view_of(own.view)};
    told.view.data = nullptr;
    c::write_structure(info, told, c::first_info, "imbrex_operand_info");
  });
}

imbrex_status imbrex_embedding_run(imbrex_embedding* embedding, const imbrex_operand* operands, size_t count,
                                   void* stream) noexcept {
  return guarded([&] {
    c::EmbeddingObject& object = c::embedding_of(embedding);
    c::call_embedding(object, operands, count,
                      [&](const Operands& given) { object.op->run(given, static_cast<CudaStream>(stream)); });
  });
}

imbrex_status imbrex_embedding_update(imbrex_embedding* embedding, const imbrex_operand* operands, size_t count,
                                      float rate, void* stream) noexcept {
  return guarded([&] {
    c::EmbeddingObject& object = c::embedding_of(embedding);
    c::call_embedding(object, operands, count,
                      [&](const Operands& given) { object.op->update(given, rate, static_cast<CudaStream>(stream)); });
  });
}

imbrex_status imbrex_embedding_refuse(imbrex_embedding* embedding, const char* reason) noexcept {
  return guarded([&] {
    const Error error(ErrorCode::invalid_input, reason != nullptr ? reason : "reason is null");
    c::refuse(c::embedding_of(embedding), error);
    throw error;
  });
}

imbrex_status imbrex_embedding_report(imbrex_embedding* embedding, int64_t* ignored) noexcept {
  return guarded([&] {
    const EmbeddingReport report = c::embedding_of(embedding).op->report();
    if (ignored != nullptr) *ignored = report.ignored;
  });
}

imbrex_status imbrex_embedding_check(imbrex_embedding* embedding) noexcept {
  return guarded([&] { c::embedding_of(embedding).op->check(); });
}

imbrex_status imbrex_embedding_synchronize(imbrex_embedding* embedding, void* stream) noexcept {
  return guarded([&] { c::embedding_of(embedding).op->synchronize(static_cast<CudaStream>(stream)); });
}

imbrex_status imbrex_embedding_allocate_output(imbrex_embedding* embedding, void** memory) noexcept {
  if (memory != nullptr) *memory = nullptr;
  return guarded([&] {
    c::EmbeddingObject& object = c::embedding_of(embedding);
    c::expect_given(memory, "memory");
    std::shared_ptr<void> output = object.op->allocate_output();
    void* address = output.get();
    object.member.world().outputs.emplace(address, std::move(output));
    *memory = address;
  });
}

imbrex_device imbrex_embedding_device(const imbrex_embedding* embedding) noexcept {
  return c::guarded_value(-1, [&] { return c::number_of(c::embedding_of(embedding).op->device()); });
}

const char* imbrex_embedding_why_cpu(const imbrex_embedding* embedding) noexcept {
  return c::guarded_value("", [&] { return c::embedding_of(embedding).op->why_cpu().c_str(); });
}

imbrex_status imbrex_embedding_plan(imbrex_embedding* embedding, const char** json) noexcept {
  if (json != nullptr) *json = nullptr;
  return guarded([&] {
    c::EmbeddingObject& object = c::embedding_of(embedding);
    c::expect_given(json, "json");
    if (object.plan.empty()) object.plan = to_json(object.op->plan());
    *json = object.plan.c_str();
  });
}
