// The main loop of e4m3 in the GEMM for Hopper. WGMMA keeps 14 bits of what it sums, so what it
// has summed over a slice of K (128) is added to fp32 registers of the thread's own. Where a warpgroup adds before it
// issues the next slice's instructions, as CUTLASS' main loop does, the tensor cores wait for it: two warpgroups that
// share them end their slices together, and add together. Here the next slice's instructions are always under way by
// then, with sums in registers of their own, which makes three for each element.
#pragma once

#include <cutlass/arch/barrier.h>

#include "execute/cuda/products/sm90/config.cuh"
#include "execute/cuda/products/sm90/slots.cuh"

namespace imbrex::cuda {

/// Mainloop: whose stages of A and B are multiplied. One object for each tile; called by the threads that share it.
template <typename Config, typename Mainloop>
class Sm90Promoted {
 public:
  using State = typename Mainloop::PipelineState;
  using Release = StageRelease<typename Mainloop::MainloopPipeline, Config::cluster>;

  /// Multiplies all slices, of which there is one at least, and adds all but the last, whose instructions may still
  /// run: `end` does. `state`: from the first slice's to after the last.
  template <typename Shared>
  __device__ __forceinline__ void multiply(Shared& shared, State& state, const Release& release,
                                           float (&acc)[Config::registers], int slices, std::uint32_t thread) {
    using namespace cute;
    const Tensor sA = make_tensor(make_smem_ptr(shared.tensors.smem_A.data()), typename Mainloop::SmemLayoutA{});
    const Tensor sB = make_tensor(make_smem_ptr(shared.tensors.smem_B.data()), typename Mainloop::SmemLayoutB{});
    // Descriptors differ between warpgroups, and the compiler has to know that they do not within one.
    const int group = __shfl_sync(0xffffffffu, static_cast<int>(thread) / 128, 0);
    const auto mma = TiledMma{}.get_slice(group * 128);
    const Tensor a = mma.make_fragment_A(mma.partition_A(sA));
    const Tensor b = mma.make_fragment_B(mma.partition_B(sB));
    issue(shared, state, a, b, sums_[0]);
    for (;;) {
      odd_ = false;
      if (--slices == 0) return;
      issue(shared, state, a, b, sums_[1]);
      add<1>(release, acc, sums_[0], before_last(state));
      odd_ = true;
      if (--slices == 0) return;
      issue(shared, state, a, b, sums_[0]);
      add<1>(release, acc, sums_[1], before_last(state));
    }
  }

  /// `state`: as `multiply` left it.
  __device__ __forceinline__ void end(const State& state, const Release& release, float (&acc)[Config::registers]) {
    const int stage = before(state.index());
    if (odd_)
      add<0>(release, acc, sums_[1], stage);
    else
      add<0>(release, acc, sums_[0], stage);
  }

 private:
  using TiledMma = typename Mainloop::TiledMma;
  static constexpr int stages = Config::stages;

  static __device__ __forceinline__ int before(int stage) { return (stage == 0 ? stages : stage) - 1; }
  static __device__ __forceinline__ int before_last(const State& state) { return before(before(state.index())); }

  template <typename Shared, typename A, typename B>
  __device__ __forceinline__ static void issue(Shared& shared, State& state, const A& a, const B& b,
                                               float (&sums)[Config::registers]) {
    using namespace cute;
    const int stage = state.index();
    shared.pipeline.full_barrier_[stage].wait(state.phase());
    ++state;
    TiledMma mma;
    Tensor c =
        make_tensor(make_rmem_ptr(sums), partition_shape_C(mma, Shape<Int<Config::tile_m>, Int<Config::tile_n>>{}));
    static_assert(size(c) == Config::registers);
    // Known to be the same in all threads, it makes descriptors that need no registers of theirs.
    const int same = __shfl_sync(0xffffffffu, stage, 0);
    warpgroup_fence_operand(c);
    warpgroup_arrive();
    mma.accumulate_ = GMMA::ScaleOut::Zero;
#pragma unroll
    for (int k = 0; k < size<2>(a); ++k) {
      gemm(mma, a(_, _, k, same), b(_, _, k, same), c);
      mma.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_commit_batch();
  }

  /// A slice's sums, once no more than `InFlight` slices are under way, and frees its stage.
  template <int InFlight>
  __device__ __forceinline__ static void add(const Release& release, float (&acc)[Config::registers],
                                             float (&sums)[Config::registers], int stage) {
    cute::warpgroup_wait<InFlight>();
    release.free(stage);
#pragma unroll
    for (int i = 0; i < Config::registers; ++i) {
      cute::warpgroup_fence_operand(sums[i]);
      acc[i] += sums[i];
      // Before the next slice's instructions, which overwrite the sum.
      cute::warpgroup_fence_operand(acc[i]);
    }
  }

  float sums_[2][Config::registers];
  bool odd_;  ///< whose sums are still to be added
};

/// For types that need none.
struct NoPromotion {};

}  // namespace imbrex::cuda
