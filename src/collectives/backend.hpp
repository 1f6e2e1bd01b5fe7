// One rank's collectives on one device, behind the public classes of imbrex/collectives.hpp, which say what they do.
// Addresses instead of views; tensors without gaps. Objects are made collectively, and ended before their world is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "imbrex/collectives.hpp"
#include "imbrex/world.hpp"

namespace imbrex::collectives {

class AllReduceBackend {
 public:
  virtual ~AllReduceBackend() = default;

  /// `count` elements, at most those the object was made for; the same on every rank. `in` and `out` may be the same
  /// memory, and need no alignment beyond the element's. On GPUs the call is queued on `stream` (a cudaStream_t; null
  /// is the default stream); elsewhere it returns when `out` is complete, and `stream` must be null.
  virtual void operator()(const void* in, void* out, std::int64_t count, void* stream = nullptr) = 0;

  /// Collective; waits for the last call.
  virtual AllReduceReport report() = 0;

  /// Waits until the last call is complete. Throws Error(runtime_failure) for what failed.
  virtual void finish() = 0;
};

/// Matrices of rows x hidden elements, except `weight`.
struct RmsNormOperands {
  const void* in = nullptr;              ///< this rank's part
  const void* residual = nullptr;        ///< added to the sum over the ranks; null: nothing is
  const void* weight = nullptr;          ///< hidden elements of weight_type
  void* residual_out = nullptr;          ///< sum over the ranks, plus residual
  void* out = nullptr;                   ///< residual_out, row by row over its root mean square, times weight
  std::optional<Type> weight_type = {};  ///< not set: the rows' type; objects take that of their options
};

class RmsNormBackend {
 public:
  virtual ~RmsNormBackend() = default;

  virtual void operator()(const RmsNormOperands& operands, std::int64_t rows, void* stream = nullptr) = 0;
  virtual AllReduceAlgorithm algorithm_of(std::int64_t rows) const = 0;
  virtual void finish() = 0;
};

class ExchangeBackend {
 public:
  virtual ~ExchangeBackend() = default;

  /// A block has `count` elements. In place, a gather's `in` or a reduce-scatter's `out` is a block of the other.
  virtual void operator()(const void* in, void* out, std::int64_t count, void* stream = nullptr) = 0;
  virtual ExchangeReport report() = 0;
  virtual void finish() = 0;
};

/// In host memory. Throw Error(invalid_input), on every rank, for options of one rank that contradict each other, and
/// where the ranks' differ, naming the ranks and the field.
std::unique_ptr<AllReduceBackend> make_cpu_all_reduce(World& world, std::int64_t max_count, Type type,
                                                      const AllReduceOptions& options = {});
std::unique_ptr<RmsNormBackend> make_cpu_all_reduce_rms_norm(World& world, std::int64_t max_rows, std::int64_t hidden,
                                                             Type type, const AllReduceRmsNormOptions& options = {});
std::unique_ptr<ExchangeBackend> make_cpu_exchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type,
                                                   const ExchangeOptions& options = {});

/// In the memory of the rank's GPU, which is chosen as by make_cuda_executor. Throw Error(runtime_failure) where there
/// are too few GPUs, and Error(invalid_input) in a build without CUDA, and on every rank where one cannot read its
/// tables in machines/tuned/, or reads others than rank 0.
std::unique_ptr<AllReduceBackend> make_cuda_all_reduce(World& world, std::int64_t max_count, Type type,
                                                       const AllReduceOptions& options = {});
std::unique_ptr<RmsNormBackend> make_cuda_all_reduce_rms_norm(World& world, std::int64_t max_rows, std::int64_t hidden,
                                                              Type type, const AllReduceRmsNormOptions& options = {});
std::unique_ptr<ExchangeBackend> make_cuda_exchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type,
                                                    const ExchangeOptions& options = {});

/// Whether the world has collectives on GPUs, the same on every rank.
bool are_on_gpus(World& world);
/// Throws the world's failure where a call of those is known to have failed.
void check_gpus(World& world);
/// Collective, as imbrex::trim and imbrex::restore: the workspace of those, if there are any.
void trim_gpus(World& world);
void restore_gpus(World& world);

}  // namespace imbrex::collectives
