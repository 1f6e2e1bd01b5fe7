// From the operands that a caller of an embedding names to tables and bags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "embedding/bags.hpp"
#include "embedding/update.hpp"
#include "execute/lines.hpp"
#include "imbrex/embedding.hpp"
#include "plan/bags.hpp"
#include "problem/embedding.hpp"

namespace imbrex::ops {

/// All ranks' shards: the shape's, or as place_tables deals them.
std::vector<EmbeddingShard> embedding_shards(const EmbeddingShape& shape, int ranks);

/// The problem of that shape; `shards` has all of them. Throws Error(invalid_input).
Problem embedding_problem(const EmbeddingShape& shape, const std::vector<EmbeddingShard>& shards, int ranks);

/// What a call works on: `given` points into it.
struct EmbeddingCall {
  std::vector<embedding::Table> tables;
  std::vector<float*> states;
  plan::RankBags given{};
  void* matrix = nullptr;  ///< "out", or "gradients"
};

/// What the calls of one kind may give.
class EmbeddingRules {
 public:
  /// Columns of the tables are those of a lookup's output, or in an update those of the rank's shards side by side.
  EmbeddingRules(const EmbeddingShape& shape, const Problem& problem, int rank, bool update);
  EmbeddingRules(const EmbeddingRules&) = delete;
  EmbeddingRules& operator=(const EmbeddingRules&) = delete;

  const std::vector<EmbeddingOperand>& infos() const { return infos_; }
  const EmbeddingOperand* find(std::string_view name) const;

  /// Throws Error(invalid_input) naming operand, value and rule if an operand is missing, unknown or given twice, null,
  /// or not as infos() has it, and if one that is written ("out"; of an update the tables and their states) has a byte
  /// in common with another. Reads none. Stays until the next call. `apart`: whether that is asked for, not so of
  /// tables whose memory is none.
  const EmbeddingCall& resolve(const Operands& operands, bool apart = true);

 private:
  std::size_t place_of(std::string_view name, std::size_t guess) const;
  void expect_fits(const EmbeddingOperand& info, const View& view) const;
  void expect_apart();
  void expect_tables_apart();
  void expect_apart(std::size_t output, std::size_t other) const;

  const EmbeddingShape shape_;
  const Problem problem_;
  bool update_;
  problem::OwnShards own_;
  std::vector<std::string> names_;
  std::vector<EmbeddingOperand> infos_;
  std::unordered_map<std::string_view, std::size_t> places_;  // among infos_, by name
  std::vector<View> found_;
  std::vector<execute::Lines> lines_;  // of those found
  // Tables and states that an update has found apart, and the order of their addresses; seldom others.
  std::vector<execute::Lines> apart_;
  std::vector<std::size_t> by_begin_;
  EmbeddingCall call_;
};

}  // namespace imbrex::ops
