// Random lookups dealt out to ranks, as operators of embeddings take them.
#pragma once

#include <cstddef>
#include <functional>
#include <random>
#include <vector>

#include "embedding/random_bags.hpp"
#include "embedding/update.hpp"
#include "imbrex/embedding.hpp"
#include "imbrex/world.hpp"

namespace imbrex::test {

/// What one rank holds, in memory of the host.
struct RankBags {
  std::vector<embedding::Table> table;  // columns are the output's
  std::vector<std::vector<std::byte>> rows;
  std::vector<std::vector<float>> states;
  std::vector<std::byte> indices, offsets;
  std::vector<float> weights;
  embedding::Bags bags{};

  embedding::Tables tables(TableRows type) const {
    return {table.data(), static_cast<std::int32_t>(table.size()), type};
  }
};

struct Sharded {
  RandomBags whole;  // whose tables lie side by side in the output
  EmbeddingShape shape;
  std::vector<RankBags> ranks;

  std::int64_t width() const { return whole.pitch; }
  std::size_t part_bytes() const { return whole.part.front().size(); }

  /// A call of `rank`; `matrix` is "out" or "gradients". Addresses are the host's; with `moved`, those that it gives
  /// for them.
  std::vector<Operand> operands(const EmbeddingAllToAll& op, int rank, void* matrix, bool update,
                                const std::function<void*(const void*)>& moved = {}) const;
};

/// Tables are cut by columns and dealt to the ranks; `everywhere`: each rank has some.
Sharded deal(std::mt19937_64& random, RandomBags whole, bool everywhere);

/// Every rank's result, which `body` leaves at its place; the ranks are threads of one world, and all have ended well.
std::vector<std::vector<std::byte>> results_of(const Sharded& c, const WorldOptions& options,
                                               const std::function<void(World&, std::vector<std::byte>&)>& body);

}  // namespace imbrex::test
