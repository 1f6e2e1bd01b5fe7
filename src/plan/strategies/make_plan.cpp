#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "plan/limits.hpp"
#include "plan/problem.hpp"
#include "plan/rank_plan.hpp"
#include "plan/strategies/embedding.hpp"
#include "plan/strategies/registry.hpp"
#include "plan/wave_groups.hpp"

namespace imbrex {
namespace {

void expect_positive(const char* name, std::int64_t value) {
  IMBREX_EXPECTS(value > 0 && value <= plan::most_extent, "knob {} = {}: it must be from 1 to {}", name, value,
                 plan::most_extent);
}

void validate_codec(const Problem& problem, Strategy strategy, const Knobs& knobs) {
  const std::string name = name_of(*knobs.codec);
  validate(knobs.codec->reduce_scatter);
  validate(knobs.codec->all_gather);
  IMBREX_EXPECTS(!plan::entry_of(strategy).reaches_peers, "codec {}: strategy {} sends no codes; {} do", name,
                 name_of(strategy), plan::names_without_peers());
  IMBREX_EXPECTS(problem::descriptor_of(problem.op).sums,
                 "codec {}: {} sums nothing; gemm_all_reduce and gemm_reduce_scatter do", name, name_of(problem.op));
  IMBREX_EXPECTS(problem.op == Operator::gemm_all_reduce || knobs.codec->reduce_scatter == knobs.codec->all_gather,
                 "codec {}: a reduce-scatter has one phase, so it takes one codec, not a pair", name);
  IMBREX_EXPECTS(knobs.nodes == 1, "codec {} and nodes = {}: Imbrex' own collectives end at the host", name,
                 knobs.nodes);
}

Plan make(const Problem& problem, Strategy strategy, const Knobs& knobs, int only) {
  validate(problem);
  plan::validate_knobs(problem, strategy, knobs);
  if (problem.op == embedding_all_to_all) return plan::embedding_plan(problem, strategy, knobs);
  IMBREX_EXPECTS(problem::multiplies(problem), "{} has no plans of its own: strategies make those of products",
                 name_of(problem.op));
  const plan::StrategyEntry& entry = plan::entry_of(strategy);
  if (entry.stream == nullptr) return entry.make(problem, knobs);
  const auto streamed = entry.stream(problem, knobs, only);
  streamed->expect_room();
  streamed->add_tasks();
  return streamed->builder().take();
}

// They are made each time that somebody asks for them.
class MadeTasks final : public plan::TaskStream {
 public:
  MadeTasks(std::unique_ptr<plan::StreamedStrategy> strategy, int rank) : strategy_(std::move(strategy)), rank_(rank) {}

  const Plan& frame() const override { return strategy_->builder().plan(); }
  bool made() const override { return true; }
  bool ranks_are_alike() const override { return strategy_->ranks_are_alike(); }
  void for_each(const plan::TaskVisit& visit) override {
    strategy_->builder().hand_over(visit, [&] { strategy_->add_tasks(); });
  }
  std::shared_ptr<const Plan> whole() const override {
    const Plan& plan = frame();
    return std::make_shared<const Plan>(plan::make_rank_plan(plan.problem, plan.strategy, plan.knobs, rank_));
  }

 private:
  std::unique_ptr<plan::StreamedStrategy> strategy_;
  int rank_;
};

class StoredTasks final : public plan::TaskStream {
 public:
  StoredTasks(std::shared_ptr<const Plan> plan, bool made) : plan_(std::move(plan)), made_(made) {}

  const Plan& frame() const override { return *plan_; }
  bool made() const override { return made_; }
  void for_each(const plan::TaskVisit& visit) override { plan::for_each_task(*plan_, visit); }
  std::shared_ptr<const Plan> whole() const override { return plan_; }

 private:
  std::shared_ptr<const Plan> plan_;
  bool made_;
};

// Strategies go back and forth between compute queues, where they use two.
bool one_compute_queue(const Plan& plan) {
  const auto& queues = plan.ranks.front().queues;
  return std::count_if(queues.begin(), queues.end(), [](const Queue& q) { return q.engine == Engine::compute; }) == 1;
}

}  // namespace

std::unique_ptr<plan::StreamedStrategy> plan::fused_strategy(const Problem& problem, const Knobs& knobs, int only) {
  return problem.op == Operator::all_gather_gemm ? fused_all_gather(problem, knobs, only)
                                                 : fused_scatter(problem, knobs, only);
}

void plan::validate_knobs(const Problem& problem, Strategy strategy, const Knobs& knobs) {
  expect_positive("tile_m", knobs.tile_m);
  expect_positive("tile_n", knobs.tile_n);
  IMBREX_EXPECTS(knobs.tile_m * knobs.tile_n <= plan::most_extent,
                 "knobs tile_m x tile_n = {} x {}: at most {} elements", knobs.tile_m, knobs.tile_n, plan::most_extent);
  IMBREX_EXPECTS(knobs.cluster >= 0 && knobs.cluster <= 2, "knob cluster = {}: it must be 1, 2, or 0 for either",
                 knobs.cluster);
  IMBREX_EXPECTS(knobs.cluster_k == 1 || knobs.cluster_k == 2, "knob cluster_k = {}: it must be 1 or 2",
                 knobs.cluster_k);
  IMBREX_EXPECTS(knobs.cluster_k == 1 || knobs.split_k == 1,
                 "knobs cluster_k = {} and split_k = {}: a tile's K is cut in one of the two ways", knobs.cluster_k,
                 knobs.split_k);
  expect_positive("group", knobs.group);
  expect_positive("k_slices", knobs.k_slices);
  expect_positive("split_k", knobs.split_k);
  expect_positive("chunks", knobs.chunks);
  IMBREX_EXPECTS(knobs.library_tile >= 0, "knob library_tile = {}: it must not be negative (0: cuBLASLt's choice)",
                 knobs.library_tile);
  expect_positive("library_parts", knobs.library_parts);
  IMBREX_EXPECTS(knobs.own_shift >= 0, "knob own_shift = {}: it must not be negative", knobs.own_shift);
  IMBREX_EXPECTS(knobs.abreast >= 0, "knob abreast = {}: it must not be negative (0: all owners)", knobs.abreast);
  IMBREX_EXPECTS(knobs.nodes >= 1 && problem.ranks % knobs.nodes == 0,
                 "knob nodes = {}: it must be at least 1 and divide the {} ranks", knobs.nodes, problem.ranks);
  const StrategyEntry& entry = entry_of(strategy);
  IMBREX_EXPECTS(knobs.nodes == 1 || !entry.reaches_peers || problem.op == embedding_all_to_all,
                 "knob nodes = {}: strategy {} stores to its peers' memory, which ends at the host; between hosts, {} "
                 "run",
                 knobs.nodes, entry.name, names_without_peers());
  IMBREX_EXPECTS(knobs.nodes == 1 || !exchanges(problem),
                 "knob nodes = {}: {} sends every block straight to its rank, whatever host that is on", knobs.nodes,
                 name_of(problem.op));
  IMBREX_EXPECTS(knobs.comm_rows >= 0, "knob comm_rows = {}: it must not be negative (0: a whole shard)",
                 knobs.comm_rows);
  IMBREX_EXPECTS(knobs.partial != Type::e4m3,
                 "knob partial = e4m3: partial products are added up, so it must be bf16, fp16 or fp32");
  if (knobs.codec) validate_codec(problem, strategy, knobs);
  validate_groups(knobs.groups);
  IMBREX_EXPECTS(knobs.kept_free >= 0 && knobs.kept_free <= plan::most_workers,
                 "knob kept_free = {}: it must be from 0 to {}", knobs.kept_free, plan::most_workers);
  if (is_packed(problem)) {
    IMBREX_EXPECTS(strategy == Strategy::signaled && knobs.packed,
                   "packed = {} x {}: strategy signaled leaves its output so, with the knob packed; {} does not",
                   problem.packed.rows, problem.packed.cols, name_of(strategy));
    const Extent blocks = packed_blocks(problem, knobs);
    IMBREX_EXPECTS(
        problem.packed == blocks, "packed = {} x {}: tile_m = {}, group = {} and tile_n = {} leave blocks of {} x {}",
        problem.packed.rows, problem.packed.cols, knobs.tile_m, knobs.group, knobs.tile_n, blocks.rows, blocks.cols);
  }
  IMBREX_EXPECTS(!entry.one_output || has_one_output(problem),
                 "strategy {} multiplies by one B and does not give the gathered A; {} do", entry.name,
                 names_of_strategies([](const StrategyEntry& other) { return !other.one_output; }));
  if (entry.validate != nullptr) entry.validate(problem, knobs);
}

void plan::validate_fused(const Problem& problem, const Knobs& knobs) {
  const bool gather = problem.op == Operator::all_gather_gemm, exchange = exchanges(problem);
  IMBREX_EXPECTS(!gather || !knobs.span_shards || problem.scales != Scales::tensor,
                 "knob span_shards with scales tensor: the ranks' shards have a scale each, and a tile one");
  if (gather || exchange) return;
  const bool in_tile = knobs.reducer == Reducer::tile;
  IMBREX_EXPECTS(
      !in_tile || !knobs.span_shards,
      "knob span_shards needs reducer tail or reserved: a tile of several owners' rows can't reduce its own");
  const bool one_shot = problem.op == Operator::gemm_all_reduce && knobs.one_shot;
  IMBREX_EXPECTS(!one_shot || !in_tile,
                 "knob one_shot needs reducer tail or reserved: every tile is sent before it is summed");
  IMBREX_EXPECTS(!one_shot || knobs.transport == Transport::store, "knob one_shot needs transport store, not {}",
                 name_of(knobs.transport));
  IMBREX_EXPECTS(!in_tile || knobs.transport == Transport::store || knobs.order != TileOrder::column_major,
                 "transport {} with reducer tile needs own tiles last: order owner_major or naive",
                 name_of(knobs.transport));
}

Plan make_plan(const Problem& problem, Strategy strategy, const Knobs& knobs) {
  return make(problem, strategy, knobs, plan::all_ranks);
}

Plan plan::make_rank_plan(const Problem& problem, Strategy strategy, const Knobs& knobs, int rank) {
  IMBREX_EXPECTS(rank >= 0 && rank < problem.ranks, "rank {}: it must be from 0 to {}", rank, problem.ranks - 1);
  return make(problem, strategy, knobs, rank);
}

std::unique_ptr<plan::TaskStream> plan::stored_tasks(std::shared_ptr<const Plan> plan, bool made) {
  return std::make_unique<StoredTasks>(std::move(plan), made);
}

std::unique_ptr<plan::TaskStream> plan::make_rank_tasks(const Problem& problem, Strategy strategy, const Knobs& knobs,
                                                        int rank) {
  IMBREX_EXPECTS(rank >= 0 && rank < problem.ranks, "rank {}: it must be from 0 to {}", rank, problem.ranks - 1);
  validate(problem);
  plan::validate_knobs(problem, strategy, knobs);
  if (const StrategyEntry& entry = entry_of(strategy); entry.stream != nullptr && problem::multiplies(problem))
    if (auto streamed = entry.stream(problem, knobs, rank); one_compute_queue(streamed->builder().plan()))
      return std::make_unique<MadeTasks>(std::move(streamed), rank);
  return std::make_unique<StoredTasks>(
      std::make_shared<const Plan>(plan::make_rank_plan(problem, strategy, knobs, rank)), true);
}

}  // namespace imbrex
