// The MLP block of a Llama model, tensor- and sequence-parallel over R ranks:
//
//   y = (SiLU(x Wg) * (x Wu)) Wd
//
// x is split by rows (tokens), Wg and Wu by columns, Wd by rows. All-gather + GEMM brings every rank all tokens and
// gives it its columns of both products; GEMM + reduce-scatter adds the ranks' parts up and leaves each rank its
// tokens. Tensors come from .npy files; the result is compared with the unsharded block in float64, element by element.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/timeline.hpp"
#include "imbrex/world.hpp"
#include "llama_mlp_reference.hpp"
#include "llama_mlp_tensors.hpp"

namespace {

using namespace imbrex;
namespace fs = std::filesystem;
using llama_mlp::Sizes;
using llama_mlp::Tensors;

struct Arguments {
  std::string data;  // folder of x.npy, w_gate.npy, w_up.npy, w_down.npy; empty: made anew in the output folder
  std::string out = "out/demo";
  int ranks = 4;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help") {
      fmt::print(
          "usage: llama_mlp [--data DIR] [--out DIR] [--ranks R]\n\n"
          "Runs a Llama MLP over R CPU ranks on DIR/{{x,w_gate,w_up,w_down}}.npy (without --data: on tensors of\n"
          "1024 tokens, hidden size 1024, 2816 inner columns that it writes to the output folder first), compares\n"
          "with the unsharded block, and draws the timelines measured here and predicted for 4 H200s.\n");
      std::exit(0);
    }
    if (option != "--data" && option != "--out" && option != "--ranks")
      throw Error(ErrorCode::invalid_input, fmt::format("{} is not an option; see --help", option));
    if (i + 1 == argc) throw Error(ErrorCode::invalid_input, fmt::format("{} needs a value; see --help", option));
    const std::string value = argv[++i];
    if (option == "--data")
      arguments.data = value;
    else if (option == "--out")
      arguments.out = value;
    else
      arguments.ranks = std::atoi(value.c_str());
  }
  const int most = load_machine("4xh200").devices;
  if (arguments.ranks < 1 || arguments.ranks > most)
    throw Error(ErrorCode::invalid_input,
                fmt::format("--ranks {}: it must be from 1 to {}, the GPUs of the machine predicted for",
                            arguments.ranks, most));
  return arguments;
}

GemmShape up_shape(const Sizes& s) { return {s.tokens, 2 * s.inner, s.hidden, Type::bf16}; }
GemmShape down_shape(const Sizes& s) { return {s.tokens, s.hidden, s.inner, Type::bf16}; }

Problem problem_of(Operator op, const GemmShape& shape, int ranks) {
  return {op, shape.m, shape.n, shape.k, ranks, shape.type};
}

// The plans that suit `machine` best; they run here unchanged, so that both timelines show the same tasks.
struct Plans {
  Plan up, down;
};

Plans choose_plans(const Machine& machine, const Sizes& sizes, int ranks) {
  return {choose_plan(problem_of(Operator::all_gather_gemm, up_shape(sizes), ranks), machine),
          choose_plan(problem_of(Operator::gemm_reduce_scatter, down_shape(sizes), ranks), machine)};
}

OperatorOptions options_of(const Plan& plan) {
  OperatorOptions options{plan.strategy, plan.knobs, {}};
  options.cpu.timeline = true;
  options.device = Device::cpu;
  return options;
}

// One rank's part of the block. Returns its exit code: 0 if its tokens are right.
int run_rank(World& world, const Plans& plans, const Sizes& sizes, const std::string& data, const std::string& out) {
  const int ranks = world.size(), rank = world.rank();
  const Tensors tensors(data);
  const std::int64_t tokens = sizes.tokens / ranks, inner = sizes.inner / ranks;
  const auto x = tensors.x(rank * tokens, tokens);
  const auto w_up = tensors.gate_and_up(rank * inner, inner);
  const auto w_down = tensors.down(rank * inner, inner);

  AllGatherGemm up{world, up_shape(sizes), options_of(plans.up)};
  GemmReduceScatter down{world, down_shape(sizes), options_of(plans.down)};
  std::vector<std::uint16_t> both(static_cast<std::size_t>(sizes.tokens * 2 * inner)),
      y(static_cast<std::size_t>(tokens * sizes.hidden));

  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  Report first =
      up.run_and_wait({up.operand("a", x.data()), up.operand("b", w_up.data()), up.operand("out", both.data())});
  const auto h = llama_mlp::silu_and_gate(both, sizes.tokens, inner);
  const Report second =
      down.run_and_wait({down.operand("a", h.data()), down.operand("b", w_down.data()), down.operand("out", y.data())});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  const auto worst = llama_mlp::compare(tensors, sizes, ranks, rank * tokens, tokens, y);
  struct {
    double seconds, error;
  } own{seconds, worst}, all[max_ranks];
  world.all_gather(&own, all, sizeof own);
  auto& spans = first.timeline.spans;
  spans.insert(spans.end(), second.timeline.spans.begin(), second.timeline.spans.end());
  const auto gathered = gather_spans(world, spans);
  if (rank == 0) {
    double slowest = 0, error = 0;
    for (int r = 0; r < ranks; ++r) slowest = std::max(slowest, all[r].seconds), error = std::max(error, all[r].error);
    imbrex::write_file(fs::path(out) / "measured.svg",
                       to_svg({fmt::format("Llama MLP, {} tokens, hidden {}, inner {}, {} ranks", sizes.tokens,
                                           sizes.hidden, sizes.inner, ranks),
                               "measured on this host's CPU", gathered}));
    fmt::print("ran on {} CPU ranks in {:.1f} ms; largest error {:.3f} of its bound: {}\n", ranks, slowest * 1e3, error,
               error <= 1 ? "right" : "WRONG");
  }
  return worst <= 1 ? 0 : 1;
}

struct Prediction {
  double sequential = 0, chosen = 0;
  Timeline timeline;
};

// Both operators one after the other on `machine`, as users have it today and as `plans` say.
Prediction predict(const Machine& machine, const Plans& plans) {
  Prediction prediction;
  SimulateOptions options;
  options.timeline = true;
  const auto simulator = make_simulator(machine, options);
  OperatorOptions sequential;
  sequential.strategy = Strategy::sequential;
  for (const Plan* plan : {&plans.up, &plans.down}) {
    prediction.sequential += simulator->prepare(choose_plan(plan->problem, machine, sequential))->run({}).seconds;
    Report report = simulator->prepare(*plan)->run({});
    for (Span& span : report.timeline.spans) {
      span.begin += prediction.chosen, span.end += prediction.chosen;
      prediction.timeline.spans.push_back(std::move(span));
    }
    prediction.chosen += report.seconds;
  }
  return prediction;
}

void print_prediction(const char* what, const Prediction& p) {
  fmt::print("  {:<44} {:>9.1f} us in sequence, {:>9.1f} us overlapped: {:>8.1f} us hidden ({:.2f}x)\n", what,
             p.sequential * 1e6, p.chosen * 1e6, (p.sequential - p.chosen) * 1e6, p.sequential / p.chosen);
}

int run_demo(const Arguments& arguments) {
  fs::create_directories(arguments.out);
  std::string data = arguments.data;
  if (data.empty()) {
    data = (fs::path(arguments.out) / "tensors").string();
    llama_mlp::make_tensors(data, {1024, 1024, 2816});
  }
  const Sizes sizes = llama_mlp::sizes_of(data, arguments.ranks);
  fmt::print("Llama MLP: {} tokens, hidden {}, inner {}, bf16, tensors from {}\n", sizes.tokens, sizes.hidden,
             sizes.inner, data);
  const Machine h200 = load_machine("4xh200");
  const int ranks = arguments.ranks;
  const Plans plans = choose_plans(h200, sizes, ranks);
  const int code =
      run_processes(ranks, {}, [&](World& world) { return run_rank(world, plans, sizes, data, arguments.out); });
  if (code != 0) return code;

  Prediction same = predict(h200, plans);
  same.timeline.title = fmt::format("Llama MLP, {} tokens, hidden {}, inner {}, {} ranks", sizes.tokens, sizes.hidden,
                                    sizes.inner, ranks);
  same.timeline.source = "simulated on " + h200.name;
  imbrex::write_file(fs::path(arguments.out) / "predicted.svg", to_svg(same.timeline));
  fmt::print("predicted on {}:\n", h200.name);
  print_prediction("this block", same);
  print_prediction("Llama-3-8B's, 2048 tokens", predict(h200, choose_plans(h200, {2048, 4096, 14336}, ranks)));
  print_prediction("Llama-3-70B's, 8192 tokens", predict(h200, choose_plans(h200, {8192, 8192, 28672}, ranks)));
  fmt::print("timelines: {0}/measured.svg, {0}/predicted.svg\n", arguments.out);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_demo(parse(argc, argv));
  } catch (const Error& error) {
    fmt::print(stderr, "llama_mlp: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "llama_mlp: {}\n", error.what());
    return 3;
  }
}
