// Updates on a GPU, with what they need of memory: it grows with the calls, and keeps what captured graphs hold.
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "embedding/cuda/cuda_update.hpp"
#include "embedding/same_table.hpp"
#include "execute/cuda/embedding/table_update.hpp"
#include "runtime/cuda/asks_during_captures.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

class OneTableUpdate final : public TableUpdate {
 public:
  OneTableUpdate(const embedding::Tables& tables, const embedding::Step& step, std::int64_t batch, std::int64_t most) {
    if (tables.count > 0) update_ = std::make_unique<embedding::CudaUpdate>(tables, step, batch, most);
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking));
    IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  }
  ~OneTableUpdate() override {
    cudaStreamDestroy(own_);
    cudaEventDestroy(done_);
  }
  OneTableUpdate(const OneTableUpdate&) = delete;
  OneTableUpdate& operator=(const OneTableUpdate&) = delete;

  void copy(const Copy& c, CudaStream stream) override {
    const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n * c.element); };
    IMBREX_CUDA_TRY(cudaMemcpy2DAsync(c.to, bytes(c.width), c.from, bytes(c.pitch), bytes(c.cols),
                                      static_cast<std::size_t>(c.rows), cudaMemcpyDeviceToDevice, stream));
  }

  void launch(const plan::RankBags& given, const embedding::Output& gradients, const embedding::Step& step,
              CudaStream stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream, &status));
    const bool captured = status != cudaStreamCaptureStatusNone;
    if (given.bags.count > update_->most_indices()) {
      IMBREX_EXPECTS(!captured, "the stream is being captured, and no earlier update had as many as {} indices",
                     given.bags.count);
      const AsksDuringCaptures asks;
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      update_->grow(std::min(embedding::most_rows, given.bags.count + given.bags.count / 4));
    }
    if (captured) {
      captured_ = true;
      update_->hold();
    }
    const auto same_places = [&] {
      return std::equal(tables_.begin(), tables_.end(), given.tables.tables, given.tables.tables + given.tables.count,
                        embedding::same_table) &&
             std::equal(states_.begin(), states_.end(), step.states);
    };
    // A graph's replay may have bound others since.
    if (captured_ || tables_.empty() || !same_places()) {
      update_->bind(given.tables, step.states, stream);
      tables_.assign(given.tables.tables, given.tables.tables + given.tables.count);
      if (step.optimizer == Optimizer::row_wise_adagrad) states_.assign(step.states, step.states + given.tables.count);
    }
    update_->launch(given.bags, gradients, step.rate, stream);
    if (!captured) IMBREX_CUDA_TRY(cudaEventRecord(done_, stream));
  }

  std::int64_t take_misfits(Misfits misfits) override {
    if (update_ == nullptr) return 0;
    // CUDA does not tell when graphs that hold calls run.
    if (captured_) IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    IMBREX_CUDA_TRY(cudaStreamWaitEvent(own_, done_, 0));
    return update_->findings(own_, misfits);
  }

 private:
  cudaStream_t own_ = nullptr;
  cudaEvent_t done_ = nullptr;
  std::unique_ptr<embedding::CudaUpdate> update_;
  std::vector<embedding::Table> tables_;
  std::vector<float*> states_;
  bool captured_ = false;
};

}  // namespace

std::unique_ptr<TableUpdate> make_table_update(const embedding::Tables& tables, const embedding::Step& step,
                                               std::int64_t batch, std::int64_t most_indices) {
  return std::make_unique<OneTableUpdate>(tables, step, batch, most_indices);
}

}  // namespace imbrex::cuda
