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
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/gpu.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/timeline.hpp"
#include "imbrex/world.hpp"
#include "llama_mlp_prediction.hpp"
#include "llama_mlp_reference.hpp"
#include "llama_mlp_tensors.hpp"

namespace {

using namespace imbrex;
namespace fs = std::filesystem;
using llama_mlp::choose_plans;
using llama_mlp::Plans;
using llama_mlp::predict;
using llama_mlp::Prediction;
using llama_mlp::Sizes;
using llama_mlp::Tensors;

constexpr int most_ranks = 4;  // the GPUs of the machine predicted for

struct Arguments {
  std::string data;  // folder of x.npy, w_gate.npy, w_up.npy, w_down.npy; empty: made anew in the output folder
  std::string out = "out/demo";
  std::string device = "auto";
  int ranks = 0;  // as many as suit the device
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help") {
      fmt::print(
          "usage: llama_mlp [--data DIR] [--out DIR] [--ranks R] [--device auto|cpu]\n\n"
          "Runs a Llama MLP over R ranks on DIR/{{x,w_gate,w_up,w_down}}.npy (without --data: on tensors of 1024\n"
          "tokens, hidden size 1024, 2816 inner columns that it writes to the output folder first), compares with\n"
          "the unsharded block, and draws its timeline. Ranks work on GPUs where there are some: a rank on each, or\n"
          "two on one; else four work on the CPU. Then it predicts for 4 H200s what overlapping gains, and draws\n"
          "that for a large layer.\n");
      std::exit(0);
    }
    if (option != "--data" && option != "--out" && option != "--ranks" && option != "--device")
      throw Error(ErrorCode::invalid_input, fmt::format("{} is not an option; see --help", option));
    if (i + 1 == argc) throw Error(ErrorCode::invalid_input, fmt::format("{} needs a value; see --help", option));
    const std::string value = argv[++i];
    if (option == "--ranks") {
      arguments.ranks = std::atoi(value.c_str());
      if (arguments.ranks < 1 || arguments.ranks > most_ranks)
        throw Error(ErrorCode::invalid_input, fmt::format("--ranks {}: it must be from 1 to {}", value, most_ranks));
    } else {
      (option == "--data" ? arguments.data : option == "--out" ? arguments.out : arguments.device) = value;
    }
  }
  if (arguments.device != "auto" && arguments.device != "cpu")
    throw Error(ErrorCode::invalid_input, fmt::format("--device '{}': it must be auto or cpu", arguments.device));
  return arguments;
}

// Where the ranks work, and how many there are.
struct Place {
  Device device = Device::cpu;
  int ranks = 4, ranks_per_gpu = 1;
  std::string gpus;  // "4 x NVIDIA H200"
};

// Several GPUs take a rank each; one is shared by two.
Place find_place(const Arguments& arguments) {
  Place place;
  if (arguments.ranks > 0) place.ranks = arguments.ranks;
  const GpuSurvey survey = arguments.device == "cpu" ? GpuSurvey{} : survey_gpus();
  const int gpus = static_cast<int>(survey.gpus.size());
  if (gpus == 0) return place;
  if (arguments.ranks == 0) place.ranks = gpus >= most_ranks ? most_ranks : 2;
  place.device = Device::automatic;
  place.ranks_per_gpu = (place.ranks + gpus - 1) / gpus;
  place.gpus = fmt::format("{} x {}", std::min(gpus, place.ranks), survey.gpus.front().name);
  return place;
}

GemmShape shape_of(const Problem& p) { return {p.m, p.n, p.k, p.type}; }

// On the CPU: the plans that would overlap on the predicted machine, so that both timelines show such tasks.
OperatorOptions options_on_cpu(const Plan& plan) {
  OperatorOptions options{plan.strategy, plan.knobs, {}};
  options.cpu.timeline = true;
  options.device = Device::cpu;
  return options;
}

// On GPUs: what suits them best; where ranks share one, what needs no library between them.
OperatorOptions options_on_gpus(const Place& place) {
  OperatorOptions options;
  if (place.ranks_per_gpu > 1) options.strategy = Strategy::fused;
  options.device = place.device;
  options.cuda.timeline = true;
  options.cuda.ranks_per_gpu = place.ranks_per_gpu;
  return options;
}

// The operators, on GPUs where they can be.
struct Operators {
  std::unique_ptr<AllGatherGemm> up;
  std::unique_ptr<GemmReduceScatter> down;
  std::string why_cpu;

  Operators(World& world, const Place& place, const Plans& plans) {
    if (place.device != Device::cpu) {
      make(world, plans, options_on_gpus(place), options_on_gpus(place));
      if (up->device() == Device::cuda && down->device() == Device::cuda) return;
      why_cpu = up->device() == Device::cuda ? down->why_cpu() : up->why_cpu();
      down.reset();
      up.reset();
    }
    make(world, plans, options_on_cpu(plans.up), options_on_cpu(plans.down));
  }

 private:
  void make(World& world, const Plans& plans, const OperatorOptions& up_options, const OperatorOptions& down_options) {
    up = std::make_unique<AllGatherGemm>(world, shape_of(plans.up.problem), up_options);
    down = std::make_unique<GemmReduceScatter>(world, shape_of(plans.down.problem), down_options);
  }
};

std::string words_of(const Place& place, const Operators& operators) {
  if (operators.up->device() == Device::cuda)
    return place.ranks_per_gpu == 1 ? fmt::format("{}, a rank each", place.gpus)
                                    : fmt::format("{}, shared by {} ranks", place.gpus, place.ranks);
  if (!operators.why_cpu.empty()) fmt::print("not on GPUs: {}\n", operators.why_cpu);
  return fmt::format("{} CPU ranks", place.ranks);
}

// One rank's part of the block. Returns its exit code: 0 if its tokens are right.
int run_rank(World& world, const Place& place, const Plans& plans, const Sizes& sizes, const std::string& data,
             const std::string& out) {
  const int ranks = world.size(), rank = world.rank();
  const Tensors tensors(data);
  const std::int64_t tokens = sizes.tokens / ranks, inner = sizes.inner / ranks;
  const auto x = tensors.x(rank * tokens, tokens);
  const auto w_up = tensors.gate_and_up(rank * inner, inner);
  const auto w_down = tensors.down(rank * inner, inner);

  const Operators operators(world, place, plans);
  AllGatherGemm& up = *operators.up;
  GemmReduceScatter& down = *operators.down;
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
    const std::string words = words_of(place, operators);
    imbrex::write_file(fs::path(out) / "measured.svg",
                       to_svg({fmt::format("Llama MLP, {} tokens, hidden {}, inner {}, {} ranks", sizes.tokens,
                                           sizes.hidden, sizes.inner, ranks),
                               "measured on " + words, gathered}));
    fmt::print("ran on {} in {:.1f} ms, from and to the host's memory; largest error {:.3f} of its bound: {}\n", words,
               slowest * 1e3, error, error <= 1 ? "right" : "WRONG");
  }
  return worst <= 1 ? 0 : 1;
}

// Layers of several sizes on the machine: in sequence, and as auto chooses. The last one is drawn.
void predict_layers(const Machine& machine, const Sizes& own, const fs::path& picture) {
  struct Layer {
    const char* name;
    Sizes sizes;
  };
  const int ranks = machine.devices;
  const std::vector<Layer> layers{{"this block", own},
                                  {"Llama-3-8B's, 2048 tokens", {2048, 4096, 14336}},
                                  {"Llama-3-70B's, 8192 tokens", {8192, 8192, 28672}}};
  fmt::print("predicted on {}:\n", machine.name);
  for (const Layer& layer : layers) {
    if (layer.sizes.tokens % ranks != 0 || layer.sizes.inner % ranks != 0) continue;
    Prediction sequence = predict(machine, choose_plans(machine, layer.sizes, ranks, Strategy::sequential)),
               chosen = predict(machine, choose_plans(machine, layer.sizes, ranks));
    fmt::print("{}", llama_mlp::describe(layer.name, sequence, chosen));
    if (&layer == &layers.back())
      imbrex::write_file(picture, llama_mlp::draw("MLP of Llama-3-70B, 8192 tokens, over 4 GPUs", machine,
                                                  std::move(sequence), std::move(chosen)));
  }
}

int run_demo(const Arguments& arguments) {
  fs::create_directories(arguments.out);
  const Place place = find_place(arguments);
  std::string data = arguments.data;
  if (data.empty()) {
    data = (fs::path(arguments.out) / "tensors").string();
    llama_mlp::make_tensors(data, {1024, 1024, 2816});
  }
  const Sizes sizes = llama_mlp::sizes_of(data, place.ranks);
  fmt::print("Llama MLP: {} tokens, hidden {}, inner {}, bf16, tensors from {}\n", sizes.tokens, sizes.hidden,
             sizes.inner, data);
  const Machine h200 = load_machine("4xh200");
  const Plans plans = choose_plans(h200, sizes, place.ranks, Strategy::fused);
  std::fflush(stdout);  // before ranks have copies of it
  const int code = run_processes(
      place.ranks, {}, [&](World& world) { return run_rank(world, place, plans, sizes, data, arguments.out); });
  if (code != 0) return code;
  const fs::path folder = arguments.out;
  predict_layers(h200, sizes, folder / "predicted.svg");
  fmt::print("pictures: {} (the last line: in sequence above, overlapped below), {} (the run here)\n",
             (folder / "predicted.svg").string(), (folder / "measured.svg").string());
  if (place.device != Device::cpu && place.ranks_per_gpu == 1)
    fmt::print(
        "measure it on these GPUs: build/bin/imbrex bench --ops gemm_reduce_scatter --m 8192 --layers "
        "8192x28672 --ranks {}\n",
        place.ranks);
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
