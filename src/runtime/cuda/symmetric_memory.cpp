#include <map>
#include <mutex>
#include <vector>

#include "imbrex/device/memory.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/await_stream.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/cuda_heap.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/fault_pool.hpp"
#include "runtime/cuda/fault_text.hpp"
#include "runtime/failure.hpp"
#include "runtime/group.hpp"
#include "runtime/host_world.hpp"
#include "runtime/lookout.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::device {
namespace {

std::size_t validated(const MemoryOptions& options) {
  IMBREX_EXPECTS(options.bytes > 0, "bytes = {}: it must be positive", options.bytes);
  IMBREX_EXPECTS(options.ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be 1 or more", options.ranks_per_gpu);
  IMBREX_EXPECTS(options.max_pause >= 0 && options.max_pause <= 1, "max_pause = {} s: it must be from 0 to 1",
                 options.max_pause);
  return options.bytes;
}

std::string plain_description(const Fault& f) {
  return fmt::format("in epoch {} of a kernel (kind {}, place {}, {}, {}, {})", std::uint64_t{f.epoch},
                     std::uint32_t{f.kind}, std::uint32_t{f.place[0]}, std::uint32_t{f.place[1]},
                     std::uint32_t{f.place[2]}, std::uint32_t{f.place[3]});
}

}  // namespace

struct Memory::Parts {
  // A group's record of failure, and how to read it.
  struct Record {
    runtime::FaultPool::Owner fault;
    std::function<std::string(const Fault&)> describe;
    bool whole;
  };

  Parts(World& its, const MemoryOptions& given)
      : world(its),
        options(given),
        gpu(runtime::select_device(its, given.ranks_per_gpu)),
        heap(its, gpu, validated(given)),
        lookout([this] { return look_out(); }) {}

  // On a thread of its own: hosts that queue kernels do not look after the world.
  bool look_out() noexcept {
    const std::lock_guard guard(lock);
    for (const Record& record : records)
      if (const int late = runtime::take_late_rank(*record.fault); late >= 0)
        runtime::tell_late(world, {late}, "a kernel that waits " + description(record));
    if (!runtime::has_failed(world)) return true;
    for (const Record& record : records) record.fault->abort = 1;
    ended = true;
    return false;
  }

  static std::string description(const Record& record) {
    return record.describe ? record.describe(*record.fault) : plain_description(*record.fault);
  }

  bool faulty() const {
    for (const Record& record : records)
      if (runtime::is_faulty(*record.fault)) return true;
    return false;
  }

  // Throws the world's first failure, which may be the loss of the rank that this one waited for.
  [[noreturn]] void throw_fault() {
    end_waits();
    for (const Record& record : records) {
      const Fault& f = *record.fault;
      if (f.state == Fault::clear) continue;
      const std::string said = description(record), who = fmt::format("rank {}", world.rank());
      runtime::fail(world, record.whole
                               ? who + ": " + said
                               : runtime::fault_text(f, who, runtime::limits_of(world.options()), said, "posts"));
    }
    runtime::fail_as_told(world);
  }

  void end_waits() noexcept {
    const std::lock_guard guard(lock);
    for (const Record& record : records) record.fault->abort = 1;
  }

  World& world;
  MemoryOptions options;
  int gpu;
  runtime::CudaHeap heap;
  std::map<const void*, std::size_t> offsets;
  runtime::FaultPool faults;
  std::mutex lock;  // of `records` between the thread that makes groups and others
  std::vector<Record> records;
  bool ended = false;        // the lookout has ended the waits of all groups there were
  runtime::Lookout lookout;  // the last: its thread looks at the others
};

Memory::Memory(World& world, const MemoryOptions& options) {
  runtime::expect_one_host(world, "memory of GPUs that ranks share");
  validated(options);
  parts_ = std::make_unique<Parts>(world, options);
}

// What peers still store lies in memory that lives as long as they map it.
Memory::~Memory() {
  cudaSetDevice(parts_->gpu);
  cudaDeviceSynchronize();
}

int Memory::gpu() const { return parts_->gpu; }

void* Memory::allocate(std::size_t bytes) {
  const std::size_t offset = parts_->heap.allocate(bytes);
  void* own = parts_->heap.handle().at(parts_->world.rank(), offset);
  parts_->offsets.emplace(own, offset);
  return own;
}

void Memory::release(void* own) {
  const auto found = parts_->offsets.find(own);
  IMBREX_EXPECTS(found != parts_->offsets.end(), "release of {}: this memory did not give it", own);
  IMBREX_CUDA_TRY(cudaSetDevice(parts_->gpu));
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  parts_->world.barrier();
  parts_->heap.release(found->second);
  parts_->offsets.erase(found);
  parts_->world.barrier();  // no peer writes into what is allocated there next before it is zeroed
}

Group Memory::group(std::uint32_t readers, std::function<std::string(const Fault&)> describe, bool whole) {
  IMBREX_EXPECTS(readers >= 1, "readers = {}: one thread at least must advance the epoch", readers);
  IMBREX_CUDA_TRY(cudaSetDevice(parts_->gpu));
  const std::size_t offset = parts_->heap.allocate(sizeof(State));
  {
    const std::lock_guard guard(parts_->lock);
    parts_->records.push_back({parts_->faults.take(), std::move(describe), whole});
    if (parts_->ended) parts_->records.back().fault->abort = 1;
  }
  Group g = runtime::group_of(parts_->world, parts_->heap.handle(), offset,
                              runtime::FaultPool::on_device(parts_->records.back().fault.get()),
                              {parts_->options.pauses, parts_->options.max_pause});
  g.readers = readers;
  return g;
}

void Memory::check() {
  if (parts_->faulty()) parts_->throw_fault();
  try {
    parts_->world.throw_if_failed();
  } catch (const Error&) {
    parts_->end_waits();
    throw;
  }
}

void Memory::end_waits() noexcept { parts_->end_waits(); }

void Memory::finish(CUstream_st* stream) {
  IMBREX_CUDA_TRY(cudaSetDevice(parts_->gpu));
  bool lost = false;
  const cudaError_t status = runtime::await_stream(stream, [&] {
    try {
      check();
    } catch (const Error&) {
      lost = true;  // the stream ends soon
    }
  });
  if (status != cudaSuccess)
    runtime::fail(parts_->world,
                  fmt::format("rank {}: the GPU reports: {}", parts_->world.rank(), cudaGetErrorString(status)));
  if (lost || parts_->faulty()) parts_->throw_fault();
}

}  // namespace imbrex::device
