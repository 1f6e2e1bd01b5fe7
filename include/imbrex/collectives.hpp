// Collectives that stand alone: the all-reduce and its parts, exact or through a codec, with a bound on every error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "imbrex/codec.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/options.hpp"
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
/// of fewer than 12 bits in both phases together 2 MiB (docs/all-reduce.md#policy).
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
  std::int64_t groups = 0;         ///< sent by all ranks in both phases, unquantized ones included
  std::int64_t raw_groups = 0;     ///< that travelled as elements for the sake of the tolerance
  bool exact = false;              ///< without codec: none asked for, too small a tensor, or whole_call
  AllReduceAlgorithm algorithm{};  ///< never automatic
};

/// What the collectives share. One object a rank; ranks make it together, and end it before the world. Its calls count
/// among the world's, which come from one thread at a time and in the same order on every rank. On GPUs the calls of a
/// world run one after another in that order, on whatever streams: operators, collectives and updates.
///
/// `device` says where operands lie: automatic means GPUs where there is one for each rank, else the CPU. Constructors
/// throw Error(invalid_input), on every rank, for options that contradict each other, where the ranks' differ, naming
/// the ranks and the field, and where `device` insists on CUDA and something is missing.
///
/// Calls throw Error(invalid_input) for operands that do not fit, naming operand, value and rule, as GemmOperator's do:
/// what only some ranks refuse ends on every rank. So do calls whose sizes differ among the ranks.
class CollectiveObject {
 public:
  CollectiveObject(const CollectiveObject&) = delete;
  CollectiveObject& operator=(const CollectiveObject&) = delete;

  /// cpu or cuda.
  Device device() const;
  /// Why an object made with Device::automatic works on the CPU; empty if it works on GPUs, or was told to.
  const std::string& why_cpu() const;

 protected:
  struct Place;
  explicit CollectiveObject(std::unique_ptr<Place> place);
  ~CollectiveObject();
  Place& place() const { return *place_; }

 private:
  std::unique_ptr<Place> place_;
};

/// out = sum over the ranks of their `in`, the same bits on all ranks, in every run. Sums are in fp32, in the order of
/// the ranks (ring: in the order of the hops). A NaN or infinity comes back where IEEE 754 has it, with a codec too.
///
/// With a codec, every rank's part is decoded from codes, the owner's own too, so that an element does not depend on
/// who owns it; one_shot uses the codec `reduce_scatter` only. An element belongs to the group (its index) / (group
/// size), whatever the ranks and the algorithm.
class AllReduce : public CollectiveObject {
 public:
  /// Tensors have up to `max_count` elements. Takes memory of the world's symmetric heap, or of the GPU.
  AllReduce(World& world, std::int64_t max_count, Type type, const AllReduceOptions& options = {},
            Device device = Device::automatic);
  ~AllReduce();

  /// Operands "in" and "out": tensors of equal extents without gaps, of the object's type; the same extents on every
  /// rank. They may be the same memory, and need no alignment beyond the element's. On GPUs the call is queued on
  /// `stream` and may be captured in a graph; elsewhere "out" is complete on return, and `stream` must be null. Throws
  /// Error(runtime_failure) for what failed before, on the CPU also for what fails now.
  void run(const Operands& operands, CudaStream stream = nullptr);

  /// Collective. Tells about the last call, once it is complete; all zero before the first. Throws Error(invalid_input)
  /// if made without `report`.
  AllReduceReport report();

  /// Waits until the last call is complete. Throws Error(runtime_failure) for what failed, also for calls of replayed
  /// graphs that were given up, once their stream is idle.
  void synchronize();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Throws Error(invalid_input) naming what the options contradict; `max_count` must not be negative.
void validate(const AllReduceOptions& options, std::int64_t max_count);

/// The same on every rank.
struct AllReduceRmsNormOptions {
  float eps = 1e-6f;                                             ///< finite, not negative
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::automatic;  ///< not ring
  int ctas = 0;                                                  ///< GPUs: thread blocks to use; 0: by size
  std::optional<Type> weight_type = {};                          ///< fp32 or the rows' type; not set: the rows' type
};

/// The all-reduce between a row-parallel layer and the next one's norm, in one kernel. For each row of x =
/// residual_out:
///
///     x   = sum over the ranks of in, plus residual      fp32, by rank number, then the residual; rounded once
///     out = x / sqrt(mean(x^2) + eps) * weight           of x as rounded; fp32; rounded once
///
/// Nothing between x and out is rounded to the rows' type. The weight is of that type, or fp32, as many models keep it.
/// A weight of two bytes is widened to fp32, which changes no value. So the same values give the same bits in both
/// types.
///
/// Results have the same bits on all ranks, in every run, on CPU and GPU, for every algorithm and number of rows. The
/// squares are added in an order that depends on `hidden` and the type only (docs/all-reduce.md). Squares that overflow
/// fp32 give what IEEE 754 gives; any NaN may come back as another.
///
/// Operands: "in", this rank's part; "residual", added to the sum over the ranks, which may be left out; "weight",
/// `hidden` elements of `weight_type`; "residual_out" and "out". All but "weight" are rows x hidden of the object's
/// type, without gaps. "residual" and "weight" hold the same on all ranks (a rank may read only some rows of a
/// residual). Addresses need no alignment beyond the element's. Each output may be the same memory as "in" or as
/// "residual"; apart from that, outputs overlap nothing.
class AllReduceRmsNorm : public CollectiveObject {
 public:
  /// Up to `max_rows` rows of `hidden` elements.
  AllReduceRmsNorm(World& world, std::int64_t max_rows, std::int64_t hidden, Type type,
                   const AllReduceRmsNormOptions& options = {}, Device device = Device::automatic);
  ~AllReduceRmsNorm();

  /// Streams and errors as AllReduce::run.
  void run(const Operands& operands, CudaStream stream = nullptr);

  /// The algorithm of a call with `rows` rows; never automatic.
  AllReduceAlgorithm algorithm_of(std::int64_t rows) const;

  /// As AllReduce's.
  void synchronize();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

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
  std::optional<Codec> codec = {};  ///< not set: exact. What a rank gives itself is quantized too
  bool report = true;
  int ctas = 0;  ///< GPUs: thread blocks to use; 0: by size
};

/// What became of the last call, over all ranks; as in AllReduceReport.
struct ExchangeReport {
  float largest_error = 0;
  std::int64_t non_finite = 0;  ///< of all ranks' outputs together
  std::int64_t groups = 0;
};

/// A block's groups begin with the block. Sums are in fp32, by rank. On GPUs a NaN comes back as a NaN, not always as
/// the same one; made for blocks of up to a MiB.
class Exchange : public CollectiveObject {
 public:
  /// Blocks have up to `max_count` elements.
  Exchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type, const ExchangeOptions& options = {},
           Device device = Device::automatic);
  ~Exchange();

  /// Operands "in" and "out": a block, or R blocks one after another, as ExchangeKind says, without gaps. They must
  /// not overlap, but in place: "in" of an all-gather may be a block of "out", and "out" of a reduce-scatter a block of
  /// "in"; usually it is this rank's. Streams and errors as AllReduce::run.
  void run(const Operands& operands, CudaStream stream = nullptr);

  /// Collective. Throws Error(invalid_input) if made without `report`.
  ExchangeReport report();

  /// As AllReduce's.
  void synchronize();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Throws Error(invalid_input) naming what breaks a rule.
void validate(ExchangeKind kind, std::int64_t max_count, const ExchangeOptions& options);

}  // namespace imbrex
