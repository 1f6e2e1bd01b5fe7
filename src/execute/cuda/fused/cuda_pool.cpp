#include "execute/cuda/fused/cuda_pool.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <utility>

#include "plan/operand_buffers.hpp"
#include "runtime/agreement.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/gpu_clock.hpp"
#include "runtime/cuda/seats.hpp"

namespace imbrex::cuda {
namespace {

cudaStream_t new_stream() {
  cudaStream_t made = nullptr;
  IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}

}  // namespace

cudaEvent_t new_event() {
  cudaEvent_t made = nullptr;
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  return made;
}

// Asking loads the kernel, and takes the driver long: once for a device.
int workers_of(const GemmKernel& kernel, int device) {
  static std::mutex lock;
  static std::map<std::pair<const GemmKernel*, int>, int> known;
  const std::lock_guard guard(lock);
  const auto [place, fresh] = known.try_emplace({&kernel, device}, 0);
  if (!fresh) return place->second;
  place->second = kernel.workers();
  // NOTE: of how many clusters run at once, the driver may speak for a whole GPU of which MPS shows this process a
  // part. Blocks of Hopper's kernels take an SM each; other kernels count their blocks by the device's SMs.
  const int sms = runtime::sms_of(device);
  place->second = kernel.anywhere ? place->second * sms / runtime::gpu_of(device).sms
                                  : std::min(place->second, sms / kernel.shape.cluster);
  return place->second;
}

int workers_of(const GemmKernel& kernel, int device, const World& world) {
  return runtime::clusters_beside(workers_of(kernel, device), kernel.shape.cluster, runtime::sms_of(device),
                                  world.options().sms_for_others);
}

// All ranks get what they need beside the heap, or all fail; so with the heap's part, and with what goes into it.
CudaPool::CudaPool(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults, int device,
                   const PoolNeeds& needs, const CudaOptions& options)
    : world_(world),
      heap_(heap),
      calls_(calls),
      device_(device),
      options_(options),
      epoch_(options.testing.first_epoch),
      needs_(needs),
      taken_{heap},
      out_bytes_(needs.out_bytes),
      exceptions_(std::uncaught_exceptions()) {
  runtime::agree(world_, [&] {
    take_beside_heap(faults);
    return runtime::Terms("memory for plans that take turns");
  });
  const auto in_heap = [this](std::size_t bytes) { return taken_.keep(heap_.allocate_or_grow(world_, bytes)); };
  state_offset_ = in_heap(pool_state_bytes);
  heap_.keep(state_offset_, pool_state_bytes);
  if (needs.out_in_heap) {
    out_offset_ = in_heap(out_bytes_);
    has_out_ = true;
  }
  std::optional<std::size_t> first = in_heap(execute::HeapLayout::bytes_of_halves(needs.share));
  const auto allocate = [this, first](std::size_t bytes) mutable {
    if (first) return *std::exchange(first, std::nullopt);
    // Memory that was never used: what was given back, a slower rank may still be clearing.
    return taken_.keep(heap_.allocate_unused(bytes));
  };
  plans_.emplace(allocate, needs.share, epoch_);
  keep_counters(0);
  runtime::agree(world_, [&] {
    copy_first(needs.table_bytes);
    start();
    return runtime::Terms("the state of plans that take turns");
  });
}

void CudaPool::take_beside_heap(runtime::FaultPool& faults) {
  fault_ = faults.take();
  stream_.reset(new_stream());
  after_calls_.reset(new_stream());
  passed_.reset(new_event());
  tables_.emplace(2 * (needs_.table_bytes + 16 * needs_.share.counters + 512));
  if (options_.timeline) to_host_ = runtime::gpu_clock_to_host();
}

// Counters go on for ever, so they outlive a trim.
void CudaPool::keep_counters(std::size_t area) {
  const execute::PlanShare& half = plans_->half(area);
  heap_.keep(plans_->offset(area) + 2 * half.bytes, 2 * half.counters * execute::HeapLayout::counter_stride);
}

// NOTE: a stream's first copies wait for kernels of other ranks on the GPU: these are they, small and large.
void CudaPool::copy_first(std::size_t bytes) {
  const std::vector<std::byte> blank(std::max<std::size_t>(bytes, 256));
  std::byte* to = take(blank.size());
  for (const std::size_t part : {std::size_t{256}, blank.size()}) {
    IMBREX_CUDA_TRY(cudaMemcpyAsync(to, blank.data(), part, cudaMemcpyHostToDevice, stream()));
    IMBREX_CUDA_TRY(cudaStreamSynchronize(stream()));
  }
  tables_->give_back(to);
}

// Rank 0's GPU decides which kernel a plan runs, on every rank: all choose by its numbers.
void CudaPool::load_kernels(Type type) {
  if (has_kernels(type)) return;
  const std::span<const GemmKernel* const> listed = tensor_core_kernels();
  const std::size_t count = listed.size();
  const int generation = runtime::gpu_of(device_).major;
  std::vector<int> own(count + 2, 0);
  runtime::agree(world_, [&] {
    for (std::size_t i = 0; i < count; ++i) {
      const GemmKernel& k = *listed[i];
      if (k.type == type && asked_for(k, generation, options_)) own[i] = workers_of(k, device_, world_);
    }
    own[count] = workers_of(plain_kernel(type), device_, world_);
    own[count + 1] = generation;
    return runtime::Terms("kernels").add("type", name_of(type));
  });
  std::vector<int> all(own.size() * static_cast<std::size_t>(world_.size()));
  world_.all_gather(own.data(), all.data(), own.size() * sizeof(int));
  OfType& made = kernels_[type];
  made.workers.assign(all.begin(), all.begin() + std::ssize(own));
  made.listed = {
      {listed.begin(), listed.end()}, &plain_kernel(type), made.workers[count + 1], [&made](const KernelVariant& k) {
        const auto& variants = made.listed.tensor_core;
        const auto found = std::find(variants.begin(), variants.end(), &k);
        return made.workers[static_cast<std::size_t>(found - variants.begin())];
      }};
}

void CudaPool::reserve_tables(std::size_t bytes) {
  runtime::agree(world_, [&] {
    tables_->reserve(bytes);
    return runtime::Terms("memory for tables").add("bytes", bytes);
  });
}

std::vector<Type> CudaPool::types() const {
  std::vector<Type> all;
  for (const auto& [type, of_type] : kernels_) all.push_back(type);
  return all;
}

// As if every epoch before the first had run, each with one post to every signal of the first area.
void CudaPool::start() {
  const execute::PlanShare& half = plans_->half(0);
  const std::uint32_t count = plans_->first_count();
  if (count != 0) {
    constexpr std::size_t stride = execute::HeapLayout::counter_stride;
    std::vector<std::byte> counters(2 * half.counters * stride);
    for (std::size_t i = 0; i < counters.size(); i += stride) std::memcpy(counters.data() + i, &count, sizeof count);
    cuda::upload(heap_.handle().at(world_.rank(), plans_->offset(0) + 2 * half.bytes), counters.data(),
                 counters.size());
  }
  device::State state{};
  state.epoch = epoch_;
  state.entered = static_cast<std::uint32_t>(epoch_ & 0xffffffff);
  cuda::upload(heap_.handle().at(world_.rank(), state_offset_), &state, sizeof state);
  const EpochPosts none[2] = {};
  last_ = reinterpret_cast<EpochPosts*>(take(sizeof none));
  cuda::upload(last_, none, sizeof none);
  bases_.push_back(bases_for(half, count));
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
}

// NOTE: the driver may set memory by a kernel, which would find no room while one waits for this rank: a copy.
std::uint32_t* CudaPool::bases_for(const execute::PlanShare& half, std::uint32_t count) {
  const std::vector<std::uint32_t> bases(2 * half.counters, count);
  const std::size_t bytes = bases.size() * sizeof bases[0];
  auto* made = reinterpret_cast<std::uint32_t*>(take(std::max<std::size_t>(bytes, 1)));
  IMBREX_CUDA_TRY(cudaMemcpyAsync(made, bases.data(), bytes, cudaMemcpyHostToDevice, stream()));
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream()));
  return made;
}

// As for an execution with a place of its own: first all are idle, on every rank.
CudaPool::~CudaPool() {
  cudaSetDevice(device_);
  try {
    calls_.drain();
    cudaDeviceSynchronize();
    if (std::uncaught_exceptions() == exceptions_) world_.barrier();
  } catch (const std::exception&) {  // the world failed, and no peer reads any more
  }
  {
    const std::lock_guard guard(calls_.lock());
    for (auto* list : {&passing_, &dropped_, &held_}) list->clear();
  }
}

bool CudaPool::has_room(execute::HeapLayout& layout) const {
  layout.leave_out(plan::buffer_out);
  return plans_->has_room(layout.share()) && (has_out_ || !layout.in_heap(plan::buffer_out));
}

std::size_t CudaPool::place(execute::HeapLayout& layout) {
  layout.leave_out(plan::buffer_out);  // out() is for that
  const std::size_t area = plans_->place(layout);
  if (area == bases_.size()) {
    keep_counters(area);
    bases_.push_back(bases_for(plans_->half(area), 0));
  }
  return area;
}

PlanTurns CudaPool::join(const CudaExecution& execution, std::size_t area, const std::uint32_t* posts,
                         std::uint32_t signals) {
  const std::uint32_t number = next_number_++;
  members_.emplace(number, &execution);
  return {bases_[area], posts, last_, static_cast<std::uint32_t>(plans_->half(area).counters), signals, number, 0};
}

void CudaPool::leave(const CudaExecution& execution, const std::byte* memory) noexcept {
  std::erase_if(members_, [&](const auto& member) { return member.second == &execution; });
  if (memory != nullptr) tables_->give_back(memory);
}

void CudaPool::provide_out() {
  if (has_out_) return;
  out_offset_ = taken_.keep(heap_.allocate_unused(out_bytes_));
  has_out_ = true;
}

std::shared_ptr<Execution> CudaPool::lend(std::unique_ptr<CudaExecution> execution) {
  return {execution.release(), [self = shared_from_this()](Execution* e) {
            self->drop(std::unique_ptr<CudaExecution>(static_cast<CudaExecution*>(e)));
          }};
}

void CudaPool::drop(std::unique_ptr<CudaExecution> execution) {
  const std::lock_guard guard(calls_.lock());
  (execution->captured() ? held_ : dropped_).push_back(std::move(execution));
}

// The kernel that follows a plan's last call reads, in the plan's memory, what that call posted: it stays until another
// plan's call is over, too.
void CudaPool::collect() {
  const std::lock_guard guard(calls_.lock());
  const AsksDuringCaptures asks;
  if (!passing_.empty()) {
    if (cudaEventQuery(passed_.get()) != cudaSuccess) return static_cast<void>(cudaGetLastError());
    if (!runtime::is_faulty(*fault_)) passing_.clear();
  }
  const auto others = std::partition(dropped_.begin(), dropped_.end(),
                                     [&](const auto& execution) { return execution->number() == last_launched_; });
  if (!passing_.empty() || others == dropped_.end()) return;
  calls_.follow(after_calls_.get());
  IMBREX_CUDA_TRY(cudaEventRecord(passed_.get(), after_calls_.get()));
  passing_.assign(std::move_iterator(others), std::move_iterator(dropped_.end()));
  dropped_.erase(others, dropped_.end());
}

}  // namespace imbrex::cuda
