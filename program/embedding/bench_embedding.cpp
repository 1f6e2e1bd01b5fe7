#include "program/embedding/bench_embedding.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "base/check.hpp"
#include "base/hash.hpp"
#include "program/embedding/placed_bags.hpp"
#include "program/embedding/tables_file.hpp"
#include "program/measure/turns.hpp"

namespace imbrex::program {
namespace {

constexpr double sample_seconds = 0.01;
constexpr int most_runs = 1000;

// One strategy's operator on one rank, and memory for what it gives.
struct Candidate {
  std::size_t way;
  std::unique_ptr<EmbeddingAllToAll> op;
  std::shared_ptr<void> out;
};

EmbeddingShape of_batch(EmbeddingShape shape, std::int64_t batch) {
  shape.batch = batch;
  return shape;
}

class RankBench {
 public:
  RankBench(World& world, const EmbeddingBenchRequest& request, std::int64_t batch, const BagFiles& files,
            Device device)
      : world_(world),
        request_(request),
        shape_(of_batch(request.lookup.shape, batch)),
        seeded_(shape_, request.lookup.seed, files),
        device_(device) {
    result_.batch = batch, result_.device = device;
    for (const Strategy strategy : request.strategies) add(strategy);
    IMBREX_EXPECTS(!candidates_.empty(), "{}", result_.ways.front().refusal);
    const EmbeddingAllToAll& first = *candidates_.front().op;
    bags_.emplace(device, seeded_, shape_, first.shards(), world.rank());
    result_.shards = first.shards().size();
  }

  const EmbeddingBenchResult& run() {
    compare();
    const auto sample = [&](std::size_t i) { return sampled(candidates_[i], result_.runs); };
    result_.runs = request_.runs;
    if (request_.runs == 0) {
      double slowest = 0;
      for (Candidate& c : candidates_) slowest = std::max(slowest, sampled(c, 1));
      result_.runs = static_cast<int>(std::clamp(std::ceil(sample_seconds / slowest), 1.0, double{most_runs}));
    }
    const std::vector<double> seconds = timed_in_turn(candidates_.size(), request_.rounds, sample);
    for (std::size_t i = 0; i < seconds.size(); ++i) result_.ways[candidates_[i].way].seconds = seconds[i];
    for (Candidate& c : candidates_) c.op->report();
    return result_;
  }

 private:
  // Every rank refuses it with the same words, or none does.
  void add(Strategy strategy) {
    OperatorOptions options;
    options.strategy = strategy;
    options.device = device_;
    options.cpu.workers = request_.lookup.workers;
    options.cuda.ranks_per_gpu = request_.lookup.ranks_per_gpu;
    auto& way = result_.ways.emplace_back();
    way.strategy = strategy;
    try {
      auto op = std::make_unique<EmbeddingAllToAll>(world_, shape_, options);
      std::shared_ptr<void> out = op->allocate_output();
      candidates_.push_back({result_.ways.size() - 1, std::move(op), std::move(out)});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      way.refusal = error.what();
    }
  }

  // That all strategies give the same bits, and how many indices there are.
  void compare() {
    struct Told {
      std::int64_t indices;
      std::uint64_t hash;
    };
    std::optional<std::vector<Told>> first;
    for (Candidate& c : candidates_) {
      const View& out = c.op->operands().back().view;
      const auto count = static_cast<std::size_t>(out.extents[0] * out.extents[1]);
      DeviceTensor tensor(device_, std::vector<std::byte>(count * size_of(shape_.out)));
      tensor.poison();
      c.op->run(bags_->operands(*c.op, false, tensor.get()));
      c.op->report();
      const Told own{bags_->own().bags.count, base::hash_of(tensor.read())};
      std::vector<Told> all(static_cast<std::size_t>(world_.size()));
      world_.all_gather(&own, all.data(), sizeof own);
      if (!first) first = all;
      const auto same = [](const Told& a, const Told& b) { return a.hash == b.hash; };
      result_.alike = result_.alike && std::equal(all.begin(), all.end(), first->begin(), same);
    }
    result_.indices = std::accumulate(first->begin(), first->end(), std::int64_t{0},
                                      [](std::int64_t sum, const Told& told) { return sum + told.indices; });
  }

  double sampled(Candidate& c, int runs) {
    const std::vector<Operand> operands = bags_->operands(*c.op, false, c.out.get());
    return seconds_of(world_, device_,
                      [&] {
                        for (int i = 0; i < runs; ++i) c.op->run(operands);
                      }) /
           runs;
  }

  World& world_;
  const EmbeddingBenchRequest& request_;
  EmbeddingShape shape_;
  SeededBags seeded_;
  Device device_;
  EmbeddingBenchResult result_;
  std::vector<Candidate> candidates_;
  std::optional<PlacedBags> bags_;
};

}  // namespace

int bench_embedding(const EmbeddingBenchRequest& request,
                    const std::function<void(const EmbeddingBenchResult&)>& report) {
  IMBREX_EXPECTS(
      !request.strategies.empty() && !request.batches.empty() && request.rounds >= 1 && request.runs >= 0,
      "{} strategies, {} batches, {} rounds, {} runs: there must be one of the first three, and no fewer runs "
      "than 0",
      request.strategies.size(), request.batches.size(), request.rounds, request.runs);
  EmbeddingRequest largest = request.lookup;
  for (const std::int64_t batch : request.batches) {
    static_cast<void>(problem_of(of_batch(request.lookup.shape, batch), request.lookup.ranks));
    largest.shape.batch = std::max(largest.shape.batch, batch);
  }
  return on_embedding_ranks(largest, static_cast<int>(request.strategies.size()),
                            [&](World& world, const BagFiles& files, Device device) {
                              bool alike = true;
                              for (const std::int64_t batch : request.batches) {
                                RankBench bench(world, request, batch, files, device);
                                const EmbeddingBenchResult& result = bench.run();
                                if (world.rank() == 0) report(result);
                                alike = alike && result.alike;
                              }
                              return alike ? 0 : static_cast<int>(ErrorCode::unsound);
                            });
}

}  // namespace imbrex::program
