// Operators with their operands on GPUs.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/stream.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "support/operators.hpp"
#include "support/problem_memory.hpp"

namespace imbrex::test {

/// An operator with its operands on the GPU.
class Subject {
 public:
  Subject(World& world, Operator op, const GemmShape& shape, const OperatorOptions& options, bool shared_out,
          std::uint64_t seed = 1)
      : case_(world, op, shape, options, seed), a_(case_.a().size()), b_(case_.b().size()) {
    a_.upload(case_.a());
    b_.upload(case_.b());
    if (!case_.a_scale().empty()) {
      a_scale_.emplace(case_.a_scale().size() * sizeof(float)).upload(case_.a_scale().data());
      b_scale_.emplace(case_.b_scale().size() * sizeof(float)).upload(case_.b_scale().data());
    }
    EXPECT_EQ(case_.op().device(), Device::cuda);
    if (shared_out)
      out_ = case_.op().allocate_output();
    else
      own_out_.emplace(case_.out_bytes());
    meet_if_sharing(world);
  }

  GemmOperator& op() { return case_.op(); }
  void call(cudaStream_t stream) { op().run(operands(), stream); }
  void call() { op().run_and_wait(operands()); }
  void poison(cudaStream_t stream) { IMBREX_CUDA_TRY(cudaMemsetAsync(out(), 0xff, case_.out_bytes(), stream)); }

  std::vector<Operand> operands(void* a, void* b, void* out) {
    std::vector<Operand> all{op().operand("a", a), op().operand("b", b)};
    if (a_scale_) {
      all.push_back(op().operand("a_scale", a_scale_->get()));
      all.push_back(op().operand("b_scale", b_scale_->get()));
    }
    all.push_back(op().operand("out", out));
    return all;
  }
  std::vector<Operand> operands() { return operands(a_.get(), b_.get(), out()); }

  void* out() const { return own_out_ ? own_out_->get() : out_.get(); }

  /// Compares; the GPU is idle.
  void judge(const std::string& when) {
    std::vector<std::byte> result(case_.out_bytes());
    IMBREX_CUDA_TRY(cudaMemcpy(result.data(), out(), result.size(), cudaMemcpyDeviceToHost));
    if (const std::string wrong = case_.judge(result); !wrong.empty())
      throw Error(ErrorCode::unsound, when + ": " + wrong);
  }

  /// With operands in host memory.
  void call_from_host() {
    std::vector<std::byte> out(case_.out_bytes());
    op().run_and_wait(case_.operands(out.data()));
    if (const std::string wrong = case_.judge(out); !wrong.empty())
      throw Error(ErrorCode::unsound, "from host memory: " + wrong);
  }

 private:
  OperatorCase case_;
  runtime::DeviceMemory a_, b_;
  std::optional<runtime::DeviceMemory> a_scale_, b_scale_;
  std::optional<runtime::DeviceMemory> own_out_;
  std::shared_ptr<void> out_;
};

/// Whether ranks that share a GPU run it, if they do: no copies between them, libraries only where they are processes,
/// and no clusters, as a choice may have them.
inline bool runs_here(std::optional<Strategy> strategy, Transport transport) {
  if (ranks_per_gpu() == 1) return true;
  return strategy && (*strategy == Strategy::fused ? transport == Transport::store : ranks_are_processes());
}

inline OperatorOptions options_of(std::optional<Strategy> strategy, Transport transport, std::uint64_t delays) {
  OperatorOptions options;
  options.device = Device::cuda;
  options.strategy = strategy;
  if (strategy == Strategy::fused) options.knobs = Knobs{.transport = transport};
  options.cuda.heap_bytes = std::size_t{1} << 28;
  options.cuda.testing.delays = delays;
  options.cuda.testing.max_delay = 2e-5;
  options.cuda.ranks_per_gpu = ranks_per_gpu();
  // NOTE: a cluster needs SMs side by side: ranks that are a call ahead, without clusters, may leave none.
  if (ranks_per_gpu() > 1 && options.knobs) options.knobs->cluster = 1;
  return options;
}

/// One call on copies of the operands, which lie in host memory, as its outputs do afterwards. Ranks that share a GPU
/// meet before and after it.
inline void call_on_gpu(World& all, GemmOperator& op, std::vector<Operand> operands, ProblemMemory& memory) {
  std::deque<runtime::DeviceMemory> there;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    there.emplace_back(memory.bytes(i).size()).upload(memory.bytes(i).data());
    operands[i].view.data = there.back().get();
  }
  meet_if_sharing(all);
  op.run_and_wait(operands);
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (memory.infos()[i].role == OperandRole::output)
      IMBREX_CUDA_TRY(
          cudaMemcpy(memory.bytes(i).data(), there[i].get(), memory.bytes(i).size(), cudaMemcpyDeviceToHost));
  meet_if_sharing(all);
}

/// What ranks throw is on standard error.
inline int on_ranks(int ranks, double wait_limit, const std::function<void(World&)>& body) {
  return on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = wait_limit}, [&](World& world) {
    body(world);
    return 0;
  });
}

}  // namespace imbrex::test
