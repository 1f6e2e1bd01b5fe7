#include "embedding/bags.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace imbrex::embedding {
namespace {

bool aligned(const void* address, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace

void check_shapes(const Tables& tables, const Bags& bags) {
  IMBREX_EXPECTS(tables.count >= 1, "{} tables: there must be one at least", tables.count);
  const std::int64_t four = 4 * size_of(tables.type);
  for (std::int32_t t = 0; t < tables.count; ++t) {
    const Table& table = tables.tables[t];
    IMBREX_EXPECTS(table.dim >= least_dim && table.dim <= most_dim && table.dim % 4 == 0,
                   "table {}: dim = {}: it must be a multiple of 4 from {} to {}", t, table.dim, least_dim, most_dim);
    IMBREX_EXPECTS(table.count >= 0 && table.count <= most_rows, "table {}: {} rows: from 0 to {}", t, table.count,
                   most_rows);
    const bool quantized = tables.type == TableRows::int8;
    const std::int64_t used = quantized ? table.scale + 8 : table.dim * size_of(tables.type);
    IMBREX_EXPECTS(table.pitch >= used && table.pitch % four == 0 && table.pitch <= 0x7fffffff,
                   "table {}: rows {} bytes apart: a multiple of {} from {} on", t, table.pitch, four, used);
    IMBREX_EXPECTS(!quantized || (table.scale >= table.dim && table.scale % 4 == 0),
                   "table {}: the scale {} bytes after its row's first column: a multiple of 4 from {} on", t,
                   table.scale, table.dim);
    IMBREX_EXPECTS(table.column >= 0 && table.column % 4 == 0, "table {}: column = {}: it must be a multiple of 4", t,
                   table.column);
    IMBREX_EXPECTS(table.count == 0 || (table.rows != nullptr && aligned(table.rows, four)),
                   "table {}: its address must be aligned to {} bytes", t, four);
  }
  IMBREX_EXPECTS(bags.batch >= 1 && bags.batch <= most_rows / tables.count, "batch = {}: with {} tables from 1 to {}",
                 bags.batch, tables.count, most_rows / tables.count);
  IMBREX_EXPECTS(bags.count >= 0 && bags.count <= most_rows, "{} indices: from 0 to {}", bags.count, most_rows);
  IMBREX_EXPECTS(bags.offsets != nullptr && (bags.count == 0 || bags.indices != nullptr),
                 "offsets and indices must have an address");
  IMBREX_EXPECTS(aligned(bags.offsets, size_of(bags.type)) && aligned(bags.indices, size_of(bags.type)) &&
                     aligned(bags.weights, sizeof(float)),
                 "indices, offsets and weights must be aligned to their elements");
}

void check_shapes(const Tables& tables, const Output& output, std::int64_t batch) {
  IMBREX_EXPECTS(output.ranks >= 1 && batch % output.ranks == 0, "ranks = {}: they must divide the batch of {}",
                 output.ranks, batch);
  IMBREX_EXPECTS(output.type != Type::e4m3, "output of e4m3: it must be fp32, fp16 or bf16");
  std::int64_t columns = 0;
  for (std::int32_t t = 0; t < tables.count; ++t)
    columns = std::max<std::int64_t>(columns, tables.tables[t].column + tables.tables[t].dim);
  IMBREX_EXPECTS(output.pitch >= columns && output.pitch % 4 == 0,
                 "output: {} elements from row to row: a multiple of 4 from {} on", output.pitch, columns);
  const auto four = static_cast<std::int64_t>(4 * size_of(output.type));
  for (std::int32_t d = 0; d < output.ranks; ++d)
    IMBREX_EXPECTS(output.parts[d] != nullptr && aligned(output.parts[d], four),
                   "output: the address of rank {}'s part must be aligned to {} bytes", d, four);
}

void refuse_index(std::int64_t table, std::int64_t bag, std::int64_t position, std::int64_t index, std::int64_t rows) {
  throw Error(ErrorCode::invalid_input,
              fmt::format("table {}, bag {}, position {}: index {}: the table has rows from 0 to {}", table, bag,
                          position, index, rows - 1));
}

void refuse_offset(std::int64_t table, std::int64_t bag, std::int64_t place, std::int64_t offset, std::int64_t before,
                   std::int64_t count) {
  throw Error(ErrorCode::invalid_input,
              fmt::format("table {}, bag {}, place {} of the offsets: {}: it must be from {} to {}, as offsets do not "
                          "decrease and there are {} indices",
                          table, bag, place, offset, before, count, count));
}

std::int64_t check_bags(const Tables& tables, const Bags& bags, Misfits misfits) {
  const std::int64_t all = tables.count * bags.batch;
  std::int64_t before = 0;
  for (std::int64_t i = 0; i <= all; ++i) {
    const std::int64_t offset = index_at(bags.offsets, bags.type, i), bag = std::min(i, all - 1);
    if (offset < before || offset > bags.count)
      refuse_offset(bag / bags.batch, bag % bags.batch, i, offset, before, bags.count);
    before = offset;
  }
  std::int64_t ignored = 0;
  for (std::int64_t bag = 0; bag < all; ++bag) {
    const std::int64_t rows = tables.tables[bag / bags.batch].count;
    const std::int64_t end = index_at(bags.offsets, bags.type, bag + 1);
    for (std::int64_t k = index_at(bags.offsets, bags.type, bag); k < end; ++k) {
      const std::int64_t index = index_at(bags.indices, bags.type, k);
      if (index >= 0 && index < rows) continue;
      if (misfits == Misfits::refused) refuse_index(bag / bags.batch, bag % bags.batch, k, index, rows);
      ++ignored;
    }
  }
  return ignored;
}

}  // namespace imbrex::embedding
