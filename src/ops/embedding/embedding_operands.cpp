#include "ops/embedding/embedding_operands.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "embedding/placement.hpp"
#include "imbrex/integers.hpp"

namespace imbrex::ops {
namespace {

Type view_type(TableRows rows) {
  switch (rows) {
    case TableRows::fp32: return Type::fp32;
    case TableRows::fp16: return Type::fp16;
    case TableRows::bf16: return Type::bf16;
    case TableRows::int8: break;
  }
  return type_int8;
}

std::string text_of(const std::array<std::int64_t, View::most_dims>& values, int dims, const char* between) {
  if (dims == 0) return "no extents";
  return fmt::format("{}", fmt::join(values.begin(), values.begin() + dims, between));
}

bool aligned(const void* address, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(address) % bytes == 0; }

}  // namespace

std::vector<EmbeddingShard> embedding_shards(const EmbeddingShape& shape, int ranks) {
  if (!shape.shards.empty()) return shape.shards;
  return place_tables(shape.tables, {.ranks = ranks, .rows = shape.rows, .out = shape.out}).shards;
}

Problem embedding_problem(const EmbeddingShape& shape, const std::vector<EmbeddingShard>& shards, int ranks) {
  Problem problem{embedding_all_to_all, shape.batch, 0, 0, ranks, shape.out};
  problem.tables.rows = shape.rows;
  std::vector<std::int64_t> first{0};
  for (const EmbeddingTable& table : shape.tables) {
    embedding::validate(table, first.size() - 1);
    first.push_back(first.back() + table.dim);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto& [table, rank, begin, end] = shards[i];
    IMBREX_EXPECTS(table >= 0 && table < std::ssize(shape.tables), "shard {}: table {}; there are {}", i, table,
                   shape.tables.size());
    const EmbeddingTable& whole = shape.tables[static_cast<std::size_t>(table)];
    IMBREX_EXPECTS(begin >= 0 && begin < end && end <= whole.dim,
                   "shard {}: columns {} to {} of table {}, which has {}", i, begin, end, table, whole.dim);
    problem.tables.shards.push_back(
        {rank, whole.rows, end - begin, first[static_cast<std::size_t>(table)] + begin, whole.hotness});
  }
  validate(problem);
  IMBREX_EXPECTS(problem::width_of(problem.tables) == first.back(),
                 "shards have {} columns, and the tables {}: each column must be in one shard",
                 problem::width_of(problem.tables), first.back());
  return problem;
}

EmbeddingRules::EmbeddingRules(const EmbeddingShape& shape, const Problem& problem, int rank, bool update)
    : shape_(shape), problem_(problem), update_(update), own_(problem.tables, rank) {
  const bool states = update && shape.optimizer == Optimizer::row_wise_adagrad;
  const std::size_t count = own_.count();
  for (const char* prefix : {"rows", "states"})
    for (std::size_t i = 0; i < count; ++i) names_.push_back(fmt::format("{}{}", prefix, i));
  const auto add = [&](std::string_view name, OperandRole role, const View& view) {
    infos_.push_back({name, role, view});
  };
  void* const none = nullptr;
  const OperandRole changed = update ? OperandRole::output : OperandRole::input;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t columns = own_[i].dim + (shape.rows == TableRows::int8 ? 8 : 0);
    add(names_[i], changed, View::matrix(none, view_type(shape.rows), own_[i].rows, columns));
  }
  for (std::size_t i = 0; states && i < count; ++i)
    add(names_[count + i], changed, View::vector(none, Type::fp32, own_[i].rows));
  const Type numbers = shape.index_type == IndexType::int32 ? type_int32 : type_int64;
  if (count > 0) {
    add("indices", OperandRole::input, View::vector(none, numbers, 0));
    add("offsets", OperandRole::input, View::vector(none, numbers, static_cast<std::int64_t>(count) * problem.m + 1));
    if (shape.weighted) add("weights", OperandRole::input, View::vector(none, Type::fp32, 0));
  }
  add(update ? "gradients" : "out", update ? OperandRole::input : OperandRole::output,
      View::matrix(none, shape.out, problem.m / problem.ranks, problem::width_of(problem.tables)));
  for (std::size_t i = 0; i < infos_.size(); ++i) places_.emplace(infos_[i].name, i);
  found_.resize(infos_.size());
  lines_.resize(infos_.size());
  call_.tables.resize(count);
  if (states) call_.states.resize(count);
}

const EmbeddingOperand* EmbeddingRules::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &infos_[place->second];
}

std::size_t EmbeddingRules::place_of(std::string_view name, std::size_t guess) const {
  if (guess < infos_.size() && infos_[guess].name == name) return guess;
  if (const EmbeddingOperand* info = find(name)) return static_cast<std::size_t>(info - infos_.data());
  std::vector<std::string> names;
  for (const std::string_view prefix : {"rows", "states"})
    if (const std::size_t count = prefix == "rows" ? call_.tables.size() : call_.states.size(); count > 0)
      names.push_back(fmt::format("{}0 to {}{}", prefix, prefix, count - 1));
  for (std::size_t i = call_.tables.size() + call_.states.size(); i < infos_.size(); ++i)
    names.emplace_back(infos_[i].name);
  throw Error(ErrorCode::invalid_input,
              fmt::format("operand {}: this rank's {} has no operand of that name; its operands "
                          "are {}",
                          name, update_ ? "update" : "lookup", fmt::join(names, ", ")));
}

// Type, extents except those of the call, address; rows may be apart where they are tables'.
void EmbeddingRules::expect_fits(const EmbeddingOperand& info, const View& view) const {
  const View& wanted = info.view;
  IMBREX_EXPECTS(view.type == wanted.type, "operand {} is of type {}; it must be {}", info.name, name_of(view.type),
                 name_of(wanted.type));
  IMBREX_EXPECTS(view.dims == wanted.dims, "operand {} has {} extents; it must have {}", info.name, view.dims,
                 wanted.dims);
  const bool table = info.name.starts_with("rows"), matrix = wanted.dims == 2;
  for (std::size_t i = 0; i < static_cast<std::size_t>(wanted.dims); ++i) {
    const bool free = wanted.extents[i] == 0 || (i == 0 && (info.name == "offsets" || (matrix && !table)));
    IMBREX_EXPECTS(free ? view.extents[i] >= 0 : view.extents[i] == wanted.extents[i],
                   "operand {} is {}; it must be {}", info.name, text_of(view.extents, view.dims, " x "),
                   text_of(wanted.extents, wanted.dims, " x "));
  }
  const std::size_t last = static_cast<std::size_t>(wanted.dims) - 1;
  IMBREX_EXPECTS(view.extents[last] <= 1 || view.strides[last] == 1,
                 "operand {} has strides of {} elements; the last one must be 1", info.name,
                 text_of(view.strides, view.dims, ", "));
  if (matrix && view.extents[0] > 1)
    IMBREX_EXPECTS(table ? view.strides[0] >= view.extents[1] && view.strides[0] % 4 == 0 &&
                               view.strides[0] <= embedding::most_rows / 4
                         : view.strides[0] == view.extents[1],
                   "operand {}: its rows are {} elements apart; {} {}", info.name, view.strides[0],
                   table ? "they must be a multiple of 4 apart, at least" : "they must lie without gaps,",
                   view.extents[1]);
  const bool empty = view.extents[0] == 0;
  IMBREX_EXPECTS(view.data != nullptr || empty, "operand {}: its address is null", info.name);
  const std::size_t bytes = bytes_of(view.type) * (matrix ? 4 : 1);
  IMBREX_EXPECTS(aligned(view.data, bytes), "operand {} at {}: it must be aligned to {} bytes", info.name, view.data,
                 bytes);
}

void EmbeddingRules::expect_apart(std::size_t output, std::size_t other) const {
  IMBREX_EXPECTS(!touch(lines_[output], lines_[other]),
                 "operand {} at {} overlaps operand {} at {}: what is written must be apart from every other operand",
                 infos_[output].name, found_[output].data, infos_[other].name, found_[other].data);
}

// In the order of their addresses, each is held against those that begin before it ends.
void EmbeddingRules::expect_tables_apart() {
  const std::size_t count = call_.tables.size() + call_.states.size();
  if (std::equal(apart_.begin(), apart_.end(), lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(count)))
    return;
  by_begin_.resize(count);
  std::iota(by_begin_.begin(), by_begin_.end(), std::size_t{0});
  std::sort(by_begin_.begin(), by_begin_.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(lines_[a].begin, a) < std::pair(lines_[b].begin, b);
  });
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = i + 1; j < count && lines_[by_begin_[j]].begin < lines_[by_begin_[i]].end(); ++j)
      expect_apart(by_begin_[i], by_begin_[j]);
  apart_.assign(lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(count));
}

void EmbeddingRules::expect_apart() {
  for (std::size_t i = 0; i < found_.size(); ++i) {
    const View& view = found_[i];
    const auto size = static_cast<std::int64_t>(bytes_of(view.type));
    const bool matrix = view.dims == 2;
    const std::int64_t length = matrix ? view.extents[1] : view.extents[0], rows = matrix ? view.extents[0] : 1;
    lines_[i] = execute::Lines::of(rows, length * size, (rows > 1 ? view.strides[0] : length) * size);
    lines_[i].begin = reinterpret_cast<std::uintptr_t>(view.data);
  }
  const std::size_t written = call_.tables.size() + call_.states.size();
  if (!update_) {
    for (std::size_t i = 0; i + 1 < found_.size(); ++i) expect_apart(found_.size() - 1, i);
    return;
  }
  expect_tables_apart();
  for (std::size_t i = written; i < found_.size(); ++i)
    for (std::size_t table = 0; table < written; ++table) expect_apart(table, i);
}

const EmbeddingCall& EmbeddingRules::resolve(const Operands& operands, bool apart) {
  std::vector<bool> given(infos_.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::size_t place = place_of(operands[i].name, i);
    IMBREX_EXPECTS(!given[place], "operand {} is given twice", operands[i].name);
    given[place] = true;
    found_[place] = operands[i].view;
  }
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    IMBREX_EXPECTS(given[i], "operand {} is missing", infos_[i].name);
    expect_fits(infos_[i], found_[i]);
  }
  const std::size_t count = own_.count();
  const View& matrix = found_.back();
  const std::int64_t part = matrix.extents[0], most = problem_.m / problem_.ranks;
  IMBREX_EXPECTS(part >= 1 && part <= most, "operand {} has {} rows; this operator takes from 1 to {} a rank",
                 infos_.back().name, part, most);
  call_.matrix = matrix.data;
  for (std::size_t i = 0; i < count; ++i) {
    const View& view = found_[i];
    const auto bytes = static_cast<std::int64_t>(bytes_of(view.type)), dim = own_[i].dim;
    const std::int64_t stride = view.extents[0] > 1 ? view.strides[0] : view.extents[1];
    call_.tables[i] = {view.data,
                       own_[i].rows,
                       stride * bytes,
                       shape_.rows == TableRows::int8 ? dim : 0,
                       static_cast<std::int32_t>(dim),
                       base::narrow<std::int32_t>(update_ ? own_.cols_before(i) : own_[i].first_col, "columns")};
    if (!call_.states.empty()) call_.states[i] = static_cast<float*>(found_[count + i].data);
  }
  call_.given.tables = {call_.tables.data(), base::narrow<std::int32_t>(std::ssize(call_.tables), "shards"),
                        shape_.rows};
  call_.given.bags = {nullptr, nullptr, nullptr, 0, part * problem_.ranks, shape_.index_type, shape_.pooling};
  if (count == 0) return call_;
  const std::size_t next = count + call_.states.size();
  const View &indices = found_[next], &offsets = found_[next + 1];
  const std::int64_t ends = static_cast<std::int64_t>(count) * part * problem_.ranks + 1;
  IMBREX_EXPECTS(offsets.extents[0] == ends, "operand offsets has {} numbers; a batch of {} takes {}",
                 offsets.extents[0], part * problem_.ranks, ends);
  embedding::Bags& bags = call_.given.bags;
  bags.indices = indices.data, bags.offsets = offsets.data, bags.count = indices.extents[0];
  if (shape_.weighted) {
    const View& weights = found_[next + 2];
    IMBREX_EXPECTS(weights.extents[0] == bags.count, "operand weights has {} numbers; there are {} indices",
                   weights.extents[0], bags.count);
    // Without indices they are not read.
    bags.weights = bags.count > 0 ? static_cast<const float*>(weights.data) : nullptr;
  }
  embedding::check_shapes(call_.given.tables, bags);
  if (apart) expect_apart();  // of extents that count
  return call_;
}

}  // namespace imbrex::ops
