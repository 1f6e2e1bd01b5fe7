#include "program/embedding/bag_files.hpp"

#include <fmt/format.h>

#include "base/check.hpp"

namespace imbrex::program {
namespace {

void expect_vector(const NpyFile& file, std::int64_t count, const char* of) {
  IMBREX_EXPECTS(file.header().dimensions == 1 && file.header().cols == count,
                 "{}: the shape is {}; it must be one dimension of {}, {}", file.path(),
                 file.header().dimensions == 1 ? fmt::format("{}", file.header().cols)
                                               : fmt::format("{} x {}", file.header().rows, file.header().cols),
                 count, of);
}

void expect_elements(const NpyFile& file) {
  IMBREX_EXPECTS(file.header().type != Type::e4m3, "{}: descr is '|u1'; it must be '<f4' (float32) or '<f2' (float16)",
                 file.path());
}

}  // namespace

BagFiles::BagFiles(const BagPaths& paths, const EmbeddingShape& shape) : batch_(shape.batch) {
  if (!paths.indices.empty()) read_bags(paths, shape);
  if (paths.rows.empty()) return;
  IMBREX_EXPECTS(shape.rows != TableRows::int8, "rows from {}0.npy are no codes; tables of rows int8 come from a seed",
                 paths.rows);
  for (std::size_t t = 0; t < shape.tables.size(); ++t) {
    const EmbeddingTable& table = shape.tables[t];
    const NpyFile& file = *tables_.emplace_back(std::make_unique<NpyFile>(fmt::format("{}{}.npy", paths.rows, t)));
    expect_elements(file);
    IMBREX_EXPECTS(file.header().dimensions == 2 && file.header().rows == table.rows && file.header().cols == table.dim,
                   "{}: the shape is {} x {}; table {} has {} x {}", file.path(), file.header().rows,
                   file.header().cols, t, table.rows, table.dim);
  }
}

void BagFiles::read_bags(const BagPaths& paths, const EmbeddingShape& shape) {
  const NpyFile indices(paths.indices, NpyValues::integers), offsets(paths.offsets, NpyValues::integers);
  const std::int64_t bags = std::ssize(shape.tables) * batch_, count = indices.header().cols;
  expect_vector(indices, count, "the bags one after the other");
  expect_vector(offsets, bags + 1, "tables x batch + 1");
  indices_.resize(static_cast<std::size_t>(count));
  indices.read(0, indices_);
  offsets_.resize(static_cast<std::size_t>(bags + 1));
  offsets.read(0, offsets_);
  IMBREX_EXPECTS(offsets_.front() == 0, "{}: the first offset is {}; it must be 0", paths.offsets, offsets_.front());
  for (std::size_t i = 1; i < offsets_.size(); ++i)
    IMBREX_EXPECTS(offsets_[i] >= offsets_[i - 1], "{}: offset {} is {}, less than {} before it", paths.offsets, i,
                   offsets_[i], offsets_[i - 1]);
  IMBREX_EXPECTS(offsets_.back() == count, "{}: the last offset is {}; it must be {}, the number of indices in {}",
                 paths.offsets, offsets_.back(), count, paths.indices);
  for (std::int32_t t = 0; t < std::ssize(shape.tables); ++t) {
    const std::int64_t rows = shape.tables[static_cast<std::size_t>(t)].rows;
    for (std::int64_t i = first_of(t, 0); i < first_of(t, batch_); ++i) {
      const std::int64_t index = indices_[static_cast<std::size_t>(i)];
      IMBREX_EXPECTS(index >= 0 && index < rows, "{}: index {} is {}; table {} has rows 0 to {}", paths.indices, i,
                     index, t, rows - 1);
    }
  }
  if (paths.weights.empty()) return;
  const NpyFile weights(paths.weights);
  expect_elements(weights);
  expect_vector(weights, count, "one for each index");
  weights_.resize(static_cast<std::size_t>(count));
  weights.read(0, 0, 1, count, weights_);
}

std::int64_t BagFiles::first_of(std::int32_t table, std::int64_t row) const {
  return offsets_[static_cast<std::size_t>(table * batch_ + row)];
}

std::span<const std::int64_t> BagFiles::bag(std::int32_t table, std::int64_t row) const {
  const std::int64_t first = first_of(table, row);
  return std::span(indices_).subspan(static_cast<std::size_t>(first),
                                     static_cast<std::size_t>(first_of(table, row + 1) - first));
}

float BagFiles::weight(std::int32_t table, std::int64_t row, std::int64_t place) const {
  return weights_[static_cast<std::size_t>(first_of(table, row) + place)];
}

void BagFiles::read_row(std::int32_t table, std::int64_t row, std::int32_t begin, std::int32_t end, float* to) const {
  const auto columns = static_cast<std::size_t>(end - begin);
  tables_[static_cast<std::size_t>(table)]->read(row, begin, 1, end - begin, std::span(to, columns));
}

}  // namespace imbrex::program
