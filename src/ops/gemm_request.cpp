#include "ops/gemm_request.hpp"

#include <memory>
#include <utility>

#include "base/check.hpp"
#include "choose/choose_gpu.hpp"
#include "execute/terms.hpp"
#include "ops/world_gpus.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/strategies.hpp"

namespace imbrex::ops {

Problem problem_of(Operator op, const GemmShape& shape, int ranks) {
  // B of e4m3 has one layout, which a problem's default stands for.
  const Layout b_layout =
      shape.type == Type::e4m3 && shape.b_layout == Layout::column_major ? Layout::row_major : shape.b_layout;
  return {op,       shape.m,      shape.n,          shape.k,   ranks,     shape.type, shape.bias,     shape.scales,
          b_layout, shape.more_n, shape.gathered_a, shape.lda, shape.ldb, shape.ldo,  shape.more_ldb, shape.more_ldo,
          {}};
}

GemmShape shape_of(const Problem& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .type = p.type,
          .bias = p.bias,
          .scales = p.scales,
          .b_layout = p.b_layout,
          .more_n = p.more_n,
          .gathered_a = p.gathered_a,
          .lda = p.lda,
          .ldb = p.ldb,
          .ldo = p.ldo,
          .more_ldb = p.more_ldb,
          .more_ldo = p.more_ldo};
}

void expect_own_plan(const Problem& problem, const GemmShape& shape, const OperatorOptions& options) {
  if (options.plan == nullptr) return;
  IMBREX_EXPECTS(!shape.any_m, "a plan is given with any_m: it is of one M");
  IMBREX_EXPECTS(shape.packed == plan::is_packed(options.plan->problem),
                 "packed = {}, and the plan that is given leaves its output {}", shape.packed,
                 shape.packed ? "in rows" : "packed");
  expect_plan_of(problem, options);
}

void expect_plan_of(const Problem& problem, const OperatorOptions& options) {
  IMBREX_EXPECTS(!options.strategy && !options.knobs && !options.codec,
                 "a plan is given, and {} with it: the plan says which",
                 options.strategy ? "a strategy"
                 : options.knobs  ? "knobs"
                                  : "a codec");
  if (options.plan->problem == problem) return;
  plan::Fields own, of_plan;
  plan::add_fields(own, problem);
  plan::add_fields(of_plan, options.plan->problem);
  for (std::size_t i = 0; i < own.size(); ++i)
    IMBREX_EXPECTS(own[i] == of_plan[i], "the plan is of a problem with {} = {}, the operator's has {}",
                   of_plan[i].first, of_plan[i].second, own[i].second);
}

plan::GivenKnobs given_of(const OperatorOptions& options) { return {options.knobs, options.fixed_knobs}; }

void expect_packable(const Problem& problem, bool any_m, const OperatorOptions& options) {
  IMBREX_EXPECTS(problem.op == Operator::gemm_all_reduce && !any_m && problem.ldo == 0,
                 "packed with {}{}{}: only gemm_all_reduce of one M and without ldo leaves its output packed",
                 name_of(problem.op), any_m ? " of any M" : "", problem.ldo == 0 ? "" : " with ldo");
  IMBREX_EXPECTS(options.strategy.value_or(Strategy::signaled) == Strategy::signaled,
                 "packed with strategy {}: only plans of strategy signaled leave their output packed",
                 name_of(*options.strategy));
  if (!given_of(options).all()) return;
  Problem packed = problem;
  packed.packed = plan::packed_blocks(problem, *options.knobs);
  validate(packed);
}

// A packed output lies as a plan's tiles do, so knobs are chosen first.
void choose_packed(World& world, bool on_gpus, Problem& problem, OperatorOptions& options) {
  options.strategy = Strategy::signaled;
  if (const plan::GivenKnobs given = given_of(options); !given.all()) {
    const std::shared_ptr<WorldGpus> gpus = on_gpus ? gpus_of(world, options.cuda) : nullptr;
    const bool there = gpus != nullptr && gpus->refusal.empty();
    options.knobs = choose::packed_knobs(problem, there ? &gpus->gpus : nullptr, options.codec, given);
    options.fixed_knobs.clear();
  }
  options.knobs->packed = true;
  problem.packed = plan::packed_blocks(problem, *options.knobs);
  validate(problem);
  plan::validate_knobs(problem, Strategy::signaled, *options.knobs);
}

runtime::Terms terms_of(const Problem& problem, bool any_m, const OperatorOptions& options, bool gpus_wanted,
                        bool checked) {
  runtime::Terms terms("an operator");
  plan::Fields fields;
  plan::add_fields(fields, problem);
  terms.add("any_m", any_m).add("IMBREX_CHECK_CALLS", checked);
  plan::add_fields(fields, options.strategy, given_of(options));
  execute::add(terms, fields);
  terms.add("plan", options.plan == nullptr ? "chosen" : "given");  // which one, its executor compares
  if (!options.knobs) terms.add("codec", options.codec ? name_of(*options.codec) : "none");
  terms.add("device", name_of(gpus_wanted ? options.device : Device::cpu));
  if (gpus_wanted) execute::add(terms, options.cuda);
  return terms;
}

// With the codec in its own place and in given knobs, whichever of the two the caller chose.
OperatorOptions with_codec(const Problem& problem, OperatorOptions options) {
  if (options.knobs) {
    std::optional<CodecPair>& known = options.knobs->codec;
    IMBREX_EXPECTS(!known || !options.codec || *known == *options.codec,
                   "codec {} and knob codec {}: they are one and the same", name_of(*options.codec), name_of(*known));
    if (!known && options.codec) {
      known = options.codec;
      if (!options.fixed_knobs.empty()) options.fixed_knobs.emplace_back("codec");
    }
    options.codec = known;
  }
  if (!options.codec) return options;
  Knobs knobs = options.knobs.value_or(Knobs{});
  knobs.codec = options.codec;
  plan::validate_knobs(problem, options.strategy.value_or(Strategy::sequential), knobs);
  return options;
}

}  // namespace imbrex::ops
