// The rounds of kernels that code once: chunk k goes out while chunk k - 1 is waited for. Chunks, slots and posts are
// as in the two-shot all-reduce (quantized_any.cuh); `Kernel` has send(chunk) and add(chunk).
#pragma once

#include "collectives/cuda/quantized/quantized_rank.cuh"

namespace imbrex::cuda {

template <typename Kernel, Type type, bool Tolerant>
class QuantizedRounds : public QuantizedRank<type, Tolerant> {
  using Base = QuantizedRank<type, Tolerant>;

 protected:
  using Base::a_, Base::c_, Base::state_, Base::workers_, Base::well_;

 public:
  __device__ __forceinline__ QuantizedRounds(const QuantizedArgs& args, Progress& progress)
      : Base(args), progress_(progress) {}

  __device__ __forceinline__ void run() {
    if (!is_turn(c_, state_)) return;
    for (std::uint32_t round = 0; round < a_.chunks + 1; ++round) {
      const bool sends = round < a_.chunks, frees = round >= 1 && round - 1 + a_.slots < a_.chunks;
      if (threadIdx.x >= workers_) {
        if (sends) this->post_one(progress_.parts, round, &CommState::parts);
        if (frees) this->post_one(progress_.freed, round - 1, &CommState::freed);
        continue;
      }
      maybe_pause(c_, state_.epoch, round);
      if (sends) {
        if (round >= a_.slots) this->wait_for(CommStep::room, &CommState::freed, round - a_.slots + 1);
        if (well_ || round == 0) static_cast<Kernel*>(this)->send(round);
        end_step(progress_.parts, round, well_);
      }
      if (round < 1) continue;
      this->wait_for(Kernel::awaited, &CommState::parts, round);
      if (well_) static_cast<Kernel*>(this)->add(round - 1);
      end_step(progress_.freed, round - 1, well_);
    }
    this->end();
  }

 private:
  Progress& progress_;
};

}  // namespace imbrex::cuda
