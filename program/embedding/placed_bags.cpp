#include "program/embedding/placed_bags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace imbrex::program {
namespace {

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(float)};
}

// Never empty.
std::unique_ptr<DeviceTensor> placed(Device device, std::vector<std::byte> bytes) {
  bytes.resize(std::max<std::size_t>(bytes.size(), 16));
  return std::make_unique<DeviceTensor>(device, std::move(bytes));
}

}  // namespace

PlacedBags::PlacedBags(Device device, const SeededBags& seeded, const EmbeddingShape& shape,
                       const std::vector<EmbeddingShard>& shards, int rank)
    : own_(rank_tables(seeded, shape, shards, rank)), weighted_(shape.weighted) {
  for (const auto& rows : own_.rows) rows_.push_back(placed(device, rows));
  for (const auto& states : own_.states) states_.push_back(placed(device, bytes_of(states)));
  indices_ = placed(device, own_.indices), offsets_ = placed(device, own_.offsets);
  weights_ = placed(device, bytes_of(own_.weights));
}

std::vector<Operand> PlacedBags::operands(const EmbeddingAllToAll& op, bool update, void* matrix) {
  std::vector<Operand> list;
  for (std::size_t i = 0; i < rows_.size(); ++i) list.push_back(op.operand(fmt::format("rows{}", i), rows_[i]->get()));
  for (std::size_t i = 0; update && i < states_.size(); ++i)
    list.push_back(op.operand(fmt::format("states{}", i), states_[i]->get()));
  if (!rows_.empty()) {
    list.push_back(op.operand("indices", indices_->get(), own_.bags.count));
    list.push_back(op.operand("offsets", offsets_->get()));
    if (weighted_) list.push_back(op.operand("weights", weights_->get(), own_.bags.count));
  }
  list.push_back(op.operand(update ? "gradients" : "out", matrix));
  return list;
}

}  // namespace imbrex::program
