#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/check.hpp"
#include "execute/cuda/embedding/table_update.hpp"
#include "imbrex/collectives.hpp"
#include "ops/embedding/embedding_backend.hpp"
#include "plan/task_stream.hpp"
#include "runtime/agreement.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex::ops {
namespace {

class GpuEmbedding final : public EmbeddingBackend {
 public:
  GpuEmbedding(World& world, std::shared_ptr<WorldGpus> gpus, const EmbeddingShape& shape, const Problem& problem,
               const OperatorOptions& options, bool made)
      : world_(world),
        gpus_(std::move(gpus)),
        shape_(shape),
        problem_(problem),
        strategy_(*options.strategy),
        knobs_(*options.knobs),
        blocks_(problem) {
    executions_[problem.m] = gpus_->executor->prepare_tasks([&] { return plan::stored_tasks(options.plan, made); });
    if (!shape.optimizer) return;
    const std::int64_t block = problem.m / problem.ranks * blocks_.width();
    if (world.size() > 1)
      exchange_ = std::make_unique<Exchange>(world, ExchangeKind::all_to_all, block, shape.out,
                                             ExchangeOptions{.report = false}, Device::cuda);
    const std::size_t bytes = static_cast<std::size_t>(block * problem.ranks) * size_of(shape.out);
    runtime::agree(world, [&] {
      runtime::select_gpu(gpus_->own_gpu);
      sent_ = std::make_unique<runtime::DeviceMemory>(bytes);
      if (exchange_) received_ = std::make_unique<runtime::DeviceMemory>(bytes);
      make_update();
      return runtime::Terms("memory for updates");
    });
  }

  const EmbeddingCall& resolve(EmbeddingRules& rules, const Operands& operands, float rate,
                               CudaStream stream) override {
    IMBREX_EXPECTS(std::isfinite(rate), "rate = {}: it must be finite", rate);
    const EmbeddingCall& call = rules.resolve(operands);
    for (const auto& [name, view] : operands)
      if (view.data != nullptr && std::find(known_.begin(), known_.end(), view.data) == known_.end()) {
        IMBREX_EXPECTS(runtime::on_gpu(view.data, gpus_->own_gpu), "operand {} at {} is not in a GPU's memory", name,
                       view.data);
        if (known_.size() == most_known) known_.clear();
        known_.push_back(view.data);
      }
    const std::int64_t batch = call.given.bags.batch;
    const auto made = executions_.find(batch);
    (made == executions_.end() ? executions_.at(problem_.m) : made->second)->expect_stream(stream);
    return call;
  }

  bool meets(const EmbeddingCall& call) const override { return executions_.count(call.given.bags.batch) == 0; }

  void run(const EmbeddingCall& call, CudaStream stream) override {
    Execution& of_batch =
        runtime::calls_of(world_).prepare_alike([&]() -> Execution& { return execution_of(call.given.bags.batch); });
    of_batch.enqueue(addresses_of(call), stream);
  }

  void update(const EmbeddingCall& call, float rate, CudaStream stream) override {
    runtime::select_gpu(gpus_->own_gpu);
    const int ranks = problem_.ranks;
    const std::int64_t rows = call.given.bags.batch / ranks, width = blocks_.width(),
                       element = static_cast<std::int64_t>(size_of(shape_.out)),
                       pitch = problem::width_of(problem_.tables), block = rows * width * element;
    auto* sent = static_cast<std::byte*>(sent_->get());
    // What all updates share is one call's at a time.
    cuda::QueuedCall queued(world_, gpus_->own_gpu, stream);
    for (int rank = 0; rank < ranks; ++rank)
      for (const problem::Run& run : blocks_.runs(rank))
        update_->copy({static_cast<const std::byte*>(call.matrix) + run.to * element,
                       sent + rank * block + run.from * element, rows, run.cols, pitch, width, element},
                      stream);
    auto* got = sent;
    if (exchange_) {
      got = static_cast<std::byte*>(received_->get());
      exchange_->run({{"in", View::vector(sent, shape_.out, rows * width * ranks)},
                      {"out", View::vector(got, shape_.out, rows * width * ranks)}},
                     stream);
    }
    if (call.given.tables.count == 0) return queued.end();
    std::vector<void*> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(got + rank * block);
    update_->launch(call.given, {parts.data(), ranks, shape_.out, width},
                    {*shape_.optimizer, rate, shape_.epsilon, call.states.data()}, stream);
    queued.end();
  }

  std::int64_t take_ignored() override {
    std::int64_t ignored = 0;
    for (auto& [batch, execution] : executions_) ignored += execution->take_misfits(shape_.misfits);
    if (exchange_) exchange_->synchronize();
    if (update_) ignored += update_->take_misfits(shape_.misfits);
    return ignored;
  }

  void check() override {
    for (auto& [batch, execution] : executions_) execution->check();
  }
  void synchronize(CudaStream stream) override { executions_.at(problem_.m)->synchronize(stream); }
  std::shared_ptr<void> allocate_output(std::size_t bytes) override {
    auto memory = gpus_->executor->allocate_output(bytes);
    void* address = memory.get();
    return {address, [gpus = gpus_, memory = std::move(memory)](void*) {}};
  }
  int gpu() const override { return gpus_->own_gpu; }
  LentOutput lent_output(std::uint64_t place) override {
    const auto rows = static_cast<std::size_t>(problem_.m / problem_.ranks * problem::width_of(problem_.tables));
    return {*gpus_, place, rows * size_of(shape_.out)};
  }

 private:
  static constexpr std::size_t most_known = 4096;

  static Addresses addresses_of(const EmbeddingCall& call) {
    Addresses addresses;
    addresses.others = {call.matrix};
    addresses.given = &call.given;
    return addresses;
  }

  // Memory for one and a half of what bags are said to hold.
  void make_update() {
    const problem::OwnShards own(problem_.tables, world_.rank());
    std::vector<embedding::Table> tables;
    double indices = 1024;
    for (std::size_t i = 0; i < own.count(); ++i) {
      const std::int64_t pitch = own[i].dim * embedding::size_of(shape_.rows);
      tables.push_back({nullptr, own[i].rows, pitch, 0, static_cast<std::int32_t>(own[i].dim),
                        static_cast<std::int32_t>(own.cols_before(i))});
      indices += 1.5 * own[i].pooling * static_cast<double>(problem_.m);
    }
    // They are not read before a call says where they are.
    float none = 0;
    std::vector<float*> states(tables.size(), &none);
    const auto most = static_cast<std::int64_t>(std::min(indices, static_cast<double>(embedding::most_rows)));
    update_ = cuda::make_table_update({tables.data(), static_cast<std::int32_t>(tables.size()), shape_.rows},
                                      {*shape_.optimizer, 0, shape_.epsilon, states.data()}, problem_.m, most);
  }

  // Collective where no call had that batch.
  Execution& execution_of(std::int64_t batch) {
    std::unique_ptr<Execution>& made = executions_[batch];
    if (made != nullptr) return *made;
    Problem of_batch = problem_;
    of_batch.m = batch;
    try {
      made = gpus_->executor->prepare_tasks(
          [&] { return plan::make_rank_tasks(of_batch, strategy_, knobs_, world_.rank()); });
    } catch (...) {
      executions_.erase(batch);
      throw;
    }
    return *made;
  }

  World& world_;
  std::shared_ptr<WorldGpus> gpus_;
  const EmbeddingShape shape_;
  const Problem problem_;
  const Strategy strategy_;
  const Knobs knobs_;
  GradientBlocks blocks_;
  std::map<std::int64_t, std::unique_ptr<Execution>> executions_;  // by batch
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<runtime::DeviceMemory> sent_, received_;
  std::unique_ptr<cuda::TableUpdate> update_;
  std::vector<const void*> known_;  // operands that were found to be on the GPU
};

}  // namespace

std::unique_ptr<EmbeddingBackend> make_gpu_embedding(World& world, std::shared_ptr<WorldGpus> gpus,
                                                     const EmbeddingShape& shape, const Problem& problem,
                                                     const OperatorOptions& options, bool made) {
  return std::make_unique<GpuEmbedding>(world, std::move(gpus), shape, problem, options, made);
}

}  // namespace imbrex::ops
