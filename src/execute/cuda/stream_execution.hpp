// What both kinds of execution on a GPU share: epochs are queued on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>

#include "imbrex/execute.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

/// What kernel_name gives where products and collectives are libraries'; see CudaOptions::kernel.
inline constexpr std::string_view library_name = "cuBLASLt, NCCL";

/// With injected delays, one rank in turn falls behind by far, so that the others run into the next epochs.
void hold_back(const World& world, const CudaOptions& options, std::uint64_t epoch);

class StreamExecution : public Execution {
 public:
  StreamExecution();
  ~StreamExecution() override;

  /// Queues an epoch and waits for it.
  Report run(const Operands& operands) final;

  double time(const Operands& operands, int runs) final;

  /// The parts of run, for callers that queue several epochs: enqueue puts one epoch on stream(), finish waits until
  /// all are done and throws as run does.
  virtual void enqueue(const Operands& operands) = 0;
  virtual void finish() = 0;
  virtual cudaStream_t stream() const = 0;

  /// What computes the products.
  virtual std::string_view kernel_name() const = 0;

 private:
  /// Captured epochs, kept from one call of time to the next.
  struct Replay;
  std::unique_ptr<Replay> replay_;
};

}  // namespace imbrex::cuda
