// embedding_all_to_all on the command line, and its run.
#include "embedding_options.hpp"

#include <algorithm>
#include <cmath>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "jobs/embedding/run_embedding.hpp"
#include "jobs/embedding/tables_file.hpp"

namespace imbrex::cli {
namespace {

constexpr const char* own_group = "embedding_all_to_all";

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_input, message); }

// The options of commands that it has a use for, besides its own.
bool shared(const std::string& name) {
  constexpr std::string_view names[] = {"OP",        "--ranks",      "--type",          "--strategy", "--tile-m",
                                        "--chunks",  "--seed",       "--out",           "--verify",   "--repeat",
                                        "--device",  "--world",      "--json",          "--workers",  "--plan",
                                        "--machine", "--wait-limit", "--ranks-per-gpu", "--trace",    "--nodes"};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Throws Error(invalid_input) for options of one operator that are given to another.
bool asked_for(const CLI::App& app, const std::string& op) {
  const bool asked = op == own_group;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const bool own = option->get_group() == own_group;
    if (own && !asked && !op.empty()) refuse(fmt::format("{} is about {}, not {}", option->get_name(), own_group, op));
    if (asked && !own && !shared(option->get_name()))
      refuse(fmt::format("{} is about operators with a GEMM, not {}", option->get_name(), own_group));
  }
  return asked;
}

void report(const Program& program, const jobs::EmbeddingRequest& asked, const jobs::EmbeddingResult& result) {
  const EmbeddingShape& shape = asked.shape;
  Json json{{"exit_code", asked.verify && !result.verified ? 1 : 0},
            {"problem",
             {{"operator", own_group},
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
  print_json(program, json);

  print(program, "{} of {} rows in {} tables of {} ({} shards, {} indices), {} out, {} ranks on {}, {}: {}{}",
        own_group, shape.batch, shape.tables.size(), name_of(shape.rows), result.shards, result.indices,
        name_of(shape.out), asked.ranks, name_of(result.device), name_of(result.strategy),
        readable_seconds(*std::min_element(result.seconds.begin(), result.seconds.end())),
        result.seconds.size() > 1 ? fmt::format(", the best of {}", result.seconds.size()) : "");
  if (shape.optimizer)
    print(program, "a step of {}: {}", name_of(*shape.optimizer), readable_seconds(result.update_seconds));
  if (!asked.verify) return;
  print(program, "{}: the largest error is {:.3g} of its bound", result.verified ? "right" : "WRONG",
        result.max_error_over_bound);
  if (!result.verified) print_error("imbrex: " + result.message);
}

}  // namespace

void EmbeddingOptions::add_to(CLI::App& command) {
  app = &command;
  command.add_option("--tables", tables, "The tables, JSON (docs/embedding.md says what it holds)")
      ->type_name("FILE|-")
      ->group(own_group);
  add_integer(command, "--batch", batch, 1, (std::int64_t{1} << 31) - 1,
              "Rows of the global batch, which the ranks share out")
      ->group(own_group);
}

bool EmbeddingOptions::asked_for(const std::string& op) const { return cli::asked_for(*app, op); }

EmbeddingShape EmbeddingOptions::shape(Type out) const {
  if (tables.empty() || batch == 0)
    refuse(fmt::format("{} is missing; {} needs --tables and --batch", tables.empty() ? "--tables" : "--batch",
                       own_group));
  EmbeddingShape shape = jobs::parse_tables(read_file(tables), tables);
  shape.batch = batch;
  shape.out = out;
  return shape;
}

void EmbeddingRunOptions::add_to(CLI::App& command) {
  app = &command;
  add_named<Pooling>(command, "--pooling", pooling, parse_pooling, "sum (default) or mean")->group(own_group);
  add_named<IndexType>(command, "--index-type", index_type, parse_index_type, "int32 or int64 (default)")
      ->group(own_group);
  command.add_flag("--weighted", weighted, "Multiply each row by a weight of its place in the bag")->group(own_group);
  add_named<std::optional<Optimizer>>(
      command, "--optimizer", optimizer,
      [](std::string_view text) -> std::optional<Optimizer> { return parse_optimizer(text); },
      "A step of sgd or row_wise_adagrad behind the lookups, by gradients of the output")
      ->group(own_group);
  add_number(command, "--rate", rate, -1e30, 1e30, "Learning rate of that step (default 0.01)")->group(own_group);
}

bool EmbeddingRunOptions::asked_for(const PlanOptions& plan) const { return plan.embedding.asked_for(plan.op); }

int EmbeddingRunOptions::run(const Program& program, const PlanOptions& plan, const RunOptions& options) const {
  if (options.world != "processes" && options.world != "threads")
    refuse(fmt::format("--world '{}': it must be processes or threads", options.world));
  for (const char* name : {"--plan", "--trace"})
    if (app->get_option(name)->count() > 0) refuse(fmt::format("{} is not for a run of {}", name, own_group));
  options.expect_writable_out();
  jobs::EmbeddingRequest request;
  request.device = device_named(options.device);
  request.ranks = static_cast<int>(plan.ranks);
  request.shape = plan.embedding.shape(plan.type);
  request.shape.pooling = pooling;
  request.shape.index_type = index_type;
  request.shape.weighted = weighted;
  request.shape.optimizer = optimizer;
  request.strategy = plan.chosen_strategy();
  request.knobs = plan.chosen_knobs();
  request.seed = static_cast<std::uint64_t>(options.seed);
  request.rate = static_cast<float>(rate);
  request.out_prefix = options.out;
  request.verify = options.verify;
  request.repeat = static_cast<int>(options.repeat);
  request.threads = options.world == "threads";
  request.workers = static_cast<int>(options.workers);
  request.ranks_per_gpu = static_cast<int>(options.ranks_per_gpu);
  request.wait_limit = options.wait_limit > 0 ? options.wait_limit : default_wait_limit();
  std::optional<Progress> progress;
  if (!World::launched()) progress.emplace(fmt::format("running {} over {} ranks", own_group, request.ranks));
  const int code =
      jobs::run_embedding(request, [&](const jobs::EmbeddingResult& result) { report(program, request, result); });
  if (code >= static_cast<int>(ErrorCode::invalid_input))
    print_json(program, {{"exit_code", code}, {"error", "a rank failed; standard error has its message"}});
  return code;
}

}  // namespace imbrex::cli
