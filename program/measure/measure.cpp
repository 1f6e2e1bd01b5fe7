#include "program/measure/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.hpp"
#include "base/fixed_text.hpp"
#include "base/json.hpp"
#include "choose/card.hpp"
#include "choose/gpu_candidates.hpp"
#include "imbrex/world.hpp"
#include "plan/json/node.hpp"
#include "plan/problem.hpp"
#include "program/measure/changes.hpp"
#include "program/measure/operator_of.hpp"
#include "program/measure/random_bytes.hpp"
#include "program/measure/turns.hpp"
#include "program/measure/without_collectives.hpp"
#include "program/operand_memory.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"
#include "records/records.hpp"
#include "records/untuned.hpp"

namespace imbrex::program {
namespace {

constexpr std::string_view table_so_far = "the table so far";
constexpr std::size_t heap_bytes = std::size_t{16} << 30;
constexpr double settling = 0.15;  // seconds of work after which a GPU's clock is the one that lasts

std::vector<std::byte> random_matrix(const Extent& extent, Type type, std::uint64_t seed) {
  return random_bytes(extent.rows * extent.cols, type, seed);
}

// What a rank multiplies by itself, out of its own operands. Behind an all-gather that is left out, A would be whatever
// lay in its memory, and what data are decides the clock.
Problem product_of(const Problem& p) {
  if (p.op != Operator::all_gather_gemm) return p;
  return {
      Operator::gemm_reduce_scatter, p.m, p.n / p.ranks, p.k * p.ranks, p.ranks, p.type, false, p.scales, p.b_layout};
}

// Collective: what the request's `next` says on rank 0.
std::optional<Problem> next_problem(World& world, const MeasureRequest& request) {
  constexpr std::size_t most_text = 1024;  // of a problem of products
  struct {
    char json[most_text] = {};
  } own, all[max_ranks];
  if (world.rank() == 0 && request.next)
    if (const auto problem = request.next()) base::put_text(plan::to_json(*problem), own.json);
  world.all_gather(&own, all, sizeof own);
  if (all[0].json[0] == 0) return std::nullopt;
  const nlohmann::json json = base::parse_json(all[0].json, "problem");
  Problem problem = plan::problem_of({json, "problem"});
  validate(problem);
  return problem;
}

class Meter {
 public:
  Meter(World& world, const MeasureRequest& request, const choose::GpuKind& gpus)
      : world_(world), request_(request), gpus_(gpus) {}

  // A problem that comes twice in a row is prepared once.
  Measurement measure(const Problem& problem) {
    if (!prepared_ || prepared_->result.problem != problem) {
      prepared_.reset();
      prepare(problem);
    }
    const std::vector<Operand> operands = prepared_->memory->named(), of_product = prepared_->of_product->named();
    auto& operators = prepared_->operators;
    int& runs = prepared_->result.runs;
    const auto sample = [&](std::size_t i) {
      world_.barrier();
      return slowest(operators[i]->time(i == 0 ? of_product : operands, runs));
    };
    const std::size_t turn = prepared_->turns++;
    if (turn == 0) {
      const double product = slowest(operators.front()->time(of_product, 2));
      const bool settles = request_.runs == 0 && !request_.all && product >= 1e-4;
      runs = runs_of(product, settles);
      for (double busy = 0; settles && busy < settling;)
        for (std::size_t i = 0; i < operators.size(); ++i) busy += sample(i) * runs;
    }
    // The product and `sequential` are what the others are compared with.
    const std::vector<double> times =
        request_.all ? timed_with_run_off(operators.size(), 2, request_.rounds, sample)
                     : timed_in_turn(operators.size(), request_.rounds, sample, turn == 0 ? 1 : 0, turn);
    Measurement result = prepared_->result;
    result.product_seconds = times.front();
    for (std::size_t i = 0; i < result.plans.size(); ++i) result.plans[i].seconds = times[i + 1];
    return result;
  }

 private:
  // Many candidates keep the GPU busy; of few, samples are longer, and begin when its clock has settled.
  int runs_of(double seconds, bool settles) const {
    if (request_.runs > 0) return request_.runs;
    if (request_.all && seconds > 5e-4) return 2;
    if (!settles) return 8;
    constexpr double sample = 10e-3;
    return std::max(2, 2 * static_cast<int>(std::ceil(sample / seconds / 2)));
  }

  // The product alone, then the result's plans.
  struct Prepared {
    Measurement result;
    std::size_t turns = 0;  // in which it was measured
    std::shared_ptr<OperandMemory> memory, of_product;
    std::vector<std::unique_ptr<GemmOperator>> operators;
  };

  double wire_seconds(const Problem& problem) const {
    const choose::Card& card = choose::card_of(gpus_.name);
    return card.has_machine() ? plan::wire_bytes(problem) / card.machine(problem.type, true).ingress_bandwidth : 0;
  }

  void prepare(const Problem& problem) {
    prepared_.emplace();
    prepared_->result = {problem, 0, wire_seconds(problem), {}, {}, gpus_.name, 0};
    const Problem product = product_of(problem);
    GemmOperator& alone = *prepared_->operators.emplace_back(operator_of(
        world_, without_collectives(make_plan(product, Strategy::sequential, {.partial = output_type(problem.type)})),
        options()));
    prepared_->of_product = random_operands(product, alone);
    for (const plan::Candidate& c : candidates(problem))
      if (const std::string why = add({c.strategy, c.knobs, is_chosen(c), {}, 0}); !why.empty() && is_chosen(c))
        throw Error(ErrorCode::invalid_input, why);
    prepared_->memory =
        product == problem ? prepared_->of_product : random_operands(problem, *prepared_->operators.back());
    if (request_.tries.empty()) return;
    const Knobs base = choose::choose_gpu_plan(problem, Strategy::fused, {}, gpus_).knobs;
    for (const std::string& text : request_.tries)
      if (const std::string why = add({Strategy::fused, with_changes(base, text), false, text, 0}); !why.empty())
        prepared_->result.refused.push_back({text, why});
  }

  std::shared_ptr<OperandMemory> random_operands(const Problem& problem, GemmOperator& op) {
    const RankShapes shapes = shapes_of(problem);
    const auto seed = static_cast<std::uint64_t>(world_.rank()) * 7919 + 1;
    const auto scales = [](const Extent& e) {
      return std::vector<float>(static_cast<std::size_t>(e.rows * e.cols), 1);
    };
    return device_operands({random_matrix(shapes.a, problem.type, seed),
                            random_matrix(shapes.b, problem.type, seed + 1),
                            {},
                            scales(shapes.a_scale),
                            scales(shapes.b_scale)},
                           problem, op.allocate_output());
  }

  // Returns why the plan cannot run, if it cannot; on every rank alike.
  std::string add(const Measured& plan) {
    try {
      prepared_->operators.push_back(
          operator_of(world_, prepared_->result.problem, plan.strategy, plan.knobs, options()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      const std::string_view why = error.what(), insists = "device cuda: ";
      return std::string(why.substr(why.starts_with(insists) ? insists.size() : 0));
    }
    prepared_->result.plans.push_back(plan);
    return {};
  }

  static CudaOptions options() {
    CudaOptions o;
    o.heap_bytes = heap_bytes;
    return o;
  }

  // The chosen plan is among them, or added.
  std::vector<plan::Candidate> candidates(const Problem& problem) {
    const Plan chosen = choose::choose_gpu_plan(problem, request_.strategy, {}, gpus_);
    chosen_ = {chosen.strategy, chosen.knobs};
    std::vector<plan::Candidate> list = choose::gpu_candidates(problem);
    for (std::size_t i = 0, count = list.size(); i < count; ++i)
      if (const plan::Candidate better = choose::with_product_record(list[i], problem, gpus_);
          better.knobs != list[i].knobs)
        list.push_back(better);
    if (!request_.all) std::erase_if(list, [&](const plan::Candidate& c) { return !is_baseline(c) && !is_chosen(c); });
    if (std::none_of(list.begin(), list.end(), [&](const plan::Candidate& c) { return is_chosen(c); }))
      list.push_back(chosen_);
    return list;
  }

  bool is_chosen(const plan::Candidate& c) const {
    if (c.strategy != chosen_.strategy) return false;
    return c.knobs == chosen_.knobs || (is_baseline(c) && is_baseline(chosen_));
  }

  // cuBLAS as it comes, then NCCL, whatever the other knobs.
  static bool is_baseline(const plan::Candidate& c) {
    return c.strategy == Strategy::sequential && c.knobs.transport != Transport::store && c.knobs.library_tile == 0;
  }

  double slowest(double seconds) {
    std::vector<double> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&seconds, all.data(), sizeof seconds);
    return *std::max_element(all.begin(), all.end());
  }

  World& world_;
  const MeasureRequest& request_;
  const choose::GpuKind& gpus_;
  plan::Candidate chosen_;
  std::optional<Prepared> prepared_;
};

}  // namespace

const Measured& fastest(const Measurement& m) {
  return *std::min_element(m.plans.begin(), m.plans.end(),
                           [](const Measured& x, const Measured& y) { return x.seconds < y.seconds; });
}

std::string tuning_table(const std::vector<Measurement>& measurements, const std::string& date,
                         std::string_view before) {
  records::Records records{measurements.empty() ? "" : measurements.front().gpu, date, {}};
  if (!before.empty()) {
    records::Records others = records::parse_records(before, table_so_far);
    records::expect_gpu(others.gpu, records.gpu);
    records.all_reduces = std::move(others.all_reduces);
    records.products = std::move(others.products);
    const auto measured = [&](const records::Record& r) {
      return std::any_of(measurements.begin(), measurements.end(),
                         [&](const Measurement& m) { return records::same_entry(m.problem, r.problem); });
    };
    std::erase_if(others.list, measured);
    records.list = std::move(others.list);
  }
  for (const Measurement& m : measurements) {
    const Measured& best = fastest(m);
    const records::Record record{m.problem, 0, 0, {best.strategy, best.knobs}, best.seconds, m.plans.front().seconds};
    const auto known = std::find_if(records.list.begin(), records.list.end(), [&](const records::Record& r) {
      return records::same_entry(r.problem, record.problem);
    });
    // Between two records of one M there are no rows for a third.
    if (known == records.list.end())
      records.list.push_back(record);
    else if (record.seconds < known->seconds)
      *known = record;
  }
  records::set_ranges(records);
  return records::to_json(records);
}

std::vector<Problem> problems_of_lines(std::string_view text, std::string_view where) {
  return records::problems_of_lines(text, where);
}

std::string change_of_table(std::string_view before, std::string_view after) {
  const auto read = [](std::string_view text) {
    return text.empty() ? records::Records{} : records::parse_records(text, table_so_far);
  };
  const records::TableChange change = records::change_between(read(before), read(after));
  return fmt::format("{} entries added, {} replaced, {} kept", change.added, change.replaced, change.kept);
}

std::string gpu_of_table(std::string_view text) { return records::parse_records(text, table_so_far).gpu; }

std::string knobs_to_json(const Knobs& knobs) { return plan::to_json(knobs); }

int measure(const MeasureRequest& request, const std::function<void(const Measurement&)>& report) {
  IMBREX_EXPECTS(!request.problems.empty() || request.next, "there is no problem to measure");
  IMBREX_EXPECTS(request.rounds >= 1 && request.runs >= 0 && request.runs % 2 == 0,
                 "{} rounds of {} runs: there must be one round at least, and an even number of runs", request.rounds,
                 request.runs);
  const int ranks = request.ranks;
  for (const Problem& p : request.problems) {
    validate(p);
    IMBREX_EXPECTS(p.ranks == ranks, "a problem of {} ranks among those of {}", p.ranks, ranks);
  }
  for (const std::string& text : request.tries) static_cast<void>(with_changes({}, text));
  choose::GpuKind gpus;
  const std::string refusal = refusal_of_ranks(ranks, request.threads, World::launched(), gpus, true);
  IMBREX_EXPECTS(refusal.empty(), "measuring needs GPUs: {}", refusal);
  if (!request.gpu.empty()) records::expect_gpu(request.gpu, gpus.name);
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.heap_bytes = 1 << 20;
  const auto body = [&](World& world) {
    Meter meter(world, request, gpus);
    const auto measure_one = [&](const Problem& problem) {
      const Measurement measurement = meter.measure(problem);
      if (world.rank() == 0) report(measurement);
    };
    for (const Problem& problem : request.problems) measure_one(problem);
    while (const auto problem = next_problem(world, request)) measure_one(*problem);
    return 0;
  };
  return run_ranks(ranks, request.threads, options, body);
}

}  // namespace imbrex::program
