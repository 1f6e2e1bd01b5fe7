// OpenSHMEM's symmetric heap over a world: memory at the same place on every PE, teams, and the parameters of kernels.
// docs/shmem.md explains it. Kernels call imbrex/device/shmem.cuh. imbrex/shmem.h has OpenSHMEM's own names.
//
//     auto world = imbrex::World::from_environment();
//     imbrex::shmem::Heap heap(*world);                    // on this rank's GPU where there is one, else in memory
//     auto row = heap.array<float>(1024);                  // collective; 0 at first
//     imbrex::shmem::launch(heap, {.blocks = 4, .threads = 256}, kernel, heap.handle(), row.data());
//     heap.finish();                                       // throws what a wait gave up
//
// A PE is a rank of the world. Functions that are collective are called by all PEs with the same arguments, in the same
// order; PEs that disagree get an error, each. One host thread a PE calls at a time. The world outlives the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "imbrex/device/shmem.cuh"
#include "imbrex/error.hpp"
#include "imbrex/options.hpp"
#include "imbrex/world.hpp"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace imbrex::shmem {

/// The same on every PE.
struct HeapOptions {
  Device device = Device::automatic;          ///< where the heap lies: GPU memory where each PE can have its GPU
  std::size_t bytes = std::size_t{64} << 20;  ///< of each PE's part; host memory comes out of the world's heap_bytes
  int ranks_per_gpu = 1;                      ///< PEs that share each GPU
  std::uint32_t contexts = 1024;              ///< that a PE's kernels may have at once
  std::uint64_t pauses = 0;                   ///< tests: not 0: seed of what their transports do at random
  double max_pause = 1e-4;                    ///< of theirs, the longest, seconds

  /// What IMBREX_SHMEM_DEVICE, IMBREX_SHMEM_RANKS_PER_GPU and SHMEM_SYMMETRIC_SIZE say, as `imbrex env` tells of them.
  /// Throws Error(invalid_input) naming the variable.
  static HeapOptions from_environment();
};

class Heap;

/// Elements at the same place on every PE. Collective to make and to destroy; the destructor waits for all PEs, unless
/// an exception is on its way: then the memory stays until the heap ends.
template <Scalar T>
class Array {
 public:
  Array(Heap& heap, std::size_t count);
  Array(Array&& other) noexcept
      : heap_(std::exchange(other.heap_, nullptr)), data_(other.data_), count_(other.count_) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(heap_, other.heap_), std::swap(data_, other.data_), std::swap(count_, other.count_);
    return *this;
  }
  ~Array();

  /// This PE's; calls take it for the same place on any PE.
  T* data() const { return data_; }
  std::size_t size() const { return count_; }

 private:
  Heap* heap_;
  T* data_;
  std::size_t count_;
};

class Heap {
 public:
  /// Collective. Throws Error(invalid_input) on options out of range, of more than 64 PEs, or for `cuda` in a build
  /// without it or over several hosts; Error(runtime_failure) where GPUs do not reach each other or memory is missing.
  /// PEs of other hosts are reached by rings alone (docs/shmem.md).
  explicit Heap(World& world, const HeapOptions& options = {});

  /// Collective: waits for all PEs, unless an exception is on its way.
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  World& world() const;
  int pe() const;
  int pes() const;
  Device device() const;  ///< cpu or cuda
  int gpu() const;        ///< CUDA's number; -1 on the CPU

  /// Collective. This PE's part, of `bytes` zeroed bytes. `alignment` is a power of two up to 4096. Null for no bytes.
  /// Throws Error(invalid_input) where PEs ask for different things, Error(runtime_failure) naming asked and left bytes
  /// where they do not fit.
  void* allocate(std::size_t bytes, std::size_t alignment = 256);

  /// Collective, and waits for all PEs and their GPUs before and after. Null does nothing but that. Throws
  /// Error(invalid_input) for an address that allocate did not give.
  void release(void* own);

  template <Scalar T>
  Array<T> array(std::size_t count) {
    return Array<T>(*this, count);
  }

  /// The same place in another PE's memory, for this host where the heap lies in memory and for this PE's GPU where it
  /// lies on GPUs; null for what the heap does not hold, and for PEs of other hosts. Throws Error(invalid_input) naming
  /// a PE out of range.
  void* pointer(const void* own, int pe) const;

  /// Whether all these bytes lie in this PE's part.
  bool holds(const void* own, std::size_t bytes) const;

  /// For kernels, which may run one after another or, with different contexts, at once.
  const Handle& handle() const;

  /// For transports other than loads and stores: what handle() tells their contexts, from now on.
  void use_transport(const void* transport);

  /// For this host's own calls: of data where the heap lies in memory, of teams' states everywhere.
  const Handle& host_handle() const;

  /// All PEs. Kernels take a team by value.
  Team world_team() const;

  /// Collective over `parent`. Its members `start`, `start + stride`, ...; nothing on PEs that are not among them.
  /// Throws Error(invalid_input) naming a member out of range, Error(runtime_failure) where 64 teams exist already.
  std::optional<Team> split_strided(const Team& parent, int start, int stride, int size);

  /// Collective over the team, which is not used any more.
  void release(const Team& team);

  /// The team as host_handle's calls take it.
  Team on_host(const Team& team) const;

  /// Collective over the team: all its members are here. What hosts put before is complete; kernels' work is not
  /// waited for.
  void barrier(const Team& team);

  /// Copies from or to another PE's memory, of any heap. `own` of the heap stands for the same place there, `here` is
  /// any memory of this host. Done when they return. Throw Error(invalid_input) naming what lies outside, and a PE of
  /// another host.
  void write(void* own, const void* here, std::size_t bytes, int pe);
  void read(void* here, const void* own, std::size_t bytes, int pe);

  /// Throws Error(runtime_failure) if a wait passed the world's limit or a PE failed or was lost; all waits of all PEs
  /// end then, and the heap cannot be used any more.
  void check();

  /// Waits for the stream, and throws as check does. On the CPU launches are over when they return.
  void finish(CudaStream stream = nullptr);

  // For launch() below.

  /// Runs `block`, with 0, 1, ..., in `blocks` host threads; returns when all have. Throws as check does, or what the
  /// first of them threw.
  void run_blocks(std::uint32_t blocks, const std::function<void(std::uint32_t)>& block);
  /// SMs of the GPU that this PE may fill with blocks that wait.
  int multiprocessors() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

template <Scalar T>
Array<T>::Array(Heap& heap, std::size_t count) : heap_(&heap), data_(nullptr), count_(count) {
  if (count > (std::size_t{0} - 1) / sizeof(T))
    throw Error(ErrorCode::invalid_input,
                "array of " + std::to_string(count) + " elements: they are more bytes than can be counted");
  data_ = static_cast<T*>(heap.allocate(count * sizeof(T)));
}

template <Scalar T>
Array<T>::~Array() {
  if (heap_ == nullptr || data_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    heap_->release(data_);
  } catch (const Error&) {
    // The world has failed: the next call says so.
  }
}

/// How a kernel is launched.
struct Grid {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 1;       ///< of a block; on the CPU one, whatever this says
  CudaStream stream = nullptr;     ///< GPUs
  std::uint32_t shared_bytes = 0;  ///< dynamic shared memory
  bool resident = true;            ///< blocks wait, for peers or each other: refused unless all fit on the GPU at once
};

// Sources of CUDA and of C++ in one program have launches of their own, where kernels take the same parameters.
#if defined(__CUDACC__)
inline namespace cuda_source {
/// The device on which the kernels of this source run, for HeapOptions::device.
inline constexpr Device kernel_device = Device::cuda;
#else
inline namespace cpp_source {
inline constexpr Device kernel_device = Device::cpu;
#endif

/// Queues a kernel on the heap's GPU; on the CPU runs it. `kernel` is an IMBREX_KERNEL of this source. Throws
/// Error(invalid_input) where kernel and heap are not of one kind, or the grid is empty or does not fit on the GPU;
/// Error(runtime_failure) naming what CUDA refused.
template <typename... Parameters, typename... Arguments>
void launch(Heap& heap, const Grid& grid, void (*kernel)(Parameters...), Arguments&&... arguments) {
  const auto refuse = [](ErrorCode code, const std::string& why) { throw Error(code, "launch: " + why); };
  if (grid.blocks == 0 || grid.threads == 0 || grid.threads > 1024)
    refuse(ErrorCode::invalid_input, std::to_string(grid.blocks) + " blocks of " + std::to_string(grid.threads) +
                                         " threads: there must be 1 or more, of 1 to 1024");
#if defined(__CUDACC__)
  if (heap.device() != Device::cuda) refuse(ErrorCode::invalid_input, "a kernel for GPUs, and a heap in memory");
  const auto expect = [&](cudaError_t status, const char* call) {
    if (status != cudaSuccess)
      refuse(ErrorCode::runtime_failure, std::string(call) + " failed: " + cudaGetErrorString(status));
  };
  expect(cudaSetDevice(heap.gpu()), "cudaSetDevice");
  const void* function = reinterpret_cast<const void*>(kernel);
  if (grid.shared_bytes > 48 * 1024)
    expect(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(grid.shared_bytes)),
           "cudaFuncSetAttribute");
  if (grid.resident) {
    int each = 0;
    expect(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, function, static_cast<int>(grid.threads),
                                                         grid.shared_bytes),
           "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    const auto most = static_cast<std::uint64_t>(each) * static_cast<std::uint64_t>(heap.multiprocessors());
    if (grid.blocks > most)
      refuse(ErrorCode::invalid_input, std::to_string(grid.blocks) +
                                           " blocks that wait: this PE's part of the GPU holds " +
                                           std::to_string(most) + " at once");
  }
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))..., nullptr};
        expect(cudaLaunchKernel(function, dim3(grid.blocks), dim3(grid.threads), pointers, grid.shared_bytes,
                                reinterpret_cast<cudaStream_t>(grid.stream)),
               "cudaLaunchKernel");
      },
      values);
#else
  if (heap.device() != Device::cpu) refuse(ErrorCode::invalid_input, "a kernel for the CPU, and a heap on GPUs");
  // NOTE: here, since a program and the library it is linked with may each have a host_block.
  heap.run_blocks(grid.blocks, [&](std::uint32_t index) {
    host_block = {index, grid.blocks};
    kernel(arguments...);
    host_block = {};
  });
#endif
}

}  // inline namespace cuda_source, or cpp_source

}  // namespace imbrex::shmem
