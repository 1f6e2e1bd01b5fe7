// imbrex run all_reduce: an all-reduce alone, exact or through a codec.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "output/colour.hpp"
#include "own_operators.hpp"
#include "program/all_reduce/run_all_reduce.hpp"
#include "run_options.hpp"

namespace imbrex::cli {
namespace {

constexpr std::string_view operator_name = "all_reduce";
constexpr const char* all_reduce_group = "all_reduce (an all-reduce alone)";

std::int64_t parse_exact_below(std::string_view text) {
  if (text == "auto") return exact_below_measured;
  std::int64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size() || bytes < 0)
    refuse(fmt::format("'{}' is no number of bytes, and not auto", text));
  return bytes;
}

void report(const Program& program, const program::AllReduceRequest& asked, const program::AllReduceResult& result) {
  const AllReduceReport& what = result.report;
  const std::string codec = asked.options.codec ? name_of(*asked.options.codec) : "exact";
  // JSON has no infinity.
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  Json json{{"exit_code", asked.verify && !result.verified ? 1 : 0},
            {"problem",
             {{"operator", operator_name},
              {"m", result.rows},
              {"n", result.cols},
              {"ranks", asked.ranks},
              {"type", name_of(asked.type)}}},
            {"codec", codec},
            {"algorithm", name_of(what.algorithm)},
            {"device", name_of(result.device)},
            {"seconds", result.seconds},
            {"non_finite", what.non_finite},
            {"exact", what.exact}};
  if (asked.rms_norm) {
    json["rms_norm"] = true;
    json["weight_type"] = name_of(asked.rms_norm->weight_type.value_or(asked.type));
  } else {
    json["largest_error"] = number(static_cast<double>(what.largest_error));
    json["groups"] = what.groups;
    json["raw_groups"] = what.raw_groups;
  }
  if (asked.verify) {
    json["verified"] = result.verified;
    json["max_error_over_bound"] = number(result.max_error_over_bound);
  }
  if (!result.message.empty()) json["message"] = result.message;
  print_json(program, json);

  print(program, "all_reduce {} x {} {}, {} ranks on {}, {}, {}: {}{}", result.rows, result.cols, name_of(asked.type),
        asked.ranks, name_of(result.device), asked.rms_norm ? "residual and RMSNorm" : codec, name_of(what.algorithm),
        readable_seconds(*std::min_element(result.seconds.begin(), result.seconds.end())),
        result.seconds.size() > 1 ? fmt::format(", the best of {}", result.seconds.size()) : "");
  const std::string odd = fmt::format("{} of {} elements are not finite", what.non_finite, result.rows * result.cols);
  if (asked.rms_norm)
    print(program, "{}", odd);
  else
    print(program, "no finite element is off by more than {:.3g}; {}{}", what.largest_error, odd,
          asked.options.tolerance ? fmt::format("; {} of {} groups travelled raw", what.raw_groups, what.groups) : "");
  if (!asked.verify) return;
  print(program, "{}: the largest error is {:.3g} of its bound", verdict_of(program, result.verified),
        result.max_error_over_bound);
  if (!result.verified) print_error("imbrex: " + result.message);
}

class AllReduceRun final : public RunAlone {
 public:
  std::string_view name() const override { return operator_name; }
  std::string group() const override { return all_reduce_group; }

  bool shares(std::string_view option) const override {
    constexpr std::string_view names[] = {"OP",       "--m",     "--n",          "--ranks",  "--type",
                                          "--a",      "--seed",  "--out",        "--verify", "--repeat",
                                          "--device", "--world", "--wait-limit", "--json",   "--codec"};
    return std::find(std::begin(names), std::end(names), option) != std::end(names);
  }

  std::string_view examples() const override {
    return "  imbrex run all_reduce --m 512 --n 4096 --codec int4+int8 --verify\n"
           "  imbrex run all_reduce --m 16 --n 8192 --rms-norm --verify";
  }

  void add_run_to(CLI::App& command) override;

  int run(const Program& program, const PlanOptions& plan, const RunOptions& run) const override;

 private:
  program::AllReduceRequest request(const PlanOptions& plan, const RunOptions& run) const;

  AllReduceOptions options_;
  double tolerance_ = 0, eps_ = 1e-6;
  bool rms_norm_ = false;
  std::string residual_, weight_;
  Type weight_type_{};
  std::int64_t ctas_ = 0;
  CLI::App* app_ = nullptr;
};

void AllReduceRun::add_run_to(CLI::App& command) {
  app_ = &command;
  add_named<AllReduceAlgorithm>(command, "--algorithm", options_.algorithm, parse_all_reduce_algorithm,
                                "auto (default), one_shot, two_shot or ring")
      ->group(all_reduce_group);
  add_number(command, "--tolerance", tolerance_, 0, 1e30,
             "Largest error that the codec may cause; groups that could exceed it travel as elements")
      ->group(all_reduce_group);
  command.add_flag("--whole-call", options_.whole_call, "Sum exactly if one group could exceed the tolerance")
      ->group(all_reduce_group);
  add_named<std::int64_t>(
      command, "--exact-below", options_.exact_below, parse_exact_below,
      "Sum tensors of fewer bytes exactly (default 0); auto: those that the codec does not speed up")
      ->type_name("BYTES")
      ->group(all_reduce_group);
  command.add_flag("--batch-invariant", options_.batch_invariant, "Let no row depend on the number of rows")
      ->group(all_reduce_group);
  command
      .add_flag("--rms-norm", rms_norm_,
                "Add a residual to the sum, and normalise its rows by their root mean square: exact sums only")
      ->group(all_reduce_group);
  add_number(command, "--eps", eps_, 0, 1e30, "What --rms-norm adds to the mean of the squares (default 1e-6)")
      ->group(all_reduce_group);
  command.add_option("--residual", residual_, "The residual of --rms-norm, .npy, M x N; without it random")
      ->type_name("FILE")
      ->group(all_reduce_group);
  command.add_option("--weight", weight_, "The weight of --rms-norm, .npy, N elements; without it random")
      ->type_name("FILE")
      ->group(all_reduce_group);
  add_named<Type>(command, "--weight-type", weight_type_, parse_type,
                  "The weight's type: fp32, or that of the rows (default)")
      ->group(all_reduce_group);
  add_integer(command, "--ctas", ctas_, 0, 1024, "GPUs: thread blocks to use; 0 (default): by size")
      ->group(all_reduce_group);
}

program::AllReduceRequest AllReduceRun::request(const PlanOptions& plan, const RunOptions& run) const {
  if (run.world != "processes" && run.world != "threads")
    refuse(fmt::format("--world '{}': it must be processes or threads", run.world));
  if (!run.a.empty() && app_->get_option("--seed")->count() > 0) refuse("--seed is about random tensors; --a is given");
  if (run.a.empty() || plan.m > 0 || plan.n > 0)
    for (const auto& [name, value] : {std::pair{"--m", plan.m}, {"--n", plan.n}})
      if (value == 0) refuse(fmt::format("{} is missing; all_reduce needs --m and --n, or --a", name));
  for (const char* name : {"--eps", "--residual", "--weight", "--weight-type"})
    if (!rms_norm_ && app_->get_option(name)->count() > 0) refuse(fmt::format("{} is about --rms-norm", name));
  for (const char* name : {"--codec", "--tolerance", "--whole-call", "--exact-below"})
    if (rms_norm_ && app_->get_option(name)->count() > 0)
      refuse(fmt::format("{} with --rms-norm, which goes with exact sums only", name));
  run.expect_writable_out();
  program::AllReduceRequest request;
  if (rms_norm_) request.rms_norm = program::RmsNormRequest{static_cast<float>(eps_), residual_, weight_};
  if (app_->get_option("--weight-type")->count() > 0) request.rms_norm->weight_type = weight_type_;
  request.device = parse_device(run.device);
  request.ranks = static_cast<int>(plan.ranks);
  request.type = plan.type;
  request.rows = plan.m;
  request.cols = plan.n;
  request.options = options_;
  request.options.codec = codec_named(plan.codec);
  if (app_->get_option("--tolerance")->count() > 0) request.options.tolerance = static_cast<float>(tolerance_);
  if (ctas_ > 0 && request.device == Device::cpu)
    refuse(fmt::format("--ctas {}: it is about GPUs, and --device is cpu", ctas_));
  request.options.ctas = static_cast<int>(ctas_);
  request.seed = static_cast<std::uint64_t>(run.seed);
  request.a_path = run.a;
  request.out_prefix = run.out;
  request.verify = run.verify;
  request.repeat = static_cast<int>(run.repeat);
  request.threads = run.world == "threads";
  request.wait_limit = run.wait_limit;
  return request;
}

int AllReduceRun::run(const Program& program, const PlanOptions& plan, const RunOptions& shared_options) const {
  const program::AllReduceRequest asked = request(plan, shared_options);
  std::optional<Progress> progress;
  if (!World::launched()) progress.emplace(fmt::format("running {} over {} ranks", operator_name, asked.ranks));
  const int code =
      program::run_all_reduce(asked, [&](const program::AllReduceResult& result) { report(program, asked, result); });
  if (code >= static_cast<int>(ErrorCode::invalid_input))
    print_json(program, {{"exit_code", code}, {"error", "a rank failed; standard error has its message"}});
  return code;
}

}  // namespace

std::shared_ptr<OwnOperator> make_all_reduce() { return std::make_shared<AllReduceRun>(); }

}  // namespace imbrex::cli
