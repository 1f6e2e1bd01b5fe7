// The two products of a tensor-parallel MLP on GPUs, on a stream of the program's own: eagerly, then from a graph.
//
//   imbrex launch -n 4 -- mlp_on_gpus [TOKENS HIDDEN INNER]
//
// Every rank holds TOKENS / R rows of x, INNER / R columns of the first weight and as many rows of the second.
// All-gather + GEMM brings every rank all tokens; GEMM + reduce-scatter adds the ranks' parts up and leaves each its
// tokens. Exits 77 where there are too few GPUs.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"

namespace {

using imbrex::Extent;

constexpr int warm_up = 3, passes = 20;

void expect(cudaError_t status) {
  if (status != cudaSuccess) throw imbrex::Error(imbrex::ErrorCode::runtime_failure, cudaGetErrorString(status));
}

std::uint16_t to_bf16(float value) {  // of powers of two
  std::uint32_t bits = 0;
  static_assert(sizeof bits == sizeof value);
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

float to_float(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

std::size_t elements(const Extent& extent) { return static_cast<std::size_t>(extent.rows * extent.cols); }

// A matrix of one value in the GPU's memory.
std::shared_ptr<void> matrix(const Extent& extent, float value) {
  const std::vector<std::uint16_t> host(elements(extent), to_bf16(value));
  void* p = nullptr;
  expect(cudaMalloc(&p, host.size() * sizeof host[0]));
  std::shared_ptr<void> owner(p, [](void* memory) { cudaFree(memory); });
  expect(cudaMemcpy(p, host.data(), host.size() * sizeof host[0], cudaMemcpyHostToDevice));
  expect(cudaDeviceSynchronize());  // the copy may still be under way, and the stream below does not wait for it
  return owner;
}

// Microseconds of one of `passes` passes.
template <typename Pass>
float time(cudaStream_t stream, Pass&& pass) {
  cudaEvent_t begin = nullptr, end = nullptr;
  expect(cudaEventCreate(&begin));
  expect(cudaEventCreate(&end));
  for (int i = 0; i < warm_up; ++i) pass();
  expect(cudaEventRecord(begin, stream));
  for (int i = 0; i < passes; ++i) pass();
  expect(cudaEventRecord(end, stream));
  expect(cudaEventSynchronize(end));
  float milliseconds = 0;
  expect(cudaEventElapsedTime(&milliseconds, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds * 1e3f / passes;
}

int run(std::int64_t tokens, std::int64_t hidden, std::int64_t inner) {
  const auto world = imbrex::World::from_environment();
  imbrex::AllGatherGemm up{*world, {.m = tokens, .n = inner, .k = hidden, .type = imbrex::Type::bf16}};
  imbrex::GemmReduceScatter down{*world, {.m = tokens, .n = hidden, .k = inner, .type = imbrex::Type::bf16}};
  if (up.device() != imbrex::Device::cuda || down.device() != imbrex::Device::cuda) {
    std::printf("rank %d: no GPUs for %d ranks: %s\n", world->rank(), world->size(), up.why_cpu().c_str());
    return 77;
  }
  constexpr float up_value = 1.0f / 1024, down_value = 1.0f / 512;
  const auto x = matrix(up.shapes().a, 1), w_up = matrix(up.shapes().b, up_value), h = matrix(up.shapes().out, 0),
             w_down = matrix(down.shapes().b, down_value), y = matrix(down.shapes().out, 0);
  cudaStream_t stream = nullptr;
  expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  const auto pass = [&] {
    up.run({up.operand("a", x.get()), up.operand("b", w_up.get()), up.operand("out", h.get())}, stream);
    down.run({down.operand("a", h.get()), down.operand("b", w_down.get()), down.operand("out", y.get())}, stream);
  };
  const float eager = time(stream, pass);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  pass();
  expect(cudaStreamEndCapture(stream, &graph));
  expect(cudaGraphInstantiate(&executable, graph, 0));
  const float replayed = time(stream, [&] { expect(cudaGraphLaunch(executable, stream)); });
  down.synchronize(stream);  // throws if a rank failed

  std::vector<std::uint16_t> result(elements(down.shapes().out));
  expect(cudaMemcpy(result.data(), y.get(), result.size() * sizeof result[0], cudaMemcpyDeviceToHost));
  const float expected = static_cast<float>(hidden) * up_value * static_cast<float>(inner) * down_value;
  int wrong = 0;
  for (const std::uint16_t value : result) wrong += std::abs(to_float(value) - expected) > expected / 64;
  std::printf("rank %d: %.1f us a pass, %.1f us from a graph; %d of %zu elements wrong\n", world->rank(),
              static_cast<double>(eager), static_cast<double>(replayed), wrong, result.size());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t sizes[] = {4096, 8192, 28672};
  if (argc != 1 && argc != 4) {
    std::fprintf(stderr, "usage: mlp_on_gpus [TOKENS HIDDEN INNER]\n");
    return 2;
  }
  for (int i = 1; i < argc; ++i) sizes[i - 1] = std::atoll(argv[i]);
  try {
    return run(sizes[0], sizes[1], sizes[2]);
  } catch (const imbrex::Error& error) {
    std::fprintf(stderr, "mlp_on_gpus: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
