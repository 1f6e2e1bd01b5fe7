// Operators of any M on GPUs, beside operators made for each M, whose bits they give.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "execute/cuda/refusal.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "ops/world_gpus.hpp"
#include "runtime/host_world.hpp"
#include "support/problem_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex::test {

// Barriers and gathers that this rank has entered.
inline std::uint64_t entered(World& world) {
  runtime::ControlBlock& block = dynamic_cast<runtime::HostWorld&>(world).control().block();
  return runtime::word(block.ranks[world.rank()].arrived).load();
}

inline bool splits_m(Operator op) { return op != Operator::gemm_all_reduce; }

/// Operands of one M on the GPU, and what an operator made for it gives, with the same plan: any other gives its bits.
class Sized {
 public:
  Sized(World& world, const Problem& problem, const OperatorOptions& options)
      : m_(problem.m),
        values_(seeded_operands(problem, static_cast<std::uint64_t>(m_))),
        memory_(problem, *values_, world.rank()) {
    for (std::size_t i = 0; i < memory_.infos().size(); ++i)
      there_.emplace_back(memory_.bytes(i).size()).upload(memory_.bytes(i).data());
    auto fixed = make_operator(world, problem.op, shape_of(problem), options);
    meet_if_sharing(world);
    fixed->run_and_wait(operands(*fixed));
    wanted_ = results();
    for_outputs([&](std::size_t i, std::size_t place) { memory_.bytes(i) = wanted_[place]; });
    if (const std::string wrong = memory_.judge(fixed->plan(), false, Device::cuda); !wrong.empty())
      throw Error(ErrorCode::unsound, fmt::format("M = {}, made for it: {}", m_, wrong));
    fixed.reset();  // what it gives back waits for kernels of ranks that share the GPU
    meet_if_sharing(world);
  }

  void call(GemmOperator& any, cudaStream_t stream) { any.run(operands(any), stream); }
  void call_and_wait(GemmOperator& any) { any.run_and_wait(operands(any)); }
  void poison(cudaStream_t stream) {
    for_outputs([&](std::size_t i, std::size_t) {
      IMBREX_CUDA_TRY(cudaMemsetAsync(there_[i].get(), 0xff, memory_.bytes(i).size(), stream));
    });
  }

  void call_from_host(GemmOperator& any) {
    memory_.poison();
    for_outputs([&](std::size_t i, std::size_t) { memory_.bytes(i).resize(memory_.bytes(i).size() + 64, tail); });
    any.run_and_wait(memory_.operands());
    for_outputs([&](std::size_t i, std::size_t place) {
      std::vector<std::byte>& out = memory_.bytes(i);
      ASSERT_TRUE(std::all_of(out.end() - 64, out.end(), [](std::byte b) { return b == tail; }));
      out.resize(out.size() - 64);
      expect("from host memory", place, out);
    });
  }

  /// Compares; the GPU is idle.
  void judge(const std::string& when) {
    const auto got = results();
    for (std::size_t place = 0; place < got.size(); ++place) expect(when, place, got[place]);
  }

 private:
  static constexpr std::byte tail{0x5a};

  // f(operand, place among the outputs).
  template <typename F>
  void for_outputs(F&& f) const {
    std::size_t place = 0;
    for (std::size_t i = 0; i < memory_.infos().size(); ++i)
      if (memory_.infos()[i].role == OperandRole::output) f(i, place++);
  }

  std::vector<Operand> operands(GemmOperator& op) const {
    std::vector<Operand> all;
    for (std::size_t i = 0; i < there_.size(); ++i)
      all.push_back(op.operand(memory_.infos()[i].name, there_[i].get(), m_));
    return all;
  }

  std::vector<std::vector<std::byte>> results() const {
    std::vector<std::vector<std::byte>> all;
    for_outputs([&](std::size_t i, std::size_t) {
      all.emplace_back(memory_.bytes(i).size());
      IMBREX_CUDA_TRY(cudaMemcpy(all.back().data(), there_[i].get(), all.back().size(), cudaMemcpyDeviceToHost));
    });
    return all;
  }

  void expect(const std::string& when, std::size_t place, const std::vector<std::byte>& result) const {
    if (result != wanted_[place])
      throw Error(ErrorCode::unsound,
                  fmt::format("M = {}, {}: output {} has other bits than one made for it", m_, when, place));
  }

  std::int64_t m_;
  std::unique_ptr<program::OperandSource> values_;
  ProblemMemory memory_;
  std::deque<runtime::DeviceMemory> there_;     // by operand
  std::vector<std::vector<std::byte>> wanted_;  // by output
};

/// An operator of any M, and operands of some.
struct AnyM {
  AnyM(World& w, Operator op, const GemmShape& largest, const OperatorOptions& o)
      : world(w), kind(op), shape(largest), options(o) {
    GemmShape any = shape;
    any.any_m = true;
    made = make_operator(world, kind, any, options);
    EXPECT_EQ(made->device(), Device::cuda);
    meet_if_sharing(world);
  }

  Sized& of(std::int64_t m) {
    if (const auto found = sizes.find(m); found != sizes.end()) return found->second;
    Problem problem = made->plan().problem;
    problem.m = m;
    return sizes.try_emplace(m, world, problem, of_size(m)).first->second;
  }

  /// With the plan that the operator chooses for that M.
  OperatorOptions of_size(std::int64_t m) const {
    if (options.knobs) return options;
    choose::GpuKind gpus = ops::gpus_of(world, options.cuda)->gpus;
    gpus.copies = gpus.lanes = false;
    Problem problem = made->plan().problem;
    problem.m = m;
    plan::Candidate chosen = choose::choose_gpu_candidate(problem, options.strategy, {}, gpus, options.codec);
    if (m == shape.m && !grown) {
      const plan::Candidate best = choose::choose_gpu_candidate(problem, options.strategy, {},
                                                                ops::gpus_of(world, options.cuda)->gpus, options.codec);
      if (!cuda::refusal_of_turns(make_plan(problem, best.strategy, best.knobs)).empty()) chosen = best;
    }
    OperatorOptions own = options;
    own.strategy = chosen.strategy;
    own.knobs = chosen.knobs;
    return own;
  }

  void grow(std::int64_t m) {
    made->grow(m);
    meet_if_sharing(world);
    grown = true;
    shape.m = m;
    sizes.clear();
  }

  World& world;
  Operator kind;
  GemmShape shape;
  OperatorOptions options;
  std::unique_ptr<GemmOperator> made;
  bool grown = false;
  std::map<std::int64_t, Sized> sizes;
};

// So many sizes, from the least to the largest; more than plans are kept.
inline constexpr int many = 40;

inline std::vector<std::int64_t> sizes_of(World& world, Operator op, std::int64_t most, int count) {
  const std::int64_t unit = splits_m(op) ? world.size() : 1;
  std::vector<std::int64_t> sizes{unit, most};
  std::mt19937_64 random(seed_from_environment());
  while (std::ssize(sizes) < count) {
    const std::int64_t m = unit * (1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most / unit)));
    if (std::find(sizes.begin(), sizes.end(), m) == sizes.end()) sizes.push_back(m);
  }
  return sizes;
}

// Every rank draws the same M, and falls behind at random.
inline void call_any(World& world, AnyM& any, int sizes, int calls) {
  const std::vector<std::int64_t> list = sizes_of(world, any.kind, any.shape.m, sizes);
  for (const std::int64_t m : list) any.of(m);
  const Stream stream(world);
  std::mt19937_64 order(seed_from_environment()),
      own(seed_from_environment() + 17 * static_cast<std::uint64_t>(world.rank() + 1));
  const std::uint64_t before = entered(world);
  std::vector<std::int64_t> called;
  for (int i = 0; i < calls; ++i) {
    const std::int64_t m = list[order() % list.size()];
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    any.of(m).poison(stream);
    any.of(m).call(*any.made, stream);
    called.push_back(m);
    if (i % 16 != 15) continue;
    any.made->synchronize(stream);
    for (const std::int64_t each : called) any.of(each).judge("call " + std::to_string(i));
    called.clear();
  }
  any.made->synchronize(stream);
  EXPECT_EQ(entered(world), before) << "some call was collective";
}

}  // namespace imbrex::test
