#include "imbrex/device/memory.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/seats.hpp"
#include "shmem/memory.hpp"

namespace imbrex::shmem {
namespace {

// For DeviceMemory's copies, of memory that somebody else has.
runtime::DeviceMemory view(const std::byte* data, std::size_t bytes) {
  return {bytes, std::shared_ptr<void>(const_cast<std::byte*>(data), [](void*) {})};
}

// What the heap has: the caller's bytes, states and what alignment takes, in whole pages of a GPU.
std::size_t all_bytes(const HeapOptions& options) {
  constexpr std::size_t page = std::size_t{2} << 20;
  return (options.bytes + sizeof(TeamStates) + (std::size_t{64} << 10) + page - 1) / page * page;
}

class GpuMemory final : public Memory {
 public:
  GpuMemory(World& world, const HeapOptions& options)
      : memory_(world, {.bytes = all_bytes(options),
                        .ranks_per_gpu = runtime::ranks_per_gpu_of(world, options.ranks_per_gpu),
                        .pauses = options.pauses,
                        .max_pause = options.max_pause}),
        sms_(runtime::multiprocessors_of(memory_.gpu()) / runtime::ranks_per_gpu_of(world, options.ranks_per_gpu)) {
    const int pe = world.rank();
    const double limit = world.options().wait_limit;
    handle_.group = memory_.group(
        1, [pe, limit](const device::Fault& fault) { return fault_words(fault, pe, limit); }, true);
    teams_ = static_cast<TeamStates*>(memory_.allocate(sizeof(TeamStates)));
    handle_.own = reinterpret_cast<std::byte*>(handle_.group.own);
    handle_.bytes = all_bytes(options);
    handle_.contexts = options.contexts;
  }

  Device device() const override { return Device::cuda; }
  int gpu() const override { return memory_.gpu(); }
  int multiprocessors() const override { return sms_; }
  const Handle& handle() const override { return handle_; }
  void use_transport(const void* transport) override { handle_.transport = transport; }
  TeamStates* teams() const override { return teams_; }

  std::byte* allocate(std::size_t bytes) override { return static_cast<std::byte*>(memory_.allocate(bytes)); }
  void release(std::byte* own) override { memory_.release(own); }

  void write(std::byte* there, const void* here, std::size_t bytes) override {
    runtime::select_gpu(gpu());
    view(there, bytes).upload(here);
  }
  void read(void* here, const std::byte* there, std::size_t bytes) override {
    runtime::select_gpu(gpu());
    view(there, bytes).download(here);
  }
  void zero(std::byte* own, std::size_t bytes) override {
    runtime::select_gpu(gpu());
    view(own, bytes).fill(0);
  }

  void check() override { memory_.check(); }
  void finish(CudaStream stream) override { memory_.finish(stream); }

 private:
  device::Memory memory_;
  int sms_;
  TeamStates* teams_ = nullptr;
  Handle handle_{};
};

}  // namespace

std::unique_ptr<Memory> gpu_memory(World& world, const HeapOptions& options) {
  return std::make_unique<GpuMemory>(world, options);
}

}  // namespace imbrex::shmem
