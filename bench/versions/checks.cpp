// Times the checker on recorded plans and a call of an operator on the CPU through one version's library, on command:
// "check I" answers the us that plan I's check takes, "call" a call's. compare_checks.py runs two such programs in
// turn. It compiles against any version since ddea326: what differs between their headers stands at the top.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "imbrex/ops.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace {

using namespace imbrex;
using Json = nlohmann::json;

#if __has_include("imbrex/operands.hpp")
void call(GemmOperator& op, void* a, void* b, void* out) {
  op.run({op.operand("a", a), op.operand("b", b), op.operand("out", out)});
}
#else
void call(GemmOperator& op, void* a, void* b, void* out) { op(a, b, out); }
#endif

Plan plan_of(const Json& r) {
  Knobs k;
  const Json& knobs = r.at("knobs");
  const auto set = [&](const char* name, auto& field) {
    if (knobs.contains(name)) knobs.at(name).get_to(field);
  };
  set("tile_m", k.tile_m), set("tile_n", k.tile_n), set("group", k.group), set("cluster", k.cluster);
  set("cluster_k", k.cluster_k), set("comm_rows", k.comm_rows), set("k_slices", k.k_slices), set("split_k", k.split_k);
  set("own_shift", k.own_shift), set("abreast", k.abreast), set("span_shards", k.span_shards);
  set("one_shot", k.one_shot), set("chunks", k.chunks), set("nodes", k.nodes);
  k.order = parse_tile_order(knobs.at("order").get<std::string>());
  k.transport = parse_transport(knobs.at("transport").get<std::string>());
  k.reducer = parse_reducer(knobs.at("reducer").get<std::string>());
  k.partial = parse_type(knobs.at("partial").get<std::string>());
  const Problem problem{parse_operator(r.at("op").get<std::string>()), r.at("m"), r.at("n"), r.at("k"), r.at("ranks"),
                        parse_type(r.at("type").get<std::string>())};
  return make_plan(problem, parse_strategy(r.at("strategy").get<std::string>()), k);
}

// The quickest of `times`, in us: other programs on the machine only add to it.
template <typename F>
double quickest(int times, F&& f) {
  double best = 1e300;
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: checks RECORDS.json   (compare_checks.py writes them)\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  const Json records = Json::parse(file);
  return run_threads(1, {.heap_bytes = 1 << 22}, [&](World& world) {
    OperatorOptions options;
    options.device = Device::cpu;
    AllGatherGemm op(world, {.m = 32, .n = 32, .k = 32, .type = Type::bf16}, options);
    std::vector<std::uint16_t> a(32 * 32), b(32 * 32), out(32 * 32);
    for (std::string line; std::getline(std::cin, line);) {
      if (line == "call") {
        std::printf("%.4f\n", quickest(30, [&] {
                                for (int i = 0; i < 100; ++i) call(op, a.data(), b.data(), out.data());
                              }) / 100);
      } else {
        const Plan plan = plan_of(records.at(std::stoul(line.substr(6))));
        bool sound = true;
        const double us = quickest(7, [&] { sound = !check(plan) && sound; });
        if (!sound) return 3;
        std::printf("%.3f\n", us);
      }
      std::fflush(stdout);
    }
    return 0;
  });
}
