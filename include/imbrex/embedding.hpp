// Embedding tables over several ranks: each looks the global batch's bags up in its own tables, and gets its part of
// the batch for all of them; gradients of that go back to the tables.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/operands.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/options.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/tables.hpp"
#include "imbrex/world.hpp"

namespace imbrex {

/// The same on every rank.
struct EmbeddingShape {
  std::vector<EmbeddingTable> tables{};  ///< in the order of their columns in the output
  /// Which rank holds which columns: those of each table, each once, in any order. Empty: as place_tables deals them.
  std::vector<EmbeddingShard> shards{};
  TableRows rows = TableRows::fp32;  ///< of all tables
  std::int64_t batch = 0;            ///< rows of the largest global batch; the ranks divide it
  Pooling pooling = Pooling::sum;
  IndexType index_type = IndexType::int64;  ///< of indices and offsets
  bool weighted = false;                    ///< each index has a weight
  Type out = Type::fp32;                    ///< fp32, fp16 or bf16
  Misfits misfits = Misfits::refused;
  std::optional<Optimizer> optimizer{};  ///< set: the tables, not those of int8, may be updated
  float epsilon = 1e-8f;                 ///< of row_wise_adagrad
};

/// One operand of this rank. An extent of 0 is the call's own.
struct EmbeddingOperand {
  std::string_view name;
  OperandRole role = OperandRole::input;
  View view{};  ///< its data is null

  bool operator==(const EmbeddingOperand&) const = default;
};

/// What became of the calls since the last report, over all ranks.
struct EmbeddingReport {
  std::int64_t ignored = 0;  ///< indices that were no rows of their tables, of lookups and updates
};

/// Lookup of bags in tables that are spread over the ranks, and the all-to-all of the results. One object a rank; ranks
/// make and destroy it together, and the world outlives it. Calls come in the order and from the threads that
/// GemmOperator asks for, with whose calls they count.
///
/// A rank holds shards: tables, or columns of them, numbered from 0 in the order of shards(). With n of them, R ranks,
/// a batch of B rows, which R divides, and T the columns of all tables together, a call's operands are
///
///     rows0, rows1, ...  [rows, columns]       each own shard's rows; int8 has [rows, columns + 8], codes, then
///                                              scale and bias in fp32. Rows may be apart, by a multiple of four
///                                              elements. Aligned to four elements
///     indices            [any]                 of all bags, one bag after the other: rows of the shard's table
///     offsets            [n * B + 1]           bag (shard s, row b) holds the indices from offsets[s * B + b] up to,
///     not
///                                              including, offsets[s * B + b + 1]
///     weights            [as indices]          fp32, where the shape says so
///     out                [B / R, T]            rank r's rows r * B / R ..., by rows without gaps
///
/// What is written, "out" or in an update rows and states, shares no byte with another operand; rows may interleave.
/// A rank without shards has "out" only. Shards of one table look the same bags up, so their ranks give the same ones.
/// B is the call's, up to the shape's, the same on every rank. An update takes "gradients", shaped as "out", instead of
/// "out". row_wise_adagrad also takes "states0", ..., [rows] in fp32, after the rows. A shard of columns has its own
/// states, from the mean over these columns.
///
/// Rows of a bag are added in the order of its indices, in fp32, and the sum is rounded once. A row's gradients are
/// added in an order that depends on the bags only (docs/embedding.md). So results, and tables after updates, are the
/// same bits from run to run, on CPU and GPU, and whatever the strategy.
///
/// What does not fit, an index of no row (unless ignored), an offset that decreases or leaves the indices, is found
/// whatever the numbers are. On the CPU every rank's call then throws Error(invalid_input), which names the rank,
/// table, bag, position, value and rule. Nothing has been changed, and the operator stays usable. The same happens for
/// any operand that one rank refuses. On GPUs a call does what it does where they are ignored, and the next report()
/// throws that.
class EmbeddingAllToAll {
 public:
  /// Strategies are sequential and decomposed, for which every rank needs a shard, and fused; not set: fused where
  /// ranks reach each other's memory, else sequential. A plan that is given is of the shape's batch, and so are all
  /// calls. `options.codec` must not be set. Throws as GemmOperator's constructors.
  EmbeddingAllToAll(World& world, const EmbeddingShape& shape, const OperatorOptions& options = {});
  ~EmbeddingAllToAll();
  EmbeddingAllToAll(const EmbeddingAllToAll&) = delete;
  EmbeddingAllToAll& operator=(const EmbeddingAllToAll&) = delete;

  /// All ranks' shards, as they were given or dealt.
  const std::vector<EmbeddingShard>& shards() const;

  /// This rank's operands, in the order in which calls find them soonest, with the largest batch; of update, none where
  /// the shape has no optimizer.
  const std::vector<EmbeddingOperand>& operands() const;
  const std::vector<EmbeddingOperand>& update_operands() const;

  /// The operand of that name at `data`, of either call; `count`: how many there are, where the call says it ("indices"
  /// and "weights"). Throws Error(invalid_input) where there is none.
  Operand operand(std::string_view name, void* data, std::int64_t count = 0) const;
  Operand operand(std::string_view name, const void* data, std::int64_t count = 0) const;

  /// On GPUs: queues the lookup on `stream` and returns, as GemmOperator::run; all operands lie in the rank's GPU. The
  /// first call with another batch, or with tables elsewhere, sets up what it needs, and cannot be captured. On the CPU
  /// "out" is complete on return.
  void run(const Operands& operands, CudaStream stream = nullptr);

  /// Takes an optimizer step with gradients of "out". The tables are changed when the stream has come past the call.
  void update(const Operands& operands, float rate, CudaStream stream = nullptr);

  /// Collective. Waits for the calls that were made, and on GPUs for replays of graphs that hold some; their operands
  /// may be gone. Where misfits are refused and were found on a GPU, every rank throws Error(invalid_input), which
  /// names one of them; the operator stays usable.
  EmbeddingReport report();

  /// Throws Error(runtime_failure) if a call is known to have failed, on any rank. Waits for no call.
  void check();

  /// Waits until `stream` is idle, then as check. On the CPU `stream` is null.
  void synchronize(CudaStream stream = nullptr);

  /// Collective: memory for "out". On GPUs peers write it directly, which saves a copy, if every rank's "out" is memory
  /// of one such call. Dropped by every rank, in one order, while the world lives.
  std::shared_ptr<void> allocate_output();

  /// cpu or cuda.
  Device device() const;
  /// Why an operator made with Device::automatic works on the CPU; empty if it works on GPUs, or was told to.
  const std::string& why_cpu() const;
  /// All ranks' tasks of the lookup, with the largest batch.
  const Plan& plan() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace imbrex
