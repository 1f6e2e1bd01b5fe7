// A lookup of strategy fused on one rank's GPU: its kernel stores straight to all ranks' outputs.
//
// Protocol. An epoch is three launches: one posts to every peer that this rank has entered it, the lookup waits for
// such posts before it stores to a peer, and posts there for each slice of its rows; the last one waits for all slices.
// Everything reads the epoch from this rank's state, so a captured graph replays for ever. The lookup's blocks do not
// wait for other lookups, so ranks that share a GPU need not run at once.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <vector>

#include "embedding/cuda/cuda_look_up.hpp"
#include "execute/cuda/embedding/ends.hpp"
#include "execute/cuda/embedding/look_up_plan.hpp"
#include "execute/cuda/fused/kernel_execution.hpp"
#include "plan/bags.hpp"
#include "problem/embedding.hpp"
#include "runtime/cuda/cuda_heap.hpp"
#include "runtime/cuda/fault_pool.hpp"

namespace imbrex::cuda {

class LookUpExecution final : public KernelExecution {
 public:
  /// Collective. The device is selected; `heap`, `calls` and `faults` outlive the execution.
  LookUpExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults, int device,
                  const Plan& plan, const CudaOptions& options);
  ~LookUpExecution() override;

  cudaStream_t stream() const override { return main_; }
  std::string_view kernel_name() const override { return "look_up"; }

  std::int64_t take_misfits(Misfits misfits) override;

 private:
  // The execution's part of the heap: the state, the words of both ends, and the output that peers write.
  struct Layout {
    std::size_t entered, done, out, all;
  };

  void launch(const Addresses& operands, cudaStream_t stream, Call call) override;
  std::vector<Span> spans() override { return {}; }

  static Layout layout_of(const Problem& problem);
  void make_look_up();
  void bind(const embedding::Tables& tables, cudaStream_t stream);
  std::byte* at(int rank, std::size_t offset) const { return heap_.handle().at(rank, place_->offset + offset); }
  void set_group();
  void start_words();
  std::string fault_message() const override;
  std::string late_name(int late) const override;

  runtime::CudaHeap& heap_;
  const Problem problem_;
  const LookUpPlan slices_;
  CudaOptions options_;
  problem::OwnShards own_;
  std::uint32_t lookers_ = 0;  // peers that have tables
  Layout layout_;
  std::optional<runtime::CudaHeap::Place> place_;
  runtime::FaultPool::Owner own_fault_;
  EndsArgs ends_{};
  std::unique_ptr<embedding::CudaLookUp> look_up_;  // null without tables
  std::vector<embedding::Table> bound_;             // tables of the last call
  std::uint64_t epoch_;
  bool captured_ = false;
  cudaStream_t main_ = nullptr;
};

}  // namespace imbrex::cuda
