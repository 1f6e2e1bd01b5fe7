// What both kinds of execution on a GPU share: epochs are queued on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "execute/cuda/lanes/stream_calls.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/cuda_heap.hpp"

namespace imbrex::cuda {

/// With injected delays, one rank in turn falls behind by far, so that the others run into the next epochs.
void hold_back(const World& world, const CudaOptions& options, std::uint64_t epoch);

/// Throws Error(invalid_input) where the ranks' outputs of the call that is made lie apart. `out`: this rank's, in its
/// part of the heap; null where peers store into none.
void expect_one_place(World& world, const runtime::CudaHeap& heap, const void* out);

class StreamExecution : public Execution {
 public:
  /// `records`: a timeline is asked for.
  StreamExecution(StreamCalls& calls, bool records);
  ~StreamExecution() override;

  /// Queues an epoch and waits for it; with a timeline, it queues several more, the last of which it shows.
  Report run(const Addresses& operands) final;

  double time(const Addresses& operands, int runs) final;

  void enqueue(const Addresses& operands, CudaStream stream) final;
  void expect_stream(CudaStream stream) final;
  void check() final;
  void synchronize(CudaStream stream) final;

  /// The parts of run, for callers that queue several epochs of one execution: enqueue puts one epoch on stream(),
  /// finish waits until all are done and throws as run does. Epochs captured so come in pairs. The device is current.
  void enqueue(const Addresses& operands);
  void finish() { await(stream()); }
  virtual cudaStream_t stream() const = 0;

  /// What StreamCalls::look does for this execution; its lock is held. May be called by any thread.
  virtual void look() noexcept = 0;

 protected:
  enum class Call {
    direct,    ///< it runs
    captured,  ///< by a caller, whose graph may have any number of epochs
    paired,    ///< captured in a graph of an even number
  };

  /// Puts an epoch on `stream`; the device is current. From the first captured one on, each leaves everything as its
  /// graph's next replay needs it, however many epochs the graph has.
  virtual void launch(const Addresses& operands, cudaStream_t stream, Call call) = 0;

  /// Waits until `stream` is idle and throws what failed.
  virtual void await(cudaStream_t stream) = 0;

  /// Throws what failed.
  virtual void expect_sound() = 0;

  /// Spans of the last epoch, which is over; called for timelines only.
  virtual std::vector<Span> spans() = 0;

  /// First in a destructor: no other thread looks at the execution any more.
  void retire() noexcept;

  /// Waits for graphs that hold calls of the world: CUDA does not tell when they run. Not under the lock, which the
  /// watching thread needs to end them where a rank is lost.
  void await_replays(int device);

  StreamCalls& calls() { return calls_; }

 private:
  /// Launches an epoch; where A lies in an output, copies it first.
  void put(const Addresses& operands, cudaStream_t stream, Call call);

  StreamCalls& calls_;
  bool records_, looked_after_ = false;
  /// Captured epochs, kept from one call of time to the next.
  struct Replay;
  std::unique_ptr<Replay> replay_;
  bool stale_ = false;  ///< other epochs have been queued since it was captured
};

}  // namespace imbrex::cuda
