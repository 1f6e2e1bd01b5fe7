#include "llama_mlp_prediction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/ops.hpp"

namespace llama_mlp {

using namespace imbrex;

Problem up_problem(const Sizes& s, int ranks) {
  return {Operator::all_gather_gemm, s.tokens, 2 * s.inner, s.hidden, ranks, Type::bf16};
}

Problem down_problem(const Sizes& s, int ranks) {
  return {Operator::gemm_reduce_scatter, s.tokens, s.hidden, s.inner, ranks, Type::bf16};
}

Plans choose_plans(const Machine& machine, const Sizes& sizes, int ranks, std::optional<Strategy> strategy) {
  OperatorOptions options;
  options.strategy = strategy;
  return {choose_plan(up_problem(sizes, ranks), machine, options),
          choose_plan(down_problem(sizes, ranks), machine, options)};
}

Prediction predict(const Machine& machine, const Plans& plans) {
  Prediction prediction;
  SimulateOptions options;
  options.timeline = true;
  const auto simulator = make_simulator(machine, options);
  for (const Plan* plan : {&plans.up, &plans.down}) {
    const Report report = simulator->prepare(*plan)->run({});
    for (Span span : report.timeline.spans) {
      if (span.rank != 0) continue;
      span.begin += prediction.seconds, span.end += prediction.seconds;
      prediction.timeline.spans.push_back(std::move(span));
    }
    prediction.seconds += report.seconds;
  }
  prediction.overlap = overlap_of(prediction.timeline, 0);
  return prediction;
}

std::string describe(const char* what, const Prediction& sequence, const Prediction& chosen) {
  const auto us = [](double seconds) { return fmt::format("{:.1f} us", seconds * 1e6); };
  const Overlap& o = chosen.overlap;
  return fmt::format(
      "  {:<27} {:>10} in sequence, {:>10} as chosen ({:.2f}x); communication takes {}, {} of it hidden\n", what,
      us(sequence.seconds), us(chosen.seconds), sequence.seconds / chosen.seconds, us(o.communication),
      o.hidden > 0 ? us(o.hidden) : "none");
}

std::string draw(const std::string& title, const Machine& machine, Prediction sequence, Prediction chosen) {
  const Overlap& o = chosen.overlap;
  sequence.timeline.title = "in sequence: products, then collectives";
  sequence.timeline.source = fmt::format("rank 0 of {}, simulated on {}", machine.devices, machine.about);
  chosen.timeline.title = fmt::format("overlapped, {:.0f} % of the communication hidden behind computation",
                                      100 * o.hidden / std::max(o.communication, 1e-12));
  return to_svg(title, {std::move(sequence.timeline), std::move(chosen.timeline)});
}

}  // namespace llama_mlp
