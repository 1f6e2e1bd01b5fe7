// Updates on a GPU, with what they need of memory: it grows with the calls.
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "embedding/cuda/cuda_update.hpp"
#include "embedding/same_table.hpp"
#include "execute/cuda/embedding/misfits.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

class OneTableUpdate final : public TableUpdate {
 public:
  OneTableUpdate(const embedding::Tables& tables, const embedding::Step& step, std::int64_t batch, std::int64_t most)
      : batch_(batch), most_(most) {
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
    if (given.bags.count > most_) {
      IMBREX_EXPECTS(!captured, "the stream is being captured, and no earlier update had as many as {} indices",
                     given.bags.count);
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      most_ = std::min(embedding::most_rows, given.bags.count + given.bags.count / 4);
      update_ = std::make_unique<embedding::CudaUpdate>(given.tables, step, batch_, most_);
    }
    captured_ = captured_ || captured;
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
    bags_ = given.bags;
    if (!captured) IMBREX_CUDA_TRY(cudaEventRecord(done_, stream));
  }

  std::int64_t take_misfits(Misfits misfits) override {
    if (update_ == nullptr || bags_.batch == 0) return 0;
    IMBREX_CUDA_TRY(cudaStreamWaitEvent(own_, done_, 0));
    return update_->findings(bags_, own_, misfits);
  }

 private:
  cudaStream_t own_ = nullptr;
  cudaEvent_t done_ = nullptr;
  std::unique_ptr<embedding::CudaUpdate> update_;
  std::vector<embedding::Table> tables_;
  std::vector<float*> states_;
  std::int64_t batch_, most_;
  bool captured_ = false;
  embedding::Bags bags_{};  // of the last call
};

}  // namespace

std::unique_ptr<TableUpdate> make_table_update(const embedding::Tables& tables, const embedding::Step& step,
                                               std::int64_t batch, std::int64_t most_indices) {
  return std::make_unique<OneTableUpdate>(tables, step, batch, most_indices);
}

}  // namespace imbrex::cuda
