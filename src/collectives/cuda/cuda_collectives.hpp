// Collectives by kernels of our own, on the caller's stream: a communicator on GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/cuda/exact/exact.hpp"
#include "collectives/cuda/exchange/exchange.hpp"
#include "collectives/cuda/quantized/quantized.hpp"
#include "collectives/cuda/rms_norm/rms_norm.hpp"
#include "collectives/cuda/vote/vote.hpp"
#include "collectives/policy.hpp"
#include "imbrex/types.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/cuda_heap.hpp"
#include "runtime/cuda/fault_pool.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "runtime/lookout.hpp"

namespace imbrex::cuda {

struct CollectivesOptions {
  /// GPU memory per rank: what is under way of one call and of the call before it, in exact slots and in quantized
  /// ones.
  std::size_t workspace_bytes = std::size_t{256} << 20;
  std::uint64_t delays = 0;  ///< tests: not 0: seed of random pauses of warps
  double max_delay = 1e-4;   ///< longest pause, seconds
  int ranks_per_gpu = 1;     ///< as in CudaOptions: each has so many times fewer blocks
};

/// Which kernel runs an exact all-reduce, and how. Zeros leave the choice to the size.
enum class ExactAlgorithm : std::uint8_t { automatic, one_shot, two_shot };
struct ExactKnobs {
  ExactAlgorithm algorithm = ExactAlgorithm::automatic;
  std::uint32_t blocks = 0;   ///< at most max_comm_blocks
  std::uint32_t threads = 0;  ///< a block: a multiple of 32 up to 512
  std::uint32_t batch = 0;    ///< two_shot: 1, 2, or 4 of two ranks
  std::uint32_t slots = 0;    ///< two_shot: chunks under way, 3 to most_exact_slots
  bool report = false;        ///< write what report() reads; costs a little time
  Turn turn = Turn::always;   ///< after a vote; automatic may then mean two_shot only
};

/// How a quantized all-reduce runs. Zeros leave the choice to the size.
struct QuantizedKnobs {
  std::uint32_t blocks = 0;  ///< at most max_comm_blocks
  std::uint32_t span = 0;    ///< eights of values in a chunk: a multiple of 32 up to 480, 2048 if staged
  std::uint32_t slots = 0;   ///< chunks under way, at least 3, in a ring 2 R - 1
  QuantizedSteps steps = QuantizedSteps::two_shot;
  QuantizedWay way = QuantizedWay::automatic;  ///< of a two-shot call; packets: without span, slots and tolerance
  float tolerance = -1;      ///< as in AllReduceOptions; negative: every group is quantized. Not in a ring
  Turn turn = Turn::always;  ///< after a vote; not in a ring
};

/// How an all-reduce with RMSNorm runs. Zeros leave the choice to the size.
struct RmsNormKnobs {
  ExactAlgorithm algorithm = ExactAlgorithm::automatic;
  std::uint32_t blocks = 0;   ///< at most max_comm_blocks
  std::uint32_t cluster = 0;  ///< blocks that share a row: 1, 2, 4 or 8, as its warps divide
};

struct ExchangeKnobs {
  std::uint32_t blocks = 0;  ///< at most max_comm_blocks; 0: by size
  bool report = false;       ///< write what report() reads; costs a little time
};

/// Made by all ranks of a world together, used by one host thread a rank. All ranks make the same calls with the same
/// sizes, types and knobs, in the same order; calls are ordered among themselves: on one stream, or on several with
/// events between. A call is asynchronous, and can be captured: a captured graph replays for ever, in order with
/// other calls. Failures surface in finish, or in the next call.
class CudaCollectives {
 public:
  /// Collective; `device` is selected. Throws Error(invalid_input) on more than max_comm_ranks ranks, on options out of
  /// range, and as agreed_policy does; Error(runtime_failure) where GPUs do not reach each other.
  CudaCollectives(World& world, int device, const CollectivesOptions& options = {});
  /// Waits for the device; graphs that captured calls are not replayed any more.
  ~CudaCollectives();
  CudaCollectives(const CudaCollectives&) = delete;
  CudaCollectives& operator=(const CudaCollectives&) = delete;

  /// out = sum over ranks of in: fp32 sums by rank number, rounded once, the same bits on all ranks and in all runs.
  /// `count` elements each, of any alignment that elements may have; `out` is `in` or does not overlap it. Throws
  /// Error(invalid_input) on pointers, counts or knobs that break a rule, before anything is queued.
  void all_reduce(const void* in, void* out, std::int64_t count, Type type, cudaStream_t stream,
                  const ExactKnobs& knobs = {});

  /// From which sizes on calls go other ways.
  const collectives::AllReducePolicy& policy() const { return policy_; }

  /// The largest vector, in bytes, for which automatic means one_shot: as the policy says, as far as the workspace
  /// goes. Rows that start packets of their own take more of it.
  std::int64_t one_shot_bytes(Type type, std::int64_t row_bytes = 16) const;

  /// The launch that all_reduce would make; `kernel` is what runs.
  ExactShape shape_of(std::int64_t count, Type type, const ExactKnobs& knobs) const;

  /// The all-reduce through a codec. Every part is quantized, the owner's own too, and in two-shot every sum, so all
  /// ranks get the same bits, and those of make_cpu_all_reduce.
  void all_reduce(const void* in, void* out, std::int64_t count, Type type, const CodecPair& pair, cudaStream_t stream,
                  const QuantizedKnobs& knobs = {});

  /// Before an all-reduce of `in` through a codec, in so many steps: whether one group of one rank could exceed the
  /// tolerance, decided as make_cpu_all_reduce does. The next two calls are that all-reduce, of turn `unless_exact`,
  /// and the exact one, of turn `if_exact`; one of them does the work. Captured like other calls.
  void vote(const void* in, std::int64_t count, Type type, const CodecPair& pair, QuantizedSteps steps, float tolerance,
            cudaStream_t stream, std::uint32_t blocks = 0);

  /// As AllReduceRmsNorm says; the bits of make_cpu_all_reduce_rms_norm.
  void all_reduce_rms_norm(const collectives::RmsNormOperands& operands, std::int64_t rows, std::int64_t hidden,
                           float eps, Type type, cudaStream_t stream, const RmsNormKnobs& knobs = {});

  /// Blocks of `count` elements, as ExchangeKind says; sums as all_reduce's. `in` and `out` do not overlap, except
  /// a gather's `in` and a reduce-scatter's `out` that are a block of the other. A NaN comes
  /// back as a NaN, not always as the same one. Made for blocks of up to a MiB; where the workspace holds no
  /// whole blocks, a call takes several epochs.
  void exchange(ExchangeKind kind, const void* in, void* out, std::int64_t count, Type type, cudaStream_t stream,
                const ExchangeKnobs& knobs = {});
  void reduce_scatter(const void* in, void* out, std::int64_t count, Type type, cudaStream_t stream) {
    exchange(ExchangeKind::reduce_scatter, in, out, count, type, stream);
  }
  void all_gather(const void* in, void* out, std::int64_t count, Type type, cudaStream_t stream) {
    exchange(ExchangeKind::all_gather, in, out, count, type, stream);
  }
  void all_to_all(const void* in, void* out, std::int64_t count, Type type, cudaStream_t stream) {
    exchange(ExchangeKind::all_to_all, in, out, count, type, stream);
  }

  /// The exchange through a codec, with the bits of make_cpu_exchange; reports as all_reduce does.
  void exchange(ExchangeKind kind, const void* in, void* out, std::int64_t count, Type type, const Codec& codec,
                cudaStream_t stream, std::uint32_t blocks = 0);

  /// This rank's, as it is now. Its stream is idle.
  CommState own_state() const;

  /// A copy of all that peers can write: the state and the slots. Its stream need not be idle.
  std::vector<std::byte> own_workspace() const;

  /// What the last call wrote down on this rank, if it was through a codec or asked for a report. Its stream is idle.
  CommReport report() const;

  /// Queues a copy of what the call before wrote down on this rank, if it was through a codec or asked for a report, to
  /// this GPU's memory: the next call may be another object's. Captured like calls.
  void keep_report(KeptReport* to, cudaStream_t stream) const;

  /// What such a copy says of the call: its report, and whether it was exact because of a vote. Its stream is idle.
  struct Told {
    CommReport report;
    bool went_exact = false;
  };
  static Told told_by(const KeptReport* kept);

  /// Waits for the stream. Throws Error(runtime_failure) naming rank, step, peer and place if a wait of a kernel passed
  /// the world's limit, or the rank that was lost; every rank throws, and the object is dead.
  void finish(cudaStream_t stream);

  /// Waits for the device: an object ends, and its callers' memory may go.
  void await_all() const noexcept;

  /// Does not wait: throws as finish does once a wait has passed its limit.
  void look();

  /// Ends this rank's waits, whose data will not come.
  void abort() noexcept;

  /// Collective, while no rank has calls under way: the workspace's memory goes back, except the state, which counts
  /// calls and stays on the host. Until the restore, also collective, nothing is called or replayed.
  void trim() { heap_.trim(world_); }
  void restore();

 private:
  void expect_alive();
  void empty_slots(cudaStream_t stream) const;
  std::uint64_t slot_bytes() const;
  void expect_operands(const void* in, const void* out, std::int64_t count, Type type);
  void expect_blocks(ExchangeKind kind, const void* in, const void* out, std::int64_t count, Type type);
  void launch(const void* kernel, std::uint32_t blocks, std::uint32_t threads, void* args, cudaStream_t stream,
              std::size_t shared_bytes = 0, std::uint32_t cluster = 1) const;
  QuantizedArgs arguments(const void* in, void* out, std::int64_t count, Type type, const CodecPair& pair,
                          const QuantizedShape& shape, float tolerance) const;
  std::uint32_t quantized_piece(std::uint32_t value_blocks) const;
  bool goes_by_packets(std::int64_t count, Type type, const CodecPair& pair, const QuantizedKnobs& knobs) const;
  void all_reduce_by_packets(const void* in, void* out, std::int64_t count, Type type, const CodecPair& pair,
                             cudaStream_t stream, const QuantizedKnobs& knobs);
  QuantizedShape quantized_shape_of(std::int64_t count, Type type, const CodecPair& pair, bool staged,
                                    const QuantizedKnobs& knobs) const;
  std::uint64_t rounds_of(QuantizedSteps steps) const;
  ExactArgs arguments(const void* in, void* out, std::int64_t count, Type type, const ExactShape& shape) const;
  std::uint32_t own_blocks(std::uint32_t wanted, std::uint32_t usual) const;
  bool look_out() noexcept;
  [[noreturn]] void throw_fault();
  [[noreturn]] void fail(const std::string& message);

  World& world_;
  int device_;
  collectives::AllReducePolicy policy_;
  int ranks_per_gpu_;
  bool limited_ = false;            // to a part of the GPU: ranks share it, or SMs are for others
  std::uint32_t processors_ = 0;    // a rank's share of a GPU, of the one that has the fewest
  std::uint32_t usual_blocks_ = 0;  // blocks of kernels without codecs
  runtime::CudaHeap heap_;
  std::size_t offset_ = 0;  // of the workspace
  runtime::FaultPool faults_;
  runtime::FaultPool::Owner fault_;
  Comm comm_{};
  bool dead_ = false;
  std::optional<runtime::Lookout> lookout_;  // the last: its thread looks at the others
};

/// Collective, the first time: those of the world, for all its objects, whose calls have one order. They select the
/// rank's GPU. `ranks_per_gpu` as in CollectivesOptions.
std::shared_ptr<CudaCollectives> collectives_of(World& world, int ranks_per_gpu = 1);

/// Loads every kernel: loading one after a kernel that waits for a peer can stop that peer.
void load_exact_kernels();

}  // namespace imbrex::cuda
