#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "imbrex/ops.hpp"
#include "simulate/plans.hpp"

namespace imbrex::test {
namespace {

Timeline small() {
  Timeline t{"a <title> & \"more\"", "simulated on x\n", {}};
  for (int w = 0; w < 12; ++w) t.spans.push_back({0, "sm " + std::to_string(w), "tile", Span::Kind::compute, 0, 1e-5});
  t.spans.push_back({0, "copy engine", "copy \"quoted\" \\ \xff", Span::Kind::copy, 1e-6, 2e-6});
  t.spans.push_back({1, "worker 0", "wait <signal>", Span::Kind::wait, 0, 5e-6});
  return t;
}

TEST(Timeline, PerfettoIsValidJson) {
  const auto parsed = nlohmann::json::parse(to_perfetto(small()));
  std::size_t spans = 0, rows = 0;
  for (const auto& event : parsed.at("traceEvents")) {
    if (event.at("ph") == "X") {
      ++spans;
      EXPECT_GE(event.at("dur").get<double>(), 0);
    }
    rows += event.at("ph") == "M" && event.at("name") == "thread_name";
  }
  EXPECT_EQ(spans, 14u);
  EXPECT_EQ(rows, 14u);
  EXPECT_EQ(parsed.at("otherData").at("title"), "a <title> & \"more\"");
}

TEST(Timeline, SvgEscapesAndShowsWaits) {
  const std::string svg = to_svg(small());
  EXPECT_NE(svg.find("a &lt;title&gt; &amp; &quot;more&quot;"), std::string::npos);
  EXPECT_NE(svg.find("wait &lt;signal&gt;"), std::string::npos);
  EXPECT_NE(svg.find("fill=\"url(#wait)\""), std::string::npos);
  EXPECT_NE(svg.find("12 SMs"), std::string::npos);
  EXPECT_NE(svg.find("time, µs"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(Timeline, RunsAreDrawnOneAboveTheOther) {
  Timeline slow = small(), fast{"fast & more", "simulated on x", {}};
  fast.spans.push_back({0, "sm 0", "the only tile", Span::Kind::compute, 0, 5e-6});
  const std::string svg = to_svg("two <runs>", {slow, fast});
  const std::size_t title = svg.find("two &lt;runs&gt;"),
                    first = svg.find(">a &lt;title&gt; &amp; &quot;more&quot;: 10 µs<"),
                    second = svg.find(">fast &amp; more: 5 µs<");
  EXPECT_LT(title, first);
  EXPECT_LT(first, second);
  ASSERT_NE(second, std::string::npos);
  // On one axis: half as long, half as wide. A whole run is 1200 - 150 - 24 wide.
  EXPECT_NE(svg.find("width=\"513.00\"", second), std::string::npos);
  EXPECT_EQ(svg.find("time, µs"), svg.rfind("time, µs"));
  EXPECT_TRUE(to_svg("none", {}).ends_with("</svg>\n"));
}

TEST(Timeline, OverlapsCountEachMomentOnce) {
  Timeline t;
  const auto add = [&](int rank, Span::Kind kind, double begin, double end) {
    t.spans.push_back({rank, "row", "", kind, begin, end});
  };
  add(0, Span::Kind::compute, 0, 4);
  add(0, Span::Kind::compute, 1, 5);    // beside the first
  add(0, Span::Kind::reduction, 8, 9);  // computes, too
  add(0, Span::Kind::copy, 3, 6);
  add(0, Span::Kind::collective, 5.5, 8.5);
  add(0, Span::Kind::wait, 0, 20);
  add(0, Span::Kind::signal, 0, 20);
  add(1, Span::Kind::copy, 0, 20);
  const Overlap overlap = overlap_of(t, 0);
  EXPECT_DOUBLE_EQ(overlap.compute, 6);
  EXPECT_DOUBLE_EQ(overlap.communication, 5.5);
  EXPECT_DOUBLE_EQ(overlap.hidden, 2.5);
  EXPECT_DOUBLE_EQ(overlap_of(t, 1).hidden, 0);
  EXPECT_DOUBLE_EQ(overlap_of({}, 0).communication, 0);
}

// A sequence hides nothing; a fused plan of the same problem hides most of what it sends.
TEST(Timeline, FusedPlansHideWhatSequencesDoNot) {
  const Machine machine = load_machine("4xh200");
  const Problem problem{Operator::gemm_reduce_scatter, 4096, 4096, 4096, 4, Type::bf16};
  const auto of = [&](Strategy strategy) {
    OperatorOptions options;
    options.strategy = strategy;
    return overlap_of(simulate(choose_plan(problem, machine, options), machine, {.timeline = true}).timeline, 0);
  };
  const Overlap sequence = of(Strategy::sequential), fused = of(Strategy::fused);
  EXPECT_EQ(sequence.hidden, 0);
  EXPECT_GT(sequence.communication, 0);
  EXPECT_GT(fused.hidden, 0.8 * fused.communication);
}

TEST(Timeline, EmptyTimelinesAreDrawn) {
  EXPECT_NO_THROW(nlohmann::json::parse(to_perfetto({})));
  EXPECT_TRUE(to_svg({}).ends_with("</svg>\n"));
}

TEST(Timeline, SimulatedSpansLieWithinTheRunAndDoNotOverlapOnARow) {
  Knobs knobs;
  knobs.transport = Transport::store;
  const Plan plan = make_plan({Operator::gemm_reduce_scatter, 2048, 2048, 2048, 4, Type::bf16}, Strategy::fused, knobs);
  const Report report = simulate(plan, load_machine("4xh200"), {.timeline = true});
  std::map<std::pair<int, std::string>, std::vector<std::pair<double, double>>> rows;
  std::set<Span::Kind> kinds;
  for (const Span& span : report.timeline.spans) {
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, report.seconds * (1 + 1e-9));
    rows[{span.rank, span.row}].emplace_back(span.begin, span.end);
    kinds.insert(span.kind);
  }
  EXPECT_TRUE(kinds.contains(Span::Kind::wait));
  EXPECT_TRUE(kinds.contains(Span::Kind::compute));
  EXPECT_TRUE(rows.contains({3, "egress"}) && rows.contains({0, "ingress"}));
  for (auto& [row, spans] : rows) {
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i) ASSERT_GE(spans[i].first, spans[i - 1].second - 1e-12) << row.second;
  }
  EXPECT_EQ(report.timeline.source, "simulated on 4xh200");
}

}  // namespace
}  // namespace imbrex::test
