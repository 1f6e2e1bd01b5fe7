#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "imbrex/gpu.hpp"
#include "runtime/failure.hpp"
#include "shmem/parts.hpp"

namespace imbrex::shmem {
namespace {

constexpr std::size_t largest_alignment = 4096;

// What a PE is about to do, for its peers to compare.
struct Call {
  std::array<char, 16> name{};
  std::uint64_t first = 0, second = 0;

  bool operator==(const Call&) const = default;
  std::string text() const { return fmt::format("{}({}, {})", name.data(), first, second); }
};

void expect_agreement(World& world, const char* name, std::uint64_t first, std::uint64_t second) {
  Call own{{}, first, second};
  std::strncpy(own.name.data(), name, own.name.size() - 1);
  std::vector<Call> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  for (std::size_t pe = 1; pe < all.size(); ++pe) {
    all[pe].name.back() = all[0].name.back() = 0;
    IMBREX_EXPECTS(all[pe] == all[0], "PEs disagree: PE 0 calls {}, PE {} calls {}", all[0].text(), pe, all[pe].text());
  }
}

void validate(const World& world, const HeapOptions& options) {
  IMBREX_EXPECTS(world.size() <= static_cast<int>(max_pes), "{} PEs: a heap has up to {}", world.size(), max_pes);
  IMBREX_EXPECTS(options.bytes > 0 && options.bytes <= std::size_t{1} << 46,
                 "bytes = {}: a heap has from 1 byte to 64 TiB a PE", options.bytes);
  IMBREX_EXPECTS(options.ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be 1 or more", options.ranks_per_gpu);
  IMBREX_EXPECTS(options.contexts >= 1, "contexts = 0: kernels need one at least");
  IMBREX_EXPECTS(options.max_pause >= 0 && options.max_pause <= 1, "max_pause = {} s: it must be from 0 to 1",
                 options.max_pause);
}

// Where `automatic` puts the heap: on GPUs if every PE sees enough of them.
Device place_of(World& world, const HeapOptions& options) {
  if (options.device != Device::automatic) return options.device;
  const auto gpus = survey_gpus().gpus.size() *
                    static_cast<std::size_t>(std::max(options.ranks_per_gpu, world.options().ranks_per_gpu));
  const bool enough = gpus >= static_cast<std::size_t>(world.size());
  std::vector<char> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&enough, all.data(), sizeof enough);
  return std::find(all.begin(), all.end(), 0) == all.end() ? Device::cuda : Device::cpu;
}

}  // namespace

HeapOptions HeapOptions::from_environment() {
  const std::string device = base::environment().shmem_device();
  return {.device = device == "auto"  ? Device::automatic
                    : device == "cpu" ? Device::cpu
                                      : Device::cuda,
          .bytes = base::environment().shmem_symmetric_size(),
          .ranks_per_gpu = base::environment().shmem_ranks_per_gpu()};
}

Heap::Parts::Parts(World& its, const HeapOptions& options) : world(its), exceptions(std::uncaught_exceptions()) {
  validate(world, options);
  expect_agreement(world, "Heap", options.bytes, options.contexts);
  if (place_of(world, options) == Device::cuda) {
    IMBREX_EXPECTS(world.hosts() == 1,
                   "a heap on GPUs of {} hosts: it lies on GPUs of one host, or in memory (Device::cpu)",
                   world.hosts());
    data = gpu_memory(world, options);
    control = host_memory(world, options, alignof(std::max_align_t));
  } else {
    control = host_memory(world, options, options.bytes);
  }
  teams[0] = true;
}

Heap::Heap(World& world, const HeapOptions& options) : parts_(std::make_unique<Parts>(world, options)) {}

Heap::~Heap() {
  if (std::uncaught_exceptions() > parts_->exceptions) return;
  try {
    parts_->world.barrier();
    parts_->control->give_back();
    parts_->world.barrier();  // all have cleared their parts before a peer writes into what is allocated there next
  } catch (const Error&) {
    // The world has failed, and its next call says so.
  }
}

World& Heap::world() const { return parts_->world; }
int Heap::pe() const { return parts_->world.rank(); }
int Heap::pes() const { return parts_->world.size(); }
Device Heap::device() const { return parts_->memory().device(); }
int Heap::gpu() const { return parts_->memory().gpu(); }
int Heap::multiprocessors() const { return parts_->memory().multiprocessors(); }
const Handle& Heap::handle() const { return parts_->memory().handle(); }
void Heap::use_transport(const void* transport) { parts_->memory().use_transport(transport); }
const Handle& Heap::host_handle() const { return parts_->control->handle(); }

void* Heap::allocate(std::size_t bytes, std::size_t alignment) {
  IMBREX_EXPECTS(alignment >= 1 && alignment <= largest_alignment && (alignment & (alignment - 1)) == 0,
                 "alignment = {}: it must be a power of two up to {}", alignment, largest_alignment);
  expect_agreement(parts_->world, "allocate", bytes, alignment);
  if (bytes == 0) return nullptr;
  const Handle& handle = parts_->memory().handle();
  // What the largest alignment adds must not wrap; so much no heap has.
  const std::size_t more = alignment > 256 ? alignment : 0;
  if (bytes > handle.bytes)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: {} bytes asked, it has {} in all", bytes, handle.bytes));
  std::byte* raw = parts_->memory().allocate(bytes + more);
  // NOTE: addresses of PEs differ by whole pages, so that all get the same offset.
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  std::byte* own = raw + ((address + alignment - 1) / alignment * alignment - address);
  parts_->blocks.emplace(own, Allocation{raw, bytes});
  return own;
}

void Heap::release(void* own) {
  const auto found = parts_->blocks.find(static_cast<std::byte*>(own));
  const bool known = own == nullptr || found != parts_->blocks.end();
  const auto offset = own == nullptr ? 0 : static_cast<std::uint64_t>(static_cast<std::byte*>(own) - handle().own);
  expect_agreement(parts_->world, "release", known ? 1 : 0, offset);
  IMBREX_EXPECTS(known, "release of {}: this heap did not give it, or has it back", own);
  if (own == nullptr) return;
  parts_->memory().release(found->second.raw);
  parts_->blocks.erase(found);
}

bool Heap::holds(const void* own, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(own), first = reinterpret_cast<std::uintptr_t>(handle().own);
  return address >= first && address - first <= handle().bytes && bytes <= handle().bytes - (address - first);
}

void* Heap::pointer(const void* own, int pe) const {
  parts_->expect_pe(pe);
  if (!holds(own, 1) || !parts_->is_near(pe)) return nullptr;
  return const_cast<std::byte*>(
      device::at_rank(handle().group, static_cast<const std::byte*>(own), static_cast<std::uint32_t>(pe)));
}

std::byte* Heap::Parts::there(const void* own, std::size_t bytes, int pe) const {
  expect_pe(pe);
  const Handle& handle = memory().handle();
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(own) - handle.own);
  IMBREX_EXPECTS(offset <= handle.bytes && bytes <= handle.bytes - offset,
                 "{} bytes at {} of PE {}: the symmetric heap does not hold them", bytes, own, pe);
  IMBREX_EXPECTS(is_near(pe), "{} bytes of PE {}: it is on host {}, and this host, {}, does not reach its memory",
                 bytes, pe, world.host_name(world.host_of(pe)), world.host_name(world.host_of(world.rank())));
  auto* mine = const_cast<std::byte*>(static_cast<const std::byte*>(own));
  return device::at_rank(handle.group, mine, static_cast<std::uint32_t>(pe));
}

void Heap::Parts::expect_pe(int pe) const {
  IMBREX_EXPECTS(pe >= 0 && pe < world.size(), "PE {}: PEs are 0 to {}", pe, world.size() - 1);
}

bool Heap::Parts::is_near(int pe) const { return world.host_of(pe) == world.host_of(world.rank()); }

void Heap::Parts::throw_failure() {
  control->check();
  runtime::fail_as_told(world);
}

void Heap::write(void* own, const void* here, std::size_t bytes, int pe) {
  std::byte* there = parts_->there(own, bytes, pe);
  if (bytes != 0) parts_->memory().write(there, here, bytes);
}

void Heap::read(void* here, const void* own, std::size_t bytes, int pe) {
  const std::byte* there = parts_->there(own, bytes, pe);
  if (bytes != 0) parts_->memory().read(here, there, bytes);
}

void Heap::check() {
  if (parts_->data) parts_->data->check();
  parts_->control->check();
}

void Heap::finish(CudaStream stream) {
  parts_->memory().finish(stream);
  parts_->control->check();
}

void Heap::run_blocks(std::uint32_t blocks, const std::function<void(std::uint32_t)>& block) {
  std::exception_ptr thrown;
  std::mutex lock;
  const auto run = [&](std::uint32_t index) {
    try {
      block(index);
    } catch (...) {
      const std::lock_guard guard(lock);
      if (!thrown) thrown = std::current_exception();
    }
  };
  if (blocks == 1) {
    run(0);
  } else {
    std::vector<std::thread> threads;
    for (std::uint32_t index = 0; index < blocks; ++index) threads.emplace_back(run, index);
    for (std::thread& thread : threads) thread.join();
  }
  if (thrown) std::rethrow_exception(thrown);
  check();
}

}  // namespace imbrex::shmem
