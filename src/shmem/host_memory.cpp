#include <sys/mman.h>

#include <cstring>

#include "base/check.hpp"
#include "runtime/failure.hpp"
#include "runtime/group.hpp"
#include "runtime/heap.hpp"
#include "runtime/host_world.hpp"
#include "runtime/lookout.hpp"
#include "runtime/memory.hpp"
#include "shmem/memory.hpp"

namespace imbrex::shmem {
namespace {

// In front of what is given to callers, which begins as aligned as each piece of it is to be.
constexpr std::size_t own_bytes =
    (sizeof(device::State) + sizeof(TeamStates) + runtime::OffsetAllocator::alignment - 1) /
    runtime::OffsetAllocator::alignment * runtime::OffsetAllocator::alignment;

class HostMemory final : public Memory {
 public:
  HostMemory(World& world, const HeapOptions& options, std::size_t bytes)
      : world_(world),
        offset_(world.heap().allocate(own_bytes + bytes)),
        allocator_(bytes),
        // Kernels and host threads that wait look at no more than a word.
        lookout_([this] {
          if (!runtime::has_failed(world_)) return true;
          device::write_down(fault_.abort, 1);
          return false;
        }) {
    const HeapHandle heap = world.heap().handle();
    std::byte* own = heap.at(world.rank(), offset_);
    handle_.group = runtime::group_of(world, heap, offset_, &fault_, {options.pauses, options.max_pause});
    teams_ = reinterpret_cast<TeamStates*>(own + sizeof(device::State));
    handle_.own = own + own_bytes;
    handle_.bytes = bytes;
    handle_.contexts = options.contexts;
    for (int pe = 0; pe < world.size(); ++pe)
      if (world.host_of(pe) != world.host_of(world.rank())) stand_in_for_state(heap.at(pe, offset_));
    world.barrier();  // peers' parts are there
  }

  void give_back() override { world_.heap().release(offset_); }

  Device device() const override { return Device::cpu; }
  const Handle& handle() const override { return handle_; }
  void use_transport(const void* transport) override { handle_.transport = transport; }
  TeamStates* teams() const override { return teams_; }

  std::byte* allocate(std::size_t bytes) override {
    const auto offset = allocator_.allocate(bytes);
    if (!offset)
      throw Error(ErrorCode::runtime_failure,
                  fmt::format("symmetric heap is full: {} bytes asked, {} left, {} of them in one piece", bytes,
                              allocator_.free_bytes(), allocator_.largest_free()));
    return handle_.own + *offset;
  }

  void release(std::byte* own) override {
    world_.barrier();
    const auto bytes = allocator_.release(static_cast<std::size_t>(own - handle_.own));
    runtime::zero_shared(own, *bytes);
    world_.barrier();
  }

  void write(std::byte* there, const void* here, std::size_t bytes) override { std::memcpy(there, here, bytes); }
  void read(void* here, const std::byte* there, std::size_t bytes) override { std::memcpy(here, there, bytes); }
  void zero(std::byte* own, std::size_t bytes) override { std::memset(own, 0, bytes); }

  void check() override {
    const auto state = device::word_at<std::uint32_t>(&fault_.state).load(std::memory_order_acquire);
    if (state != device::Fault::clear)
      runtime::fail(world_,
                    fmt::format("rank {}: {}{}", world_.rank(),
                                fault_words(fault_, world_.rank(), world_.options().wait_limit), host_of_far_pe()));
    world_.throw_if_failed();
    if (device::word_at<std::uint32_t>(&fault_.ended_early).load(std::memory_order_acquire) != 0)
      runtime::fail_as_told(world_);
  }

  void finish(CudaStream) override { check(); }

 private:
  // Who gives up stores the word that ends waits to all PEs. Those of other hosts learn of it by the world; what is
  // stored at their places here goes nowhere.
  static void stand_in_for_state(std::byte* place) {
    const std::size_t page = runtime::page_bytes();
    const auto within = reinterpret_cast<std::uintptr_t>(place) % page;
    static_assert(sizeof(device::State) <= runtime::OffsetAllocator::alignment);
    IMBREX_SYSTEM(mprotect(place - within, page, PROT_READ | PROT_WRITE));
    auto& epoch = reinterpret_cast<device::State*>(place)->epoch;
    device::word_at<std::uint64_t>(&epoch).store(epoch_of_far, std::memory_order_relaxed);
  }

  std::string host_of_far_pe() const {
    if (fault_.kind != static_cast<std::uint32_t>(FaultKind::far)) return {};
    return fmt::format(" (host {})", world_.host_name(world_.host_of(static_cast<int>(fault_.place[1]))));
  }

  World& world_;
  std::size_t offset_;
  runtime::OffsetAllocator allocator_;
  TeamStates* teams_ = nullptr;
  Handle handle_{};
  device::Fault fault_{};
  runtime::Lookout lookout_;  // the last: its thread looks at the others
};

}  // namespace

std::unique_ptr<Memory> host_memory(World& world, const HeapOptions& options, std::size_t bytes) {
  return std::make_unique<HostMemory>(world, options, bytes);
}

}  // namespace imbrex::shmem
