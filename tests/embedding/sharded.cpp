#include "embedding/sharded.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace imbrex::test {
namespace {

using namespace embedding;

void side_by_side(RandomBags& c) {
  std::int32_t column = 0;
  for (Table& table : c.table) table.column = std::exchange(column, column + table.dim);
  c.pitch = column;
  for (auto& part : c.part) part.resize(static_cast<std::size_t>(c.bags.batch / c.ranks * c.pitch) * size_of(c.out));
  for (std::size_t d = 0; d < c.part.size(); ++d) c.parts[d] = c.part[d].data();
  c.clear_output();
}

void add_shard(std::mt19937_64& random, const RandomBags& c, const EmbeddingShard& s, RankBags& rank) {
  const auto t = static_cast<std::size_t>(s.table);
  const Table& from = c.table[t];
  const std::int64_t element = embedding::size_of(c.type), quantized = c.type == TableRows::int8 ? 8 : 0;
  Table to{};
  to.count = from.count;
  to.dim = s.end - s.begin;
  to.column = from.column + s.begin;
  to.scale = quantized > 0 ? to.dim : 0;
  to.pitch = (to.dim + quantized + 4 * between(random, 0, 2)) * element;
  std::vector<std::byte>& rows = rank.rows.emplace_back(static_cast<std::size_t>(to.pitch * to.count));
  for (std::int64_t r = 0; r < to.count; ++r) {
    const std::byte* row = static_cast<const std::byte*>(from.rows) + r * from.pitch;
    std::byte* at = rows.data() + r * to.pitch;
    std::memcpy(at, row + s.begin * element, static_cast<std::size_t>(to.dim * element));
    if (quantized > 0) std::memcpy(at + to.scale, row + from.scale, 8);
  }
  to.rows = rows.data();
  rank.table.push_back(to);
  for (auto& state : {&rank.states.emplace_back(static_cast<std::size_t>(to.count))})
    for (float& value : *state) value = static_cast<float>(random() % 4) / 8;

  const std::int64_t number = embedding::size_of(c.bags.type), batch = c.bags.batch;
  const auto place = static_cast<std::int64_t>(t) * batch;
  const std::int64_t begin = index_at(c.bags.offsets, c.bags.type, place),
                     end = index_at(c.bags.offsets, c.bags.type, place + batch);
  const std::int64_t before = rank.bags.count, last = (std::ssize(rank.table) - 1) * batch;
  rank.offsets.resize(static_cast<std::size_t>((last + batch + 1) * number));
  for (std::int64_t b = 0; b <= batch; ++b)
    put_number(rank.offsets, c.bags.type, last + b, before + index_at(c.bags.offsets, c.bags.type, place + b) - begin);
  const auto* indices = static_cast<const std::byte*>(c.bags.indices);
  rank.indices.insert(rank.indices.end(), indices + begin * number, indices + end * number);
  if (c.bags.weights != nullptr) rank.weights.insert(rank.weights.end(), c.bags.weights + begin, c.bags.weights + end);
  rank.bags.count += end - begin;
}

}  // namespace

Sharded deal(std::mt19937_64& random, RandomBags whole, bool everywhere) {
  Sharded made;
  made.whole = std::move(whole);
  RandomBags& c = made.whole;
  side_by_side(c);
  EmbeddingShape& shape = made.shape;
  shape.rows = c.type, shape.batch = c.bags.batch, shape.pooling = c.bags.pooling;
  shape.index_type = c.bags.type, shape.weighted = c.bags.weights != nullptr, shape.out = c.out;
  for (std::size_t t = 0; t < c.table.size(); ++t) {
    const Table& table = c.table[t];
    shape.tables.push_back({table.count, table.dim, 1 + static_cast<double>(t)});
    for (std::int32_t begin = 0; begin < table.dim;) {
      const std::int64_t left = (table.dim - begin) / 4, most = everywhere ? std::max<std::int64_t>(1, left / 3) : left;
      const auto end =
          static_cast<std::int32_t>(begin + 4 * (between(random, 0, 2) == 0 ? between(random, 1, most) : most));
      shape.shards.push_back(
          {static_cast<std::int32_t>(t), static_cast<std::int32_t>(between(random, 0, c.ranks - 1)), begin, end});
      begin = end;
    }
  }
  std::shuffle(shape.shards.begin(), shape.shards.end(), random);
  for (std::size_t i = 0; everywhere && i < shape.shards.size(); ++i)
    shape.shards[i].rank = static_cast<std::int32_t>(i % static_cast<std::size_t>(c.ranks));
  made.ranks.resize(static_cast<std::size_t>(c.ranks));
  for (RankBags& rank : made.ranks)
    rank.bags = {nullptr, nullptr, nullptr, 0, c.bags.batch, c.bags.type, c.bags.pooling};
  for (const EmbeddingShard& s : shape.shards) add_shard(random, c, s, made.ranks[static_cast<std::size_t>(s.rank)]);
  for (RankBags& rank : made.ranks) {
    rank.bags.indices = rank.indices.data(), rank.bags.offsets = rank.offsets.data();
    if (shape.weighted) rank.bags.weights = rank.weights.data();
  }
  return made;
}

std::vector<Operand> Sharded::operands(const EmbeddingAllToAll& op, int rank, void* matrix, bool update,
                                       const std::function<void*(const void*)>& moved) const {
  const RankBags& own = ranks[static_cast<std::size_t>(rank)];
  const auto at = [&](const void* p) { return moved && p != matrix ? moved(p) : const_cast<void*>(p); };
  std::vector<Operand> list;
  for (std::size_t i = 0; i < own.table.size(); ++i) {
    list.push_back(op.operand(fmt::format("rows{}", i), at(own.rows[i].data())));
    list.back().view.strides[0] = own.table[i].pitch / embedding::size_of(shape.rows);
  }
  if (update && shape.optimizer == Optimizer::row_wise_adagrad)
    for (std::size_t i = 0; i < own.table.size(); ++i)
      list.push_back(op.operand(fmt::format("states{}", i), at(own.states[i].data())));
  if (!own.table.empty()) {
    list.push_back(op.operand("indices", at(own.indices.data()), own.bags.count));
    list.push_back(op.operand("offsets", at(own.offsets.data())));
    if (shape.weighted) list.push_back(op.operand("weights", at(own.weights.data()), own.bags.count));
  }
  list.push_back(op.operand(update ? "gradients" : "out", matrix));
  return list;
}

std::vector<std::vector<std::byte>> results_of(const Sharded& c, const WorldOptions& options,
                                               const std::function<void(World&, std::vector<std::byte>&)>& body) {
  std::vector<std::vector<std::byte>> results(c.ranks.size(), std::vector<std::byte>(c.part_bytes(), std::byte{0x5a}));
  EXPECT_EQ(run_threads(c.whole.ranks, options,
                        [&](World& world) {
                          body(world, results[static_cast<std::size_t>(world.rank())]);
                          return 0;
                        }),
            0);
  return results;
}

}  // namespace imbrex::test
