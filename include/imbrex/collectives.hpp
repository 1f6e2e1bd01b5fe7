// Collectives that stand alone: the all-reduce and its parts, exact or through a codec, with a bound on every error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "imbrex/codec.hpp"
#include "imbrex/types.hpp"

namespace imbrex {

class World;

enum class AllReduceAlgorithm : std::uint8_t {
  automatic,  ///< one_shot for small tensors, two_shot for the others: by what `imbrex tune` measured on these GPUs
  one_shot,   ///< every rank sends its whole tensor to all others, and adds up all of them
  two_shot,   ///< every rank adds up its share of the tensor, and sends the sums to all others
  ring,       ///< partial sums go round, rounded at every hop: to compare with; needs a codec
};

std::string_view name_of(AllReduceAlgorithm algorithm);

/// Inverse of name_of, "auto" for automatic; throws Error(invalid_input) listing the names.
AllReduceAlgorithm parse_all_reduce_algorithm(std::string_view name);

/// For AllReduceOptions::exact_below: as `imbrex tune` measured it on these GPUs; without a record 4 MiB, for codecs
/// whose two steps have fewer than 12 bits together 2 MiB (docs/all-reduce.md#policy).
inline constexpr std::int64_t exact_below_measured = -1;

/// The same on every rank.
struct AllReduceOptions {
  std::optional<CodecPair> codec = {};  ///< not set: exact, each sum rounded once to the element type
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::automatic;

  /// With a codec: the largest error that it may cause; roundings that an exact all-reduce has, too, come on top.
  /// Groups for which it could cause more travel as elements, in slots kept for them. Not with ring.
  std::optional<float> tolerance = {};
  /// With a tolerance: the whole call is exact, on all ranks, if one group of one rank could exceed it.
  bool whole_call = false;

  /// With a codec: tensors of fewer bytes are summed exactly; exact_below_measured: those that a codec does not speed
  /// up.
  std::int64_t exact_below = 0;
  bool batch_invariant = false;  ///< automatic means two_shot, and exact_below must be 0: what a row becomes does not
                                 ///< depend on the number of rows (of whole groups each)
  bool report = true;            ///< keep what report() tells; costs a little time
  int ctas = 0;                  ///< GPUs: thread blocks to use; 0: by size
};

/// What became of the last call, over all ranks.
struct AllReduceReport {
  float largest_error = 0;         ///< no finite element of the output is farther from the exact sum than this
  std::int64_t non_finite = 0;     ///< elements of the output that are NaN or infinite
  std::int64_t groups = 0;         ///< sent through the codec or, of these, raw: in both steps, by all ranks
  std::int64_t raw_groups = 0;     ///< that travelled as elements for the sake of the tolerance
  bool exact = false;              ///< without codec: none asked for, too small a tensor, or whole_call
  AllReduceAlgorithm algorithm{};  ///< never automatic
};

/// out = sum over the ranks of their `in`, the same bits on all ranks, in every run. Sums are in fp32, in the order of
/// the ranks (ring: in the order of the hops). A NaN or infinity comes back where IEEE 754 has it, with a codec too.
///
/// With a codec, every rank's part is decoded from codes, the owner's own too, so that an element does not depend on
/// who owns it; one_shot uses the codec `reduce_scatter` only. An element belongs to the group (its index) / (group
/// size), whatever the ranks and the algorithm.
///
/// One rank's object; made and called collectively, by one thread a rank. Ended by every rank before its world is. On
/// GPUs every rank runs its calls of this and the other collectives one after another, in the order in which all ranks
/// make them: on one stream, or on several that wait for one another by events. Two at once would take each other's
/// data, or keep each other from starting.
class AllReduce {
 public:
  virtual ~AllReduce() = default;

  /// `count` elements, at most those the object was made for; the same on every rank. `in` and `out` may be the same
  /// memory, and need no alignment beyond the element's. On GPUs the call is enqueued on `stream` (a cudaStream_t; null
  /// is the default stream) and may be captured in a graph; elsewhere it returns when `out` is complete, and `stream`
  /// must be null. Throws Error(invalid_input) for arguments that break this, and Error(runtime_failure) as an
  /// Execution does.
  virtual void operator()(const void* in, void* out, std::int64_t count, void* stream = nullptr) = 0;

  /// Collective. Of the last call, once it is complete; all zero before the first. Throws Error(invalid_input) if made
  /// without `report`.
  virtual AllReduceReport report() = 0;

  /// Waits until the last call is complete. Throws Error(runtime_failure) as an Execution does; also for calls of
  /// replayed graphs that were given up, once their stream is idle.
  virtual void finish() = 0;
};

/// Of up to `max_count` elements in host memory. Collective: takes memory of the world's symmetric heap. Throws
/// Error(invalid_input), on every rank, for options of one rank that contradict each other, and where the ranks'
/// differ, naming the ranks and the field.
std::unique_ptr<AllReduce> make_cpu_all_reduce(World& world, std::int64_t max_count, Type type,
                                               const AllReduceOptions& options = {});

/// Of up to `max_count` elements in the memory of the rank's GPU, which is chosen as by make_cuda_executor. Throws
/// Error(runtime_failure) where there are too few GPUs, and Error(invalid_input) in a build without CUDA, and on every
/// rank where one cannot read its tables in machines/tuned/, or reads others than rank 0.
std::unique_ptr<AllReduce> make_cuda_all_reduce(World& world, std::int64_t max_count, Type type,
                                                const AllReduceOptions& options = {});

/// Throws Error(invalid_input) naming what the options contradict; `max_count` must not be negative.
void validate(const AllReduceOptions& options, std::int64_t max_count);

/// The same on every rank.
struct AllReduceRmsNormOptions {
  float eps = 1e-6f;                                             ///< finite, not negative
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::automatic;  ///< not ring
  int ctas = 0;                                                  ///< GPUs: thread blocks to use; 0: by size
};

/// Matrices of rows x hidden elements, row-major and contiguous, but for `weight`. `residual` and `weight` hold the
/// same on all ranks (of a residual, a rank may read only some rows). Addresses need no alignment beyond the element's.
/// Each output may be the same memory as `in` or as `residual`; apart from that, outputs overlap nothing.
struct RmsNormOperands {
  const void* in = nullptr;        ///< this rank's part
  const void* residual = nullptr;  ///< added to the sum over the ranks; null: nothing is
  const void* weight = nullptr;    ///< hidden elements
  void* residual_out = nullptr;    ///< sum over the ranks, plus residual
  void* out = nullptr;             ///< residual_out, row by row over its root mean square, times weight
};

/// The all-reduce between a row-parallel layer and the next one's norm, in one kernel. For each row of x =
/// residual_out:
///
///     x   = sum over the ranks of in, plus residual      fp32, by rank number, then the residual; rounded once
///     out = x / sqrt(mean(x^2) + eps) * weight           of x as rounded; fp32; rounded once
///
/// The same bits on all ranks, in every run, on CPU and GPU, whichever the algorithm, and whatever the number of rows:
/// the squares are added in an order that depends on `hidden` and the type only (docs/all-reduce.md). Squares that
/// overflow fp32 give what IEEE 754 gives; any NaN may come back as another.
///
/// One rank's object; made and called as an AllReduce is, with the same rules for memory, streams and errors.
class AllReduceRmsNorm {
 public:
  virtual ~AllReduceRmsNorm() = default;

  /// `rows`: at most those that the object was made for; the same on every rank.
  virtual void operator()(const RmsNormOperands& operands, std::int64_t rows, void* stream = nullptr) = 0;

  /// The algorithm of a call of so many rows; never automatic.
  virtual AllReduceAlgorithm algorithm_of(std::int64_t rows) const = 0;

  /// Waits until the last call is complete. Throws Error(runtime_failure) as an Execution does.
  virtual void finish() = 0;
};

/// Of up to `max_rows` rows of `hidden` elements in host memory; as make_cpu_all_reduce.
std::unique_ptr<AllReduceRmsNorm> make_cpu_all_reduce_rms_norm(World& world, std::int64_t max_rows, std::int64_t hidden,
                                                               Type type, const AllReduceRmsNormOptions& options = {});

/// The same in the memory of the rank's GPU; as make_cuda_all_reduce.
std::unique_ptr<AllReduceRmsNorm> make_cuda_all_reduce_rms_norm(World& world, std::int64_t max_rows,
                                                                std::int64_t hidden, Type type,
                                                                const AllReduceRmsNormOptions& options = {});

/// Throws Error(invalid_input) naming what breaks a rule: max_rows not negative, hidden from 1 to 2^18.
void validate(const AllReduceRmsNormOptions& options, std::int64_t max_rows, std::int64_t hidden);

/// The collectives that an all-reduce is made of. R ranks; a block is `count` elements.
enum class ExchangeKind : std::uint8_t {
  reduce_scatter,  ///< in: R blocks; out: block r is the sum over the ranks of their block r, on rank r
  all_gather,      ///< in: a block; out: R blocks, block s from rank s
  all_to_all,      ///< in: R blocks; out: R blocks, block s is block r of rank s, on rank r
};

/// "reduce_scatter", "all_gather" or "all_to_all".
std::string_view name_of(ExchangeKind kind);

/// The same on every rank.
struct ExchangeOptions {
  std::optional<Codec> codec = {};  ///< not set: exact. What a rank gives itself is coded too
  bool report = true;
  int ctas = 0;  ///< GPUs: thread blocks to use; 0: by size
};

/// What became of the last call, over all ranks; as in AllReduceReport.
struct ExchangeReport {
  float largest_error = 0;
  std::int64_t non_finite = 0;  ///< of all ranks' outputs together
  std::int64_t groups = 0;
};

/// One rank's object; made and called as an AllReduce is, with the same rules for memory, streams and errors, except
/// that `in` and `out` must not overlap. A block's groups begin with the block. Sums are in fp32, by rank.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void operator()(const void* in, void* out, std::int64_t count, void* stream = nullptr) = 0;

  /// Collective. Throws Error(invalid_input) if made without `report`.
  virtual ExchangeReport report() = 0;

  virtual void finish() = 0;
};

/// Of blocks of up to `max_count` elements in host memory; as make_cpu_all_reduce.
std::unique_ptr<Exchange> make_cpu_exchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type,
                                            const ExchangeOptions& options = {});

/// The same in the memory of the rank's GPU; as make_cuda_all_reduce. A NaN comes back as a NaN, not always as the same
/// one. Made for blocks of up to a MiB.
std::unique_ptr<Exchange> make_cuda_exchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type,
                                             const ExchangeOptions& options = {});

/// Throws Error(invalid_input) naming what breaks a rule.
void validate(ExchangeKind kind, std::int64_t max_count, const ExchangeOptions& options);

}  // namespace imbrex
