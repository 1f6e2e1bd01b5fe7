// The public all-reduce with residual and RMSNorm on GPUs.
#include <algorithm>

#include "collectives/cuda/cuda_collectives.hpp"
#include "collectives/rms_norm.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/stream_order.hpp"

namespace imbrex {
namespace {

class CudaAllReduceRmsNorm final : public collectives::RmsNormBackend {
 public:
  CudaAllReduceRmsNorm(World& world, std::int64_t max_rows, std::int64_t hidden, Type type,
                       const AllReduceRmsNormOptions& options)
      : world_(world),
        max_rows_(max_rows),
        hidden_(hidden),
        type_(type),
        options_(options),
        collectives_(cuda::collectives_of(world)),
        order_(runtime::stream_order_of(world, runtime::current_gpu())) {}

  ~CudaAllReduceRmsNorm() override { collectives_->await_all(); }

  void operator()(const collectives::RmsNormOperands& given, std::int64_t rows, void* stream) override {
    collectives::RmsNormOperands operands = given;
    operands.weight_type = options_.weight_type;
    collectives::expect_operands(operands, rows, max_rows_, hidden_, type_);
    cuda::RmsNormKnobs knobs;
    knobs.algorithm = algorithm_of(rows) == AllReduceAlgorithm::one_shot ? cuda::ExactAlgorithm::one_shot
                                                                         : cuda::ExactAlgorithm::two_shot;
    knobs.blocks = std::min(static_cast<std::uint32_t>(options_.ctas), cuda::max_comm_blocks);
    stream_ = static_cast<cudaStream_t>(stream);
    runtime::InOrder call(*order_, stream_);
    collectives_->all_reduce_rms_norm(operands, rows, hidden_, options_.eps, type_, stream_, knobs);
    call.end();
  }

  AllReduceAlgorithm algorithm_of(std::int64_t rows) const override {
    return collectives::choose(
        options_, rows, hidden_, type_,
        collectives_->one_shot_bytes(type_, hidden_ * static_cast<std::int64_t>(size_of(type_))));
  }

  void finish() override { collectives_->finish(stream_); }

 private:
  World& world_;
  std::int64_t max_rows_, hidden_;
  Type type_;
  AllReduceRmsNormOptions options_;
  std::shared_ptr<cuda::CudaCollectives> collectives_;
  std::shared_ptr<runtime::StreamOrder> order_;
  cudaStream_t stream_ = nullptr;  // of the last call
};

}  // namespace

std::unique_ptr<collectives::RmsNormBackend> collectives::make_cuda_all_reduce_rms_norm(
    World& world, std::int64_t max_rows, std::int64_t hidden, Type type, const AllReduceRmsNormOptions& options) {
  collectives::agree(world, max_rows, hidden, type, options);
  return std::make_unique<CudaAllReduceRmsNorm>(world, max_rows, hidden, type, options);
}

}  // namespace imbrex
