// The public all-reduce on GPUs.
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

std::int64_t groups_of(std::int64_t count, int group) { return (count + group - 1) / group; }

class CudaAllReduce final : public collectives::AllReduceBackend {
 public:
  CudaAllReduce(World& world, std::int64_t max_count, Type type, const AllReduceOptions& options)
      : world_(world),
        max_count_(max_count),
        type_(type),
        options_(options),
        collectives_(cuda::collectives_of(world)),
        order_(runtime::stream_order_of(world, runtime::current_gpu())),
        sizes_{collectives_->one_shot_bytes(type),
               options.codec ? collectives_->policy().exact_below(type, *options.codec) : 0},
        kept_(cuda::raw_memory(options.report ? sizeof(cuda::KeptReport) : 0)) {}

  ~CudaAllReduce() override { collectives_->await_all(); }

  void operator()(const void* in, void* out, std::int64_t count, void* stream) override {
    IMBREX_EXPECTS(count >= 0 && count <= max_count_, "all_reduce: count = {}: it must be from 0 to {}", count,
                   max_count_);
    stream_ = static_cast<cudaStream_t>(stream);
    runtime::InOrder call(*order_, stream_);
    captured_ = captured_ || call.captured();
    record_ = {};
    const bool quantized = collectives::quantized(options_, count, type_, sizes_);
    const AllReduceAlgorithm algorithm = collectives::choose(options_, count, type_, sizes_);
    const bool one_shot = algorithm == AllReduceAlgorithm::one_shot;
    record_.algorithm = static_cast<std::int32_t>(algorithm);
    record_.exact = quantized ? 0 : 1;
    called_ = count > 0;
    voted_ = quantized && options_.whole_call && called_;
    cuda::ExactKnobs exact;
    exact.algorithm = one_shot ? cuda::ExactAlgorithm::one_shot : cuda::ExactAlgorithm::two_shot;
    exact.blocks = blocks();
    exact.report = options_.report;
    if (!quantized) {
      collectives_->all_reduce(in, out, count, type_, stream_, exact);
      keep_report();
      call.end();
      return;
    }
    const CodecPair& pair = *options_.codec;
    cuda::QuantizedKnobs knobs;
    knobs.blocks = blocks();
    const bool ring = algorithm == AllReduceAlgorithm::ring;
    knobs.steps = one_shot ? cuda::QuantizedSteps::one_shot
                  : ring   ? cuda::QuantizedSteps::ring
                           : cuda::QuantizedSteps::two_shot;
    if (voted_) {
      collectives_->vote(in, count, type_, pair, knobs.steps, *options_.tolerance, stream_, blocks());
      knobs.turn = cuda::Turn::unless_exact;
      exact.turn = cuda::Turn::if_exact;
      // The same bits either way; the workspace may be too small for one shot.
      if (count * static_cast<std::int64_t>(size_of(type_)) > sizes_.one_shot_bytes)
        exact.algorithm = cuda::ExactAlgorithm::two_shot;
    } else {
      knobs.tolerance = options_.tolerance.value_or(-1);
    }
    collectives_->all_reduce(in, out, count, type_, pair, stream_, knobs);
    if (voted_) collectives_->all_reduce(in, out, count, type_, stream_, exact);
    keep_report();
    call.end();
    const int group = pair.reduce_scatter.group;
    if (one_shot) {
      record_.groups = groups_of(count, group);
      return;
    }
    // Parts: a ring sends none of the share that it owns.
    const int ranks = world_.size(), skipped = ring ? world_.rank() : ranks;
    for (int owner = 0; owner < ranks; ++owner)
      if (owner != skipped) record_.groups += groups_of(share(owner, count), group);
    record_.groups += groups_of(share(world_.rank(), count), pair.all_gather.group);
  }

  void finish() override { collectives_->finish(stream_); }

  AllReduceReport report() override {
    IMBREX_EXPECTS(options_.report, "all_reduce: it was made without `report`");
    collectives::CallRecord record = record_;  // a graph may replay the call
    if (called_) {
      collectives_->finish(stream_);
      if (captured_) runtime::DeviceMemory::synchronize();  // graphs may replay the call on other streams
      const auto [own, went_exact] = cuda::CudaCollectives::told_by(static_cast<const cuda::KeptReport*>(kept_.get()));
      record.largest_error = std::bit_cast<float>(own.error_bits);
      record.non_finite = static_cast<std::int64_t>(own.non_finite);
      record.raw_groups = own.raw_groups;
      if (voted_ && went_exact) {
        record.exact = 1;
        record.groups = 0;
      }
    }
    return collectives::merge(world_, record);
  }

 private:
  void keep_report() {
    if (options_.report && called_) collectives_->keep_report(static_cast<cuda::KeptReport*>(kept_.get()), stream_);
  }

  /// Elements whose sums a rank makes.
  std::int64_t share(int owner, std::int64_t count) const {
    const std::int64_t each =
        groups_of(groups_of(count, world_.size()), collectives::share_unit) * collectives::share_unit;
    return std::clamp<std::int64_t>(count - owner * each, 0, each);
  }

  std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(std::min<int>(options_.ctas, static_cast<int>(cuda::max_comm_blocks)));
  }

  World& world_;
  std::int64_t max_count_;
  Type type_;
  AllReduceOptions options_;
  std::shared_ptr<cuda::CudaCollectives> collectives_;
  std::shared_ptr<runtime::StreamOrder> order_;
  collectives::Sizes sizes_;
  cuda::RawMemory kept_;  // the last call's report

  // What is known of the last call.
  cudaStream_t stream_ = nullptr;
  bool captured_ = false;  // some call
  bool called_ = false, voted_ = false;
  collectives::CallRecord record_;
};

}  // namespace

std::unique_ptr<collectives::AllReduceBackend> collectives::make_cuda_all_reduce(World& world, std::int64_t max_count,
                                                                                 Type type,
                                                                                 const AllReduceOptions& options) {
  collectives::agree(world, max_count, type, options);
  return std::make_unique<CudaAllReduce>(world, max_count, type, options);
}

}  // namespace imbrex
