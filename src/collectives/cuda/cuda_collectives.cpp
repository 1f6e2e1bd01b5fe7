#include "collectives/cuda/cuda_collectives.hpp"

#include <algorithm>
#include <vector>

#include "collectives/backend.hpp"
#include "collectives/cuda/wire/sizes.hpp"
#include "runtime/agreement.hpp"
#include "runtime/attachment.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/await_stream.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/early_launch.hpp"
#include "runtime/cuda/fault_text.hpp"
#include "runtime/cuda/seats.hpp"
#include "runtime/failure.hpp"
#include "runtime/group.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::cuda {
namespace {

// Kernels without codecs have as many as serve the links.
constexpr std::uint32_t usual_blocks = 128;

// Refuses before anything is taken, on every rank alike.
std::size_t workspace_for(const World& world, const CollectivesOptions& options) {
  IMBREX_EXPECTS(world.size() <= static_cast<int>(max_comm_ranks), "{} ranks: collectives on GPUs take at most {}",
                 world.size(), max_comm_ranks);
  constexpr std::size_t least = std::size_t{16} << 20;
  IMBREX_EXPECTS(options.workspace_bytes >= least, "workspace_bytes = {}: at least {} are needed",
                 options.workspace_bytes, least);
  IMBREX_EXPECTS(options.max_delay >= 0 && options.max_delay <= 1, "max_delay = {} s: it must be from 0 to 1",
                 options.max_delay);
  IMBREX_EXPECTS(options.ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be 1 or more", options.ranks_per_gpu);
  return options.workspace_bytes;
}

std::string text_of(const device::Fault& f, int rank, const runtime::WaitLimits& limits) {
  constexpr const char* what[] = {"vector", "part of this rank's sums", "sums", "free slots", "block", "vote"};
  const std::string who = fmt::format("rank {}", rank),
                    where = fmt::format("in collective call {}, block {}, for rank {}'s {}", std::uint64_t{f.epoch},
                                        std::uint32_t{f.place[1]}, std::uint32_t{f.place[0]}, what[f.kind]);
  if (f.expected != 0) return runtime::fault_text(f, who, limits, where, "chunks");
  const std::uint64_t packet = f.place[2] | std::uint64_t{f.place[3]} << 32;
  return runtime::fault_text(f, who, limits, fmt::format("{} (packet {})", where, packet));
}

void expect_apart(const void* in, std::size_t in_bytes, const void* out, std::size_t out_bytes, std::size_t element) {
  for (const void* p : {in, out})
    IMBREX_EXPECTS(p != nullptr && reinterpret_cast<std::uintptr_t>(p) % element == 0,
                   "operand at {}: it must be aligned to its elements' {} bytes", p, element);
  const auto *first = static_cast<const std::byte*>(in), *to = static_cast<const std::byte*>(out);
  IMBREX_EXPECTS(first + in_bytes <= to || to + out_bytes <= first,
                 "out at {} ({} bytes) overlaps in at {} ({} bytes): they must be apart, or in place", out, out_bytes,
                 in, in_bytes);
}

// SMs of the rank's GPU that has the fewest; all GPUs must run the kernels: chunks and slots lie where the number of
// blocks puts them, on every rank alike.
int fewest_processors(World& world, int device) {
  const auto all = runtime::agree(world, [&] {
    const Gpu& gpu = runtime::gpu_of(device);
    IMBREX_EXPECTS(gpu.major == 9,
                   "GPU {} is of compute capability {}.{}: collectives of Imbrex' own take 9.0 (Hopper)", device,
                   gpu.major, gpu.minor);
    load_exact_kernels();
    load_quantized_kernels();
    load_exchange_kernels();
    load_rms_norm_kernels();
    load_vote_kernels();
    return runtime::Terms("the kernels of collectives").tell(runtime::sms_of(device));
  });
  return static_cast<int>(*std::min_element(all.begin(), all.end()));
}

}  // namespace

CudaCollectives::CudaCollectives(World& world, int device, const CollectivesOptions& options)
    : world_(world),
      device_(device),
      policy_(collectives::agreed_policy(world, runtime::gpu_of(device).name)),
      ranks_per_gpu_(runtime::ranks_per_gpu_of(world, options.ranks_per_gpu)),
      heap_(world, device, workspace_for(world, options)) {
  // Where MPS shows this process a part of the GPU only, no more than that part runs at once.
  const int fewest = fewest_processors(world, device), for_others = world.options().sms_for_others;
  processors_ = std::min(static_cast<std::uint32_t>(runtime::collective_blocks(fewest, ranks_per_gpu_, for_others)),
                         max_comm_blocks);
  limited_ = ranks_per_gpu_ > 1 || for_others > 0;
  usual_blocks_ = limited_ ? std::min(processors_, usual_blocks) : usual_blocks;
  offset_ = heap_.allocate(options.workspace_bytes);
  heap_.keep(offset_, slots_offset);
  comm_.copy_bytes = (options.workspace_bytes - slots_offset) / 4 / 4096 * 4096;
  runtime::agree(world, [&] {
    fault_ = faults_.take();
    static_cast<device::Group&>(comm_) =
        runtime::group_of(world, heap_.handle(), offset_, runtime::FaultPool::on_device(fault_.get()),
                          {options.delays, options.max_delay});
    empty_slots(cudaStreamLegacy);
    IMBREX_CUDA_TRY(cudaStreamSynchronize(cudaStreamLegacy));
    return runtime::Terms("the workspace of collectives");
  });
  // Hosts that queue calls do not look after the world.
  lookout_.emplace([this] { return look_out(); });
}

// The slots of packets are empty before anybody sends.
void CudaCollectives::empty_slots(cudaStream_t stream) const {
  std::byte* const slots = heap_.handle().at(world_.rank(), offset_) + slots_offset;
  IMBREX_CUDA_TRY(cudaMemsetAsync(slots, 0xff, 2 * comm_.copy_bytes, stream));
}

void CudaCollectives::restore() {
  heap_.restore(world_, [this](cudaStream_t stream) { empty_slots(stream); });
}

// What peers still send lies in memory that lives as long as they map it.
CudaCollectives::~CudaCollectives() { await_all(); }

// On a thread of its own.
bool CudaCollectives::look_out() noexcept {
  if (const int late = runtime::take_late_rank(*fault_); late >= 0)
    runtime::tell_late(world_, {late}, fmt::format("collective call {}", std::uint64_t{fault_->epoch}));
  if (!runtime::has_failed(world_)) return true;
  abort();
  return false;
}

void CudaCollectives::await_all() const noexcept {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
}

void CudaCollectives::expect_alive() {
  look();
  world_.throw_if_failed();
  IMBREX_EXPECTS(!dead_, "these collectives failed before");
}

// Ranks that share a GPU must all run at once, and so must kernels of others.
std::uint32_t CudaCollectives::own_blocks(std::uint32_t wanted, std::uint32_t usual) const {
  if (wanted == 0) return usual;
  return limited_ ? std::min(wanted, processors_) : wanted;
}

// Bytes of a slot for a whole vector from each rank.
std::uint64_t CudaCollectives::slot_bytes() const { return comm_.copy_bytes / comm_.ranks / 256 * 256; }

std::int64_t CudaCollectives::one_shot_bytes(Type type, std::int64_t row_bytes) const {
  const std::uint64_t row = static_cast<std::uint64_t>(row_bytes), in_slots = ceil_div(row, packet_size) * packet_size;
  return std::min(policy_.one_shot_bytes(type), static_cast<std::int64_t>(slot_bytes() / in_slots * row));
}

void CudaCollectives::expect_operands(const void* in, const void* out, std::int64_t count, Type type) {
  expect_alive();
  IMBREX_EXPECTS(count >= 0, "count = {}: it must not be negative", count);
  if (count == 0) return;
  const std::size_t element = size_of(type), bytes = static_cast<std::size_t>(count) * element;
  expect_apart(in, in == out ? 0 : bytes, out, in == out ? 0 : bytes, element);
}

void CudaCollectives::expect_blocks(ExchangeKind kind, const void* in, const void* out, std::int64_t count, Type type) {
  expect_alive();
  IMBREX_EXPECTS(count >= 0, "count = {}: it must not be negative", count);
  if (count == 0) return;
  const std::size_t element = size_of(type), bytes = static_cast<std::size_t>(count) * element;
  const bool gathers = kind == ExchangeKind::all_gather, sums = kind == ExchangeKind::reduce_scatter;
  // In place, a thread has read what it writes: one operand is a block of the other.
  const auto *from = static_cast<const std::byte*>(in), *to = static_cast<const std::byte*>(out);
  const auto block = [&](const std::byte* part, const std::byte* whole) {
    return part >= whole && part < whole + comm_.ranks * bytes && static_cast<std::size_t>(part - whole) % bytes == 0;
  };
  if ((gathers && block(from, to)) || (sums && block(to, from))) return expect_apart(in, 0, out, 0, element);
  expect_apart(in, bytes * (gathers ? 1 : comm_.ranks), out, bytes * (sums ? 1 : comm_.ranks), element);
}

void CudaCollectives::launch(const void* kernel, std::uint32_t blocks, std::uint32_t threads, void* args,
                             cudaStream_t stream, std::size_t shared_bytes, std::uint32_t cluster) const {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  cudaLaunchAttribute attributes[2] = {early_launch(!limited_), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  IMBREX_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, &args));
}

CommState CudaCollectives::own_state() const {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  CommState state;
  IMBREX_CUDA_TRY(cudaMemcpy(&state, heap_.handle().at(world_.rank(), offset_), sizeof state, cudaMemcpyDeviceToHost));
  return state;
}

std::vector<std::byte> CudaCollectives::own_workspace() const {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  std::vector<std::byte> all(slots_offset + 4 * comm_.copy_bytes);
  IMBREX_CUDA_TRY(
      cudaMemcpy(all.data(), heap_.handle().at(world_.rank(), offset_), all.size(), cudaMemcpyDeviceToHost));
  return all;
}

CommReport CudaCollectives::report() const {
  const CommState state = own_state();
  return state.reports[(state.blocks[0].epoch + 1) & 1];
}

void CudaCollectives::keep_report(KeptReport* to, cudaStream_t stream) const {
  const std::byte* state = heap_.handle().at(world_.rank(), offset_);
  IMBREX_CUDA_TRY(
      cudaMemcpyAsync(to, state + offsetof(CommState, exact_epoch), sizeof *to, cudaMemcpyDeviceToDevice, stream));
}

CudaCollectives::Told CudaCollectives::told_by(const KeptReport* kept) {
  KeptReport here;
  IMBREX_CUDA_TRY(cudaMemcpy(&here, kept, sizeof here, cudaMemcpyDeviceToHost));
  return {here.reports[(here.block.epoch + 1) & 1], here.exact_epoch != 0 && here.exact_epoch + 1 == here.block.epoch};
}

void CudaCollectives::finish(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  bool told = false;
  const cudaError_t status = runtime::await_stream(stream, [&] {
    try {
      world_.throw_if_failed();
    } catch (const Error&) {
      abort();  // a peer is lost
      told = true;
    }
  });
  if (status != cudaSuccess)
    fail(fmt::format("rank {}: the GPU reports: {}", world_.rank(), cudaGetErrorString(status)));
  if (runtime::is_faulty(*fault_) || told) throw_fault();
}

// Throws the world's first failure, which may be the loss of the rank that this one waited for.
void CudaCollectives::look() {
  if (runtime::is_faulty(*fault_)) throw_fault();
}

void CudaCollectives::abort() noexcept { fault_->abort = 1; }

void CudaCollectives::fail(const std::string& message) {
  dead_ = true;
  runtime::fail(world_, message);
}

void CudaCollectives::throw_fault() {
  dead_ = true;
  if (fault_->state != device::Fault::clear)
    fail(text_of(*fault_, world_.rank(), runtime::limits_of(world_.options())) +
         runtime::calls_of(world_).absence("this rank's last call"));
  runtime::fail_as_told(world_);
}

namespace {

// Null where the world has none.
CudaCollectives* collectives_there(World& world) {
  return static_cast<CudaCollectives*>(runtime::collectives_slot(world).get());
}

}  // namespace

std::shared_ptr<CudaCollectives> collectives_of(World& world, int ranks_per_gpu) {
  const int device = runtime::select_device(world, ranks_per_gpu);
  std::shared_ptr<void>& kept = runtime::collectives_slot(world);
  if (kept == nullptr)
    kept = std::make_shared<CudaCollectives>(world, device, CollectivesOptions{.ranks_per_gpu = ranks_per_gpu});
  return std::static_pointer_cast<CudaCollectives>(kept);
}

}  // namespace imbrex::cuda

namespace imbrex {

bool collectives::are_on_gpus(World& world) { return cuda::collectives_there(world) != nullptr; }

void collectives::check_gpus(World& world) {
  if (auto* there = cuda::collectives_there(world)) there->look();
}

void collectives::trim_gpus(World& world) {
  if (auto* there = cuda::collectives_there(world)) there->trim();
}

void collectives::restore_gpus(World& world) {
  if (auto* there = cuda::collectives_there(world)) there->restore();
}

}  // namespace imbrex
