#include "execute/cpu/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/blas.hpp"
#include "base/ceil_div.hpp"
#include "base/convert.hpp"
#include "base/narrow.hpp"

namespace imbrex::execute {
namespace {

// Values for which one bound is kept: the smallest group of a codec.
constexpr std::int64_t bound_unit = 32;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// The BLAS counts in 32 bits.
int blas(const char* what, std::int64_t count) { return base::narrow<int>(count, what); }

// The whole region as floats, packed into `scratch`, unless it is fp32 and can be used where it lies.
struct Matrix {
  const float* data;
  std::int64_t leading;
  bool by_columns = false;
};

Matrix as_float(const RankMemory& memory, const Region& r, std::vector<float>& scratch) {
  const Type type = memory.type(r);
  const std::byte* first = memory.at(r);
  const std::size_t pitch = memory.pitch(r);
  const bool by_columns = memory.by_columns(r);
  if (type == Type::fp32)
    return {reinterpret_cast<const float*>(first), static_cast<std::int64_t>(pitch / sizeof(float)), by_columns};
  const std::int64_t lines = by_columns ? r.cols : r.rows, length = by_columns ? r.rows : r.cols;
  scratch.resize(size(r.rows * r.cols));
  for (std::int64_t i = 0; i < lines; ++i)
    base::to_float(type, first + size(i) * pitch, scratch.data() + i * length, length);
  return {scratch.data(), length, by_columns};
}

}  // namespace

void Kernels::multiply(const Tile& tile, std::int64_t k_begin, std::int64_t k_end, Product& product) {
  Region a = tile.a, b = tile.b;
  a.col += k_begin;
  b.row += k_begin;
  a.cols = b.rows = k_end - k_begin;
  const Matrix x = as_float(memory_, a, a_), y = as_float(memory_, b, b_);
  product.resize(size(a.rows * b.cols));
  const int rows = blas("rows of a tile", a.rows), cols = blas("columns of a tile", b.cols),
            depth = blas("depth of a tile", a.cols), x_pitch = blas("pitch of A", x.leading),
            y_pitch = blas("pitch of B", y.leading);
  base::multiply({rows, cols, depth, x.data, x_pitch, y.data, y_pitch, y.by_columns, k_begin == 0 ? 0.0f : 1.0f,
                  product.data(), cols});
}

void Kernels::scale(const Tile& tile, Product& product) const {
  const bool one = memory_.scales() == Scales::tensor;
  const auto* of_rows = reinterpret_cast<const float*>(memory_.at(tile.a_scale));
  const float* of_cols = memory_.b_scale(tile.b.col);
  const std::int64_t cols = tile.b.cols;
  for (std::int64_t i = 0; i < tile.a.rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      float& value = product[size(i * cols + j)];
      value = value * of_rows[one ? 0 : i] * of_cols[one ? 0 : j];
    }
}

void Kernels::finish(const Tile& tile, Product& product) {
  const std::int64_t rows = tile.a.rows, cols = tile.b.cols;
  if (memory_.scales() != Scales::none) scale(tile, product);
  const float* result = product.data();
  if (!tile.adds.empty()) {
    total_.assign(size(rows * cols), 0.0f);
    row_.resize(size(cols));
    const auto add = [&](const float* term) {
      for (std::int64_t i = 0; i < rows * cols; ++i) total_[size(i)] += term[i];
    };
    for (std::size_t s = 0; s <= tile.adds.size(); ++s) {
      if (std::cmp_equal(s, tile.own)) add(product.data());
      if (s == tile.adds.size()) break;
      const Region& slot = tile.adds[s];
      const std::size_t pitch = memory_.fragment(slot) ? size(cols) * size_of(memory_.type(slot)) : memory_.pitch(slot);
      const std::byte* first = memory_.at(slot);
      for (std::int64_t i = 0; i < rows; ++i) {
        base::to_float(memory_.type(slot), first + size(i) * pitch, row_.data(), cols);
        for (std::int64_t j = 0; j < cols; ++j) total_[size(i * cols + j)] += row_[size(j)];
      }
    }
    result = total_.data();
  }
  for (const Store& store : tile.stores) {
    const Region& to = store.to;
    std::byte* first = memory_.at(to);
    if (memory_.fragment(to)) {
      base::from_float(memory_.type(to), result, first, rows * cols);
      continue;
    }
    for (std::int64_t i = 0; i < to.rows; ++i)
      base::from_float(memory_.type(to), result + (store.row + i) * cols + store.col,
                       first + size(i) * memory_.pitch(to), to.cols);
  }
}

void Kernels::copy(const Region& from, const Region& to) const {
  const std::byte* source = memory_.at(from);
  std::byte* destination = memory_.at(to);
  const std::size_t bytes = size(from.cols) * size_of(memory_.type(from));
  for (std::int64_t i = 0; i < from.rows; ++i)
    std::memcpy(destination + size(i) * memory_.pitch(to), source + size(i) * memory_.pitch(from), bytes);
}

void Kernels::transfer(const Transfer& transfer) const {
  if (!transfer.from.empty()) copy(transfer.from, transfer.to);
}

void Kernels::sum(const std::vector<Region>& from, const std::vector<Region>& to) {
  const std::int64_t rows = to.front().rows, cols = from.front().cols;
  total_.resize(size(cols));
  row_.resize(size(cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::size_t s = 0; s < from.size(); ++s) {
      base::to_float(memory_.type(from[s]), memory_.at(from[s]) + size(i) * memory_.pitch(from[s]),
                     s == 0 ? total_.data() : row_.data(), cols);
      if (s > 0)
        for (std::int64_t j = 0; j < cols; ++j) total_[size(j)] += row_[size(j)];
    }
    for (const Region& r : to)
      base::from_float(memory_.type(r), total_.data(), memory_.at(r) + size(i) * memory_.pitch(r), cols);
  }
}

void Kernels::reduce(const Reduction& reduction) { sum(reduction.from, reduction.to); }

void Kernels::block(const plan::BlockPlace& place, Product& result) const {
  struct Memory final : plan::WorkMemory {
    explicit Memory(const RankMemory& own) : memory(own) {}
    const std::byte* at(const Region& region) const override { return memory.at(region); }
    std::int64_t pitch(const Region& region) const override { return static_cast<std::int64_t>(memory.pitch(region)); }
    const void* given() const override { return memory.given(); }
    const RankMemory& memory;
  } const memory(memory_);
  const plan::WorkDescriptor& kind = plan::descriptor_of(place.block.kind);
  const Extent extent = kind.extent(place);
  result.resize(size(extent.rows * extent.cols));
  const plan::BlockRows rows = kind.run(place, memory, result.data());
  for (const Store& store : place.block.stores) {
    const Region& to = store.to;
    for (std::int64_t i = std::max<std::int64_t>(0, rows.begin - store.row);
         i < std::min(to.rows, rows.end - store.row); ++i)
      base::from_float(memory_.type(to), result.data() + (store.row + i) * extent.cols + store.col,
                       memory_.at(to) + size(i) * memory_.pitch(to), to.cols);
  }
}

// Every rank codes what its peers would send it: the bits are those of codes that travel. An element's group is its
// place in the whole region by the group's size, so regions are taken in stretches of whole groups. All ranks have
// an all-reduce's sums, and the first one tells of them.
void Kernels::sum_codes(const std::vector<Region>& from, const Collective& own, bool first) {
  constexpr std::int64_t stretch = 32768;  // of 128 and its divisors, the groups' sizes
  const Region& to = own.to;
  const Type type = memory_.type(to);
  const bool spreads = own.kind == CollectiveKind::all_reduce;
  const collectives::Wire parts(type, own.codec->reduce_scatter, false),
      sums(type, spreads ? std::optional(own.codec->all_gather) : std::nullopt, false);
  const std::int64_t count = to.rows * to.cols;
  // Collectives' regions are whole rows, one after another.
  for (std::int64_t begin = 0; begin < count; begin += stretch) {
    const std::int64_t n = std::min(stretch, count - begin);
    total_.assign(size(n), 0.0f);
    row_.resize(size(n));
    codes_.resize(std::max(parts.bytes(n), sums.bytes(n)));
    bounds_.assign(size(base::ceil_div(n, bound_unit)), {});
    for (std::size_t s = 0; s < from.size(); ++s) {
      base::to_float(type, memory_.at(from[s]) + size(begin) * size_of(type), row_.data(), n);
      parts.encode(row_.data(), n, {}, codes_.data());
      parts.decode(codes_.data(), n, s == 0 ? total_.data() : row_.data(), records_);
      if (s > 0)
        for (std::int64_t i = 0; i < n; ++i) total_[size(i)] += row_[size(i)];
      for (std::size_t unit = 0; unit < bounds_.size(); ++unit) {
        const codec::GroupRecord& record = records_[unit * bound_unit / size(parts.group())];
        bounds_[unit].errors += record.error;
        codec::add_exact_part(bounds_[unit], record.magnitude);
      }
    }
    quantized_.groups += parts.groups(n) * (spreads ? 1 : std::ssize(from));
    if (spreads && first) quantized_.groups += sums.groups(n);
    // Exact sums are rounded to the type below, which the bound counts.
    if (spreads) sums.encode(total_.data(), n, {}, codes_.data());
    if (spreads) sums.decode(codes_.data(), n, total_.data(), records_);
    note_codes(n, base::narrow<int>(std::ssize(from), "ranks"), type, sums, !spreads || first);
    base::from_float(type, total_.data(), memory_.at(to) + size(begin) * size_of(type), n);
  }
}

// total_ came as records_ say where the sums were sent as codes.
void Kernels::note_codes(std::int64_t count, int ranks, Type type, const collectives::Wire& sums, bool counts) {
  const codec::Range range = codec::range_of(type);
  for (std::size_t unit = 0; unit < bounds_.size(); ++unit) {
    codec::GroupRecord record{0, 0, true};
    if (sums.codes()) record = records_[unit * bound_unit / size(sums.group())];
    const std::int64_t end = std::min(count, static_cast<std::int64_t>(unit + 1) * bound_unit);
    for (std::int64_t i = static_cast<std::int64_t>(unit) * bound_unit; i < end; ++i) {
      const float magnitude = std::fabs(total_[size(i)]);
      if (magnitude < range.overflow)
        record.magnitude = std::max(record.magnitude, magnitude);
      else if (counts)
        ++quantized_.non_finite;
    }
    const float error = codec::raised(codec::sum_error(bounds_[unit], ranks) + record.error +
                                      codec::rounding_error(type, record.magnitude));
    quantized_.largest_error = std::max(quantized_.largest_error, error);
  }
}

void Kernels::collective(const Collective& own, const std::vector<const Collective*>& parts) {
  if (own.kind == CollectiveKind::send_receive) {
    const auto source = std::find_if(parts.begin(), parts.end(),
                                     [&](const Collective* part) { return part->from.rank == own.receive_from; });
    return copy((*source)->from, own.to);
  }
  const std::int64_t ranks = std::ssize(parts), place = std::find(parts.begin(), parts.end(), &own) - parts.begin();
  const bool split = own.kind == CollectiveKind::reduce_scatter || own.kind == CollectiveKind::all_to_all;
  std::vector<Region> sources;
  for (const Collective* part : parts) {
    Region from = part->from;
    if (split) {
      from.rows /= ranks;
      from.row += place * from.rows;
    }
    sources.push_back(from);
  }
  if (own.codec) return sum_codes(sources, own, place == 0);
  if (own.kind == CollectiveKind::reduce_scatter || own.kind == CollectiveKind::all_reduce)
    return sum(sources, {own.to});
  for (std::int64_t s = 0; s < ranks; ++s) {
    Region to = own.to;
    to.rows /= ranks;
    to.row += s * to.rows;
    copy(sources[size(s)], to);
  }
}

}  // namespace imbrex::execute
