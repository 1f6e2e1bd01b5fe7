// embedding_all_to_all on the command line, and its run.
#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "output/colour.hpp"
#include "own_operators.hpp"
#include "program/embedding/bench_embedding.hpp"
#include "program/embedding/tables_file.hpp"
#include "run_options.hpp"
#include "tune/tuning.hpp"

namespace imbrex::cli {
namespace {

constexpr const char* embedding_name = "embedding_all_to_all";

void report(const Program& program, const program::EmbeddingRequest& asked, const program::EmbeddingResult& result) {
  const EmbeddingShape& shape = asked.shape;
  Json json{{"exit_code", asked.verify && !result.verified ? 1 : 0},
            {"problem",
             {{"operator", embedding_name},
              {"batch", shape.batch},
              {"ranks", asked.ranks},
              {"type", name_of(shape.out)},
              {"rows", name_of(shape.rows)},
              {"tables", shape.tables.size()},
              {"shards", result.shards},
              {"indices", result.indices}}},
            {"strategy", name_of(result.strategy)},
            {"device", name_of(result.device)},
            {"digest", result.digest},
            {"seconds", result.seconds}};
  if (shape.optimizer) json["optimizer"] = name_of(*shape.optimizer), json["update_seconds"] = result.update_seconds;
  if (asked.verify) {
    json["verified"] = result.verified;
    json["max_error_over_bound"] =
        std::isfinite(result.max_error_over_bound) ? Json(result.max_error_over_bound) : Json(nullptr);
  }
  if (!result.message.empty()) json["message"] = result.message;
  std::string why;
  if (!asked.strategy && !asked.plan) {
    const bool fused = result.strategy == Strategy::fused;
    why = describe(
        result.strategy,
        {fused ? "ranks reach each other's memory" : "IMBREX_PEER_ACCESS=0 keeps ranks from each other's memory", {}});
    json["why"] = why;
  }
  print_json(program, json);

  print(program, "{} of {} rows in {} tables of {} ({} shards, {} indices), {} out, {} ranks on {}, {}: {}{}",
        embedding_name, shape.batch, shape.tables.size(), name_of(shape.rows), result.shards, result.indices,
        name_of(shape.out), asked.ranks, name_of(result.device), name_of(result.strategy),
        readable_seconds(*std::min_element(result.seconds.begin(), result.seconds.end())),
        result.seconds.size() > 1 ? fmt::format(", the best of {}", result.seconds.size()) : "");
  if (!why.empty()) print(program, "{}", why);
  if (shape.optimizer)
    print(program, "a step of {}: {}", name_of(*shape.optimizer), readable_seconds(result.update_seconds));
  if (!asked.verify) return;
  print(program, "{}: the largest error is {:.3g} of its bound", verdict_of(program, result.verified),
        result.max_error_over_bound);
  if (!result.verified) print_error("imbrex: " + result.message);
}

class EmbeddingAllToAllOptions final : public OwnOperator {
 public:
  std::string_view name() const override { return embedding_name; }

  bool shares(std::string_view option) const override {
    constexpr std::string_view names[] = {
        "OP",           "--ranks",         "--type",   "--strategy", "--tile-m", "--chunks",  "--seed", "--out",
        "--verify",     "--repeat",        "--device", "--world",    "--json",   "--workers", "--plan", "--machine",
        "--wait-limit", "--ranks-per-gpu", "--trace",  "--nodes",    "--ops",    "--rounds",  "--runs"};
    return std::find(std::begin(names), std::end(names), option) != std::end(names);
  }

  std::string_view examples() const override {
    return "  imbrex run embedding_all_to_all --tables tables.json --batch 4096 --optimizer sgd --verify";
  }

  void add_to(CLI::App& command) override;
  void add_run_to(CLI::App& command) override;

  Problem problem(const PlanOptions& plan) const override {
    return program::problem_of(shape(plan.type, batch_), static_cast<int>(plan.ranks));
  }

  Json json(const Problem& problem) const override {
    return {{"operator", embedding_name},
            {"batch", problem.m},
            {"ranks", problem.ranks},
            {"type", name_of(problem.type)},
            {"rows", name_of(problem.tables.rows)},
            {"shards", problem.tables.shards.size()}};
  }

  std::string title(const Problem& problem) const override {
    return fmt::format("{} of {} rows in {} shards of {}, {} out", embedding_name, problem.m,
                       problem.tables.shards.size(), name_of(problem.tables.rows), name_of(problem.type));
  }

  int run(const Program& program, const PlanOptions& plan, const RunOptions& options) const override;

  bool is_timed() const override { return true; }
  void add_bench_to(CLI::App& command) override;
  int bench(const Program& program, const BenchOptions& options) const override;

 private:
  void add_tables_to(CLI::App& command);
  void add_bags_to(CLI::App& command);
  // What --tables says, of a batch of `batch` and `out`.
  EmbeddingShape shape(Type out, std::int64_t batch) const;

  std::string tables_, device_ = "auto";
  std::int64_t batch_ = 0, ranks_per_gpu_ = 1;
  std::vector<std::int64_t> batches_;
  Pooling pooling_ = Pooling::sum;
  IndexType index_type_ = IndexType::int64;
  std::optional<Optimizer> optimizer_;
  program::BagPaths files_;
  bool weighted_ = false;
  double rate_ = 0.01;
  CLI::App* app_ = nullptr;
};

void EmbeddingAllToAllOptions::add_tables_to(CLI::App& command) {
  command.add_option("--tables", tables_, "The tables, JSON (docs/embedding.md says what it holds)")
      ->type_name("FILE|-")
      ->group(embedding_name);
}

void EmbeddingAllToAllOptions::add_to(CLI::App& command) {
  add_tables_to(command);
  add_integer(command, "--batch", batch_, 1, (std::int64_t{1} << 31) - 1,
              "Rows of the global batch, which the ranks share out")
      ->group(embedding_name);
}

EmbeddingShape EmbeddingAllToAllOptions::shape(Type out, std::int64_t batch) const {
  if (tables_.empty() || batch == 0)
    refuse(fmt::format("{} is missing; {} needs --tables and --batch", tables_.empty() ? "--tables" : "--batch",
                       embedding_name));
  EmbeddingShape shape = program::parse_tables(read_file(tables_), tables_);
  shape.batch = batch;
  shape.out = out;
  return shape;
}

void EmbeddingAllToAllOptions::add_bags_to(CLI::App& command) {
  add_named<Pooling>(command, "--pooling", pooling_, parse_pooling, "sum (default) or mean")->group(embedding_name);
  add_named<IndexType>(command, "--index-type", index_type_, parse_index_type, "int32 or int64 (default)")
      ->group(embedding_name);
  command.add_flag("--weighted", weighted_, "Multiply each row by a weight for its place in the bag")
      ->group(embedding_name);
}

void EmbeddingAllToAllOptions::add_run_to(CLI::App& command) {
  app_ = &command;
  add_bags_to(command);
  add_named<std::optional<Optimizer>>(
      command, "--optimizer", optimizer_,
      [](std::string_view text) -> std::optional<Optimizer> { return parse_optimizer(text); },
      "After the lookups, a step of sgd or row_wise_adagrad with gradients of the output")
      ->group(embedding_name);
  for (const auto& [name, to, about] :
       {std::tuple{"--indices", &files_.indices, "Indices of all tables' bags from this .npy file, int32 or int64"},
        {"--offsets", &files_.offsets,
         "With --indices: where each bag begins, tables x batch + 1 numbers, int32 or int64"},
        {"--weights", &files_.weights, "And a weight for each index, float32 or float16"}})
    command.add_option(name, *to, about)->type_name("FILE")->group(embedding_name);
  command
      .add_option("--table-files", files_.rows,
                  "Rows of table t from PREFIX<t>.npy, float32 or float16, its rows x its columns")
      ->type_name("PREFIX")
      ->group(embedding_name);
  add_number(command, "--rate", rate_, -1e30, 1e30, "Learning rate of that step (default 0.01)")->group(embedding_name);
}

int EmbeddingAllToAllOptions::run(const Program& program, const PlanOptions& plan, const RunOptions& options) const {
  if (options.world != "processes" && options.world != "threads")
    refuse(fmt::format("--world '{}': it must be processes or threads", options.world));
  if (app_->get_option("--trace")->count() > 0) refuse(fmt::format("--trace is not for a run of {}", embedding_name));
  if (files_.indices.empty() != files_.offsets.empty())
    refuse(fmt::format("{} is missing: --indices and --offsets must be given together",
                       files_.indices.empty() ? "--indices" : "--offsets"));
  if (!files_.weights.empty() && files_.indices.empty()) refuse("--weights needs --indices and --offsets");
  options.expect_writable_out();
  program::EmbeddingRequest request;
  request.device = device_named(options.device);
  if (auto given = plan.read_checked_plan()) request.plan = std::make_shared<const Plan>(*std::move(given));
  request.ranks = request.plan ? request.plan->problem.ranks : static_cast<int>(plan.ranks);
  request.shape = shape(request.plan ? request.plan->problem.type : plan.type, batch_);
  request.shape.pooling = pooling_;
  request.shape.index_type = index_type_;
  request.shape.weighted = weighted_ || !files_.weights.empty();
  request.files = files_;
  request.shape.optimizer = optimizer_;
  if (!request.plan) request.strategy = plan.chosen_strategy(), request.knobs = plan.chosen_knobs();
  request.seed = static_cast<std::uint64_t>(options.seed);
  request.rate = static_cast<float>(rate_);
  request.out_prefix = options.out;
  request.verify = options.verify;
  request.repeat = static_cast<int>(options.repeat);
  request.threads = options.world == "threads";
  request.workers = static_cast<int>(options.workers);
  request.ranks_per_gpu = static_cast<int>(options.ranks_per_gpu);
  request.wait_limit = options.wait_limit;
  std::optional<Progress> progress;
  if (!World::launched()) progress.emplace(fmt::format("running {} over {} ranks", embedding_name, request.ranks));
  const int code = program::run_embedding(
      request, [&](const program::EmbeddingResult& result) { report(program, request, result); });
  if (code >= static_cast<int>(ErrorCode::invalid_input))
    print_json(program, {{"exit_code", code}, {"error", "a rank failed; standard error has its message"}});
  return code;
}

void EmbeddingAllToAllOptions::add_bench_to(CLI::App& command) {
  add_tables_to(command);
  add_integers(command, "--batch", batches_, 1, (std::int64_t{1} << 31) - 1,
               "Rows of the global batch, which the ranks share out; each is timed")
      ->type_name("INT...")
      ->group(embedding_name);
  add_bags_to(command);
  command.add_option("--device", device_, "cpu, cuda, or auto (default), as for run")
      ->type_name("NAME")
      ->group(embedding_name);
  add_integer(command, "--ranks-per-gpu", ranks_per_gpu_, 1, max_ranks,
              "GPUs: ranks that share each GPU, as for run (default 1). Times say nothing about links if they share")
      ->group(embedding_name);
}

double over_sequential(const program::EmbeddingBenchResult& result, double seconds) {
  return seconds / result.ways.front().seconds;  // infinite where it was refused
}

Json batch_json(const program::EmbeddingBenchResult& result) {
  Json ways = Json::array();
  for (const auto& way : result.ways) {
    Json& json = ways.emplace_back(Json{{"strategy", name_of(way.strategy)}});
    if (!way.refusal.empty()) {
      json["refused"] = way.refusal;
      continue;
    }
    json["us"] = microseconds(way.seconds);
    if (result.ways.front().refusal.empty()) json["over_sequential"] = over_sequential(result, way.seconds);
  }
  return {{"batch", result.batch}, {"indices", result.indices}, {"shards", result.shards},
          {"runs", result.runs},   {"same_bits", result.alike}, {"strategies", std::move(ways)}};
}

void print_batch(const Program& program, const program::EmbeddingRequest& asked,
                 const program::EmbeddingBenchResult& result) {
  print(program, "{} of {} rows in {} tables of {} ({} indices), {} out, {} ranks on {}", embedding_name, result.batch,
        asked.shape.tables.size(), name_of(asked.shape.rows), result.indices, name_of(asked.shape.out), asked.ranks,
        name_of(result.device));
  for (const auto& way : result.ways) {
    const std::string told = !way.refusal.empty() ? "refused: " + way.refusal : readable_seconds(way.seconds);
    const bool compares = way.refusal.empty() && result.ways.front().refusal.empty();
    print(program, "  {:10}  {}{}", name_of(way.strategy), told,
          compares ? fmt::format(", {:.3f} of sequential", over_sequential(result, way.seconds)) : "");
  }
  if (!result.alike) print_error("imbrex: the strategies gave different bits");
}

int EmbeddingAllToAllOptions::bench(const Program& program, const BenchOptions& options) const {
  program::EmbeddingBenchRequest request;
  request.strategies = {Strategy::sequential};
  for (const Strategy strategy : {Strategy::decomposed, Strategy::fused})
    if (!options.strategy || *options.strategy == strategy) request.strategies.push_back(strategy);
  request.rounds = options.rounds, request.runs = options.runs;
  program::EmbeddingRequest& lookup = request.lookup;
  lookup.device = device_named(device_);
  lookup.ranks = options.ranks;
  lookup.threads = options.threads;
  lookup.ranks_per_gpu = static_cast<int>(ranks_per_gpu_);
  if (batches_.empty()) refuse(fmt::format("--batch is missing; {} needs --tables and --batch", embedding_name));
  lookup.shape = shape(options.type, batches_.front());
  lookup.shape.pooling = pooling_, lookup.shape.index_type = index_type_, lookup.shape.weighted = weighted_;
  request.batches = batches_;
  std::optional<Progress> progress;
  if (!World::launched()) progress.emplace(fmt::format("timing {} over {} ranks", embedding_name, lookup.ranks));
  Json rows = Json::array();
  return program::bench_embedding(request, [&](const program::EmbeddingBenchResult& result) {
    print_batch(program, lookup, result);
    rows.push_back(batch_json(result));
    if (rows.size() < batches_.size()) return;
    print_json(program, {{"operator", embedding_name},
                         {"date", today()},
                         {"device", name_of(result.device)},
                         {"ranks", options.ranks},
                         {"ranks_per_gpu", ranks_per_gpu_},
                         {"type", name_of(options.type)},
                         {"rows_type", name_of(lookup.shape.rows)},
                         {"tables", lookup.shape.tables.size()},
                         {"rounds", options.rounds},
                         {"rows", rows}});
  });
}

}  // namespace

std::shared_ptr<OwnOperator> make_embedding_all_to_all() { return std::make_shared<EmbeddingAllToAllOptions>(); }

}  // namespace imbrex::cli
