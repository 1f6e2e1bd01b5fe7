#include "program/embedding/run_embedding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "base/hash.hpp"
#include "embedding/lookup.hpp"
#include "embedding/rows.hpp"
#include "embedding/update.hpp"
#include "imbrex/npy.hpp"
#include "problem/embedding.hpp"
#include "program/embedding/placed_bags.hpp"
#include "program/embedding/tables_file.hpp"
#include "program/memory_need.hpp"
#include "program/nccl_environment.hpp"
#include "program/reference.hpp"
#include "program/run.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"

namespace imbrex::program {
namespace {

// What the worst element is, of what.
struct Worst {
  double ratio = 0, result = 0, value = 0;
  std::int64_t row = 0, col = 0;
  int part = -1;  // -1: the output; else the shard

  void note(double got, double wanted, double bound, Type type, std::int64_t r, std::int64_t c, int p) {
    const double over = error_over_bound(got, wanted, bound, type);
    if (!(over <= ratio)) *this = {std::isnan(over) ? INFINITY : over, got, wanted, r, c, p};
  }
};

class Rank {
 public:
  Rank(World& world, const EmbeddingRequest& request, const BagFiles& files, Device device, EmbeddingResult& result)
      : world_(world),
        request_(request),
        shape_(request.shape),
        seeded_(shape_, request.seed, files),
        device_(device),
        result_(result) {
    OperatorOptions options;
    options.strategy = request.strategy;
    options.knobs = request.knobs.optional();
    options.fixed_knobs = request.knobs.names();
    options.plan = request.plan;
    options.device = device;
    options.cpu.workers = request.workers;
    options.cuda.ranks_per_gpu = request.ranks_per_gpu;
    op_ = std::make_unique<EmbeddingAllToAll>(world, shape_, options);
    bags_.emplace(device, seeded_, shape_, op_->shards(), world.rank());
    const View& out = op_->operands().back().view;
    part_rows_ = out.extents[0], width_ = out.extents[1];
    out_ = std::make_unique<DeviceTensor>(
        device, std::vector<std::byte>(static_cast<std::size_t>(part_rows_ * width_) * size_of(shape_.out)));
    world.barrier();
  }

  // Whether it is right, or was not checked; the same on every rank.
  bool run() {
    Verdict verdict;
    for (int i = 0; i < request_.repeat; ++i) {
      out_->poison();
      result_.seconds.push_back(
          seconds_of(world_, device_, [&] { op_->run(bags_->operands(*op_, false, out_->get())); }));
      verdict.note(i, base::hash_of(out_->read()));
    }
    op_->report();
    const std::vector<float> values = base::floats_of(shape_.out, out_->read());
    if (!request_.out_prefix.empty())
      write_npy(fmt::format("{}.rank{}.npy", request_.out_prefix, world_.rank()), part_rows_, width_, values);
    Worst worst;
    if (request_.verify) check_output(values, worst);
    if (shape_.optimizer) update(worst);
    tell(worst, verdict.differs);
    return result_.message.empty();
  }

 private:
  // Each bag in a table of its own rows.
  void check_output(const std::vector<float>& values, Worst& worst) const {
    std::int64_t first = 0;
    for (std::int32_t t = 0; t < std::ssize(shape_.tables); ++t) {
      const std::int32_t dim = shape_.tables[static_cast<std::size_t>(t)].dim;
      const std::int64_t pitch = seeded_.row_bytes(dim);
      for (std::int64_t i = 0; i < part_rows_; ++i) {
        const std::int64_t b = world_.rank() * part_rows_ + i;
        const std::vector<std::int64_t> bag = seeded_.bag(t, b);
        std::vector<std::byte> rows(bag.size() * static_cast<std::size_t>(pitch));
        std::vector<std::int64_t> places(bag.size());
        std::vector<float> weights(bag.size());
        for (std::size_t k = 0; k < bag.size(); ++k) {
          seeded_.put_row(t, bag[k], 0, dim, rows.data() + k * static_cast<std::size_t>(pitch));
          places[k] = static_cast<std::int64_t>(k);
          weights[k] = seeded_.weight(t, b, static_cast<std::int64_t>(k));
        }
        const std::int64_t ends[] = {0, std::ssize(bag)};
        const embedding::Table table{
            rows.data(), std::ssize(bag), pitch, shape_.rows == TableRows::int8 ? dim : 0, dim, 0};
        const auto wanted = embedding::reference({&table, 1, shape_.rows},
                                                 {places.data(), ends, shape_.weighted ? weights.data() : nullptr,
                                                  std::ssize(bag), 1, IndexType::int64, shape_.pooling},
                                                 shape_.out, 0, 0);
        for (std::int32_t c = 0; c < dim; ++c) {
          const auto& [value, bound] = wanted[static_cast<std::size_t>(c)];
          worst.note(double{values[static_cast<std::size_t>(i * width_ + first + c)]}, value, bound, shape_.out, i,
                     first + c, -1);
        }
      }
      first += dim;
    }
  }

  // Gradients of rows from `begin` on.
  std::vector<std::byte> gradients(std::int64_t begin, std::int64_t rows) const {
    std::vector<float> values;
    for (std::int64_t b = begin; b < begin + rows; ++b)
      for (std::int64_t c = 0; c < width_; ++c) values.push_back(seeded_.gradient(b, c));
    return base::elements_of(shape_.out, values);
  }

  void update(Worst& worst) {
    DeviceTensor own(device_, gradients(world_.rank() * part_rows_, part_rows_));
    result_.update_seconds =
        seconds_of(world_, device_, [&] { op_->update(bags_->operands(*op_, true, own.get()), request_.rate); });
    op_->report();
    const RankTables& before_step = bags_->own();
    if (!request_.verify || before_step.tables.empty()) return;
    std::vector<std::byte> all = gradients(0, shape_.batch);
    void* parts[] = {all.data()};
    std::vector<float*> states;
    std::vector<std::vector<float>> states_then = before_step.states;
    for (auto& state : states_then) states.push_back(state.data());
    const embedding::Step step{*shape_.optimizer, request_.rate, shape_.epsilon, states.data()};
    // Columns of the output, where the gradients are.
    std::vector<embedding::Table> tables = before_step.tables;
    const problem::OwnShards shards(op_->plan().problem.tables, world_.rank());
    for (std::size_t t = 0; t < tables.size(); ++t) tables[t].column = static_cast<std::int32_t>(shards[t].first_col);
    const embedding::Tables before{tables.data(), static_cast<std::int32_t>(tables.size()), shape_.rows};
    for (std::size_t t = 0; t < tables.size(); ++t) {
      const auto number = static_cast<std::int32_t>(t);
      embedding::BoundedTable bounded = bounded_table(before, step, number);
      reference_step(before, before_step.bags, {parts, 1, shape_.out, width_}, step, number, bounded);
      std::vector<std::byte> now = bags_->read_rows(t);
      embedding::Table table = tables[t];
      table.rows = now.data();
      float* state = step.optimizer == Optimizer::sgd ? nullptr : states[t];
      const auto values = embedding::bounded_table({&table, 1, shape_.rows}, {step.optimizer, 0, 0, &state}, 0).values;
      for (std::size_t k = 0; k < values.size(); ++k)
        worst.note(values[k], bounded.values[k], bounded.bounds[k], embedding::type_of(shape_.rows),
                   static_cast<std::int64_t>(k) / table.dim, static_cast<std::int64_t>(k) % table.dim, number);
    }
  }

  void tell(const Worst& worst, int differs) {
    struct Told {
      Worst worst;
      std::int64_t indices;
      int differs;
    };
    const Told own{worst, bags_->own().bags.count, differs};
    std::vector<Told> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&own, all.data(), sizeof own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const Told& told = all[rank];
      result_.indices += told.indices;
      if (!request_.verify) continue;
      result_.max_error_over_bound = std::max(result_.max_error_over_bound, told.worst.ratio);
      if (!result_.message.empty()) continue;
      if (told.worst.ratio > 1)
        result_.message = fmt::format("rank {}: element ({}, {}) of {} is {}, in float64 {}: {:.3g} times its bound",
                                      rank, told.worst.row, told.worst.col,
                                      told.worst.part < 0 ? "the output" : fmt::format("shard {}", told.worst.part),
                                      told.worst.result, told.worst.value, told.worst.ratio);
      else if (told.differs >= 0)
        result_.message =
            fmt::format("rank {}: the bits of repeat {} differ from those of the first", rank, told.differs);
    }
    result_.verified = request_.verify && result_.message.empty();
    result_.device = op_->device();
    result_.shards = op_->shards().size();
    const Plan& plan = op_->plan();
    result_.strategy = plan.strategy;
    result_.digest = digest_text(plan);
  }

  World& world_;
  const EmbeddingRequest& request_;
  const EmbeddingShape& shape_;
  SeededBags seeded_;
  Device device_;
  EmbeddingResult& result_;
  std::unique_ptr<EmbeddingAllToAll> op_;
  std::optional<PlacedBags> bags_;
  std::unique_ptr<DeviceTensor> out_;
  std::int64_t part_rows_ = 0, width_ = 0;
};

// Before anybody makes them.
void expect_few_indices(const Problem& problem) {
  std::vector<double> indices(static_cast<std::size_t>(problem.ranks));
  for (const TableShard& s : problem.tables.shards)
    indices[static_cast<std::size_t>(s.owner)] += s.pooling * static_cast<double>(problem.m);
  for (std::size_t rank = 0; rank < indices.size(); ++rank)
    IMBREX_EXPECTS(indices[rank] <= static_cast<double>(embedding::most_rows),
                   "rank {} looks up {:.3g} indices, its tables' hotness times the batch of {}: at most {}", rank,
                   indices[rank], problem.m, embedding::most_rows);
}

}  // namespace

int on_embedding_ranks(const EmbeddingRequest& request, int operators,
                       const std::function<int(World&, const BagFiles&, Device)>& body) {
  Device device = Device::cpu;
  Problem problem;
  std::optional<BagFiles> files;
  agree_on_job(request.ranks, request.wait_limit, [&] {
    IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
    IMBREX_EXPECTS(request.ranks >= 1 && request.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}",
                   request.ranks, max_ranks);
    problem = problem_of(request.shape, request.ranks);
    expect_few_indices(problem);
    device = device_of_ranks(request.device, request.ranks, request.threads, request.ranks_per_gpu);
    if (device == Device::cpu) {
      double bytes = static_cast<double>(problem.m) * static_cast<double>(problem::width_of(problem.tables)) *
                     static_cast<double>(size_of(problem.type));
      for (const EmbeddingTable& table : request.shape.tables)
        bytes +=
            static_cast<double>(table.rows) * static_cast<double>(problem::row_bytes(request.shape.rows, table.dim));
      expect_memory(fmt::format("embedding_all_to_all of {} tables and {} rows over {} ranks",
                                request.shape.tables.size(), problem.m, request.ranks),
                    bytes);
    }
    files.emplace(request.files, request.shape);
    return runtime::Terms("a run of embedding_all_to_all")
        .add("batch", problem.m)
        .add("ranks", request.ranks)
        .add("device", name_of(device))
        .add("seed", request.seed)
        .add("plan", request.plan ? digest_text(*request.plan) : "chosen")
        .add("verify", request.verify)
        .add("repeat", request.repeat);
  });
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.ranks_per_gpu = request.ranks_per_gpu;
  // Workspaces and outputs of lookups, twice, and blocks of gradients; pages are taken on first touch.
  const auto part = static_cast<std::size_t>(problem.m * problem::width_of(problem.tables)) * size_of(problem.type);
  options.heap_bytes = static_cast<std::size_t>(operators) * 8 * part + (std::size_t{1} << 26);
  return run_ranks(request.ranks, request.threads, options, [&](World& world) {
    if (request.ranks_per_gpu > 1 && !request.threads) take_own_nccl_host(world);
    return body(world, *files, device);
  });
}

int run_embedding(const EmbeddingRequest& request, const std::function<void(const EmbeddingResult&)>& report) {
  return on_embedding_ranks(request, 1, [&](World& world, const BagFiles& files, Device device) {
    EmbeddingResult result;
    Rank rank(world, request, files, device, result);
    const bool right = rank.run();
    if (world.rank() == 0) report(result);
    return right ? 0 : static_cast<int>(ErrorCode::unsound);
  });
}

}  // namespace imbrex::program
