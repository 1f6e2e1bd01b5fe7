// Public reduce-scatter, all-gather and all-to-all on GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/check.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/stream_order.hpp"

namespace imbrex {
namespace {

class CudaExchange final : public collectives::ExchangeBackend {
 public:
  CudaExchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type, const ExchangeOptions& options)
      : world_(world),
        kind_(kind),
        max_count_(max_count),
        type_(type),
        options_(options),
        collectives_(cuda::collectives_of(world)),
        order_(runtime::stream_order_of(world, runtime::current_gpu())),
        kept_(cuda::raw_memory(options.report ? sizeof(cuda::KeptReport) : 0)) {}

  ~CudaExchange() override { collectives_->await_all(); }

  void operator()(const void* in, void* out, std::int64_t count, void* stream) override {
    IMBREX_EXPECTS(count >= 0 && count <= max_count_, "{}: count = {}: it must be from 0 to {}", name_of(kind_), count,
                   max_count_);
    stream_ = static_cast<cudaStream_t>(stream);
    runtime::InOrder call(*order_, stream_);
    captured_ = captured_ || call.captured();
    called_ = count > 0;
    groups_ = 0;
    const auto blocks = std::min(static_cast<std::uint32_t>(options_.ctas), cuda::max_comm_blocks);
    if (!options_.codec) {
      collectives_->exchange(kind_, in, out, count, type_, stream_, {blocks, options_.report});
      keep_report();
      call.end();
      return;
    }
    collectives_->exchange(kind_, in, out, count, type_, *options_.codec, stream_, blocks);
    keep_report();
    call.end();
    const std::int64_t quantized_blocks = kind_ == ExchangeKind::all_gather ? 1 : world_.size();
    groups_ = quantized_blocks * ((count + options_.codec->group - 1) / options_.codec->group);
  }

  void finish() override { collectives_->finish(stream_); }

  ExchangeReport report() override {
    IMBREX_EXPECTS(options_.report, "{}: it was made without `report`", name_of(kind_));
    collectives::CallRecord record;
    record.groups = groups_;
    if (called_) {
      collectives_->finish(stream_);
      if (captured_) runtime::DeviceMemory::synchronize();  // graphs may replay the call on other streams
      const cuda::CommReport own =
          cuda::CudaCollectives::told_by(static_cast<const cuda::KeptReport*>(kept_.get())).report;
      record.largest_error = std::bit_cast<float>(own.error_bits);
      record.non_finite = static_cast<std::int64_t>(own.non_finite);
    }
    const AllReduceReport merged = collectives::merge(world_, record);
    return {merged.largest_error, merged.non_finite, merged.groups};
  }

 private:
  void keep_report() {
    if (options_.report && called_) collectives_->keep_report(static_cast<cuda::KeptReport*>(kept_.get()), stream_);
  }

  World& world_;
  ExchangeKind kind_;
  std::int64_t max_count_;
  Type type_;
  ExchangeOptions options_;
  std::shared_ptr<cuda::CudaCollectives> collectives_;
  std::shared_ptr<runtime::StreamOrder> order_;
  cuda::RawMemory kept_;  // the last call's report

  // What is known of the last call.
  cudaStream_t stream_ = nullptr;
  bool captured_ = false;  // some call
  bool called_ = false;
  std::int64_t groups_ = 0;  // that this rank quantized
};

}  // namespace

std::unique_ptr<collectives::ExchangeBackend> collectives::make_cuda_exchange(World& world, ExchangeKind kind,
                                                                              std::int64_t max_count, Type type,
                                                                              const ExchangeOptions& options) {
  collectives::agree(world, kind, max_count, type, options);
  return std::make_unique<CudaExchange>(world, kind, max_count, type, options);
}

}  // namespace imbrex
