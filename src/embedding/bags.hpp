// Embedding tables and what is looked up in them, as plain data: nothing here owns memory, and all of it is copied
// bytewise, to other ranks and into kernels. Addresses are the host's or a GPU's, as the function says that takes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "imbrex/tables.hpp"

namespace imbrex::embedding {

constexpr std::int64_t size_of(TableRows type) { return type == TableRows::fp32 ? 4 : type == TableRows::int8 ? 1 : 2; }
constexpr std::int64_t size_of(IndexType type) { return type == IndexType::int32 ? 4 : 8; }

inline constexpr std::int32_t least_dim = 4, most_dim = 1024;  // multiples of 4
inline constexpr std::int64_t most_rows = 0x7fffffff;          // rows of a table, and indices of a call

/// A table, or some columns of one.
struct Table {
  void* rows;           ///< the first column of row 0; aligned to four elements
  std::int64_t count;   ///< rows, at most most_rows
  std::int64_t pitch;   ///< bytes from row to row: a multiple of four elements' bytes, and of 4
  std::int64_t scale;   ///< int8: bytes from `rows` to the scale of row 0, a multiple of 4; its bias follows
  std::int32_t dim;     ///< columns: from least_dim to most_dim, a multiple of 4
  std::int32_t column;  ///< of the output, where they begin: a multiple of 4
};

/// All tables of a call have rows of one type.
struct Tables {
  const Table* tables;
  std::int32_t count;
  TableRows type;
};

/// What is looked up, table-batched: bag (t, b) of table t and of row b of the batch holds the indices at positions
/// from offsets[t * batch + b] up to, not including, offsets[t * batch + b + 1].
struct Bags {
  const void* indices;   ///< [count]
  const void* offsets;   ///< [tables * batch + 1]
  const float* weights;  ///< [count], or null: every row counts once
  std::int64_t count;    ///< of indices, at most most_rows
  std::int64_t batch;
  IndexType type;  ///< of indices and offsets
  Pooling pooling;
};

/// Where sums go, or gradients come from. Rank d of `ranks` owns rows [d * batch / ranks, (d + 1) * batch / ranks) of
/// the batch; parts[d] is the first of them, [batch / ranks, pitch] in row-major order.
struct Output {
  void* const* parts;  ///< [ranks]; aligned to four elements
  std::int32_t ranks;  ///< divides the batch
  Type type;           ///< fp32, fp16 or bf16
  std::int64_t pitch;  ///< elements from row to row, a multiple of 4
};

/// Rows of the batch, and tables, that a call deals with.
struct Part {
  std::int64_t row_begin, row_end;
  std::int32_t table_begin, table_end;
};

constexpr Part whole(const Tables& tables, const Bags& bags) { return {0, bags.batch, 0, tables.count}; }

/// Throws Error(invalid_input) naming value and rule where shapes, alignments or types are not as stated above. Reads
/// no table, index or offset.
void check_shapes(const Tables& tables, const Bags& bags);
void check_shapes(const Tables& tables, const Output& output, std::int64_t batch);

/// Gives the number of indices that are no rows of their tables; throws as `misfits` says. All memory is the host's,
/// and all of it is looked at. Offsets must not decrease, begin at or behind 0 and end at or before `count`.
std::int64_t check_bags(const Tables& tables, const Bags& bags, Misfits misfits);

/// The messages, for code that found the fault elsewhere.
[[noreturn]] void refuse_index(std::int64_t table, std::int64_t bag, std::int64_t position, std::int64_t index,
                               std::int64_t rows);
[[noreturn]] void refuse_offset(std::int64_t table, std::int64_t bag, std::int64_t place, std::int64_t offset,
                                std::int64_t before, std::int64_t count);

/// An index or offset of host memory.
inline std::int64_t index_at(const void* values, IndexType type, std::int64_t place) {
  return type == IndexType::int32 ? static_cast<const std::int32_t*>(values)[place]
                                  : static_cast<const std::int64_t*>(values)[place];
}

}  // namespace imbrex::embedding
