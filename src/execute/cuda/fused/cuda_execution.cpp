#include "execute/cuda/fused/cuda_execution.hpp"

#include <algorithm>
#include <utility>

#include "base/narrow.hpp"
#include "execute/circumstances.hpp"
#include "execute/cuda/fused/cuda_pool.hpp"
#include "execute/cuda/fused/rank_protocol.hpp"
#include "execute/cuda/products/kernel_choice.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/times/task_spans.hpp"
#include "plan/builder.hpp"
#include "plan/problem.hpp"
#include "runtime/agreement.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/fault_text.hpp"
#include "runtime/cuda/gpu_clock.hpp"

namespace imbrex::cuda {
namespace {

using base::index;

template <typename T>
std::size_t bytes_of(const std::vector<T>& v) {
  return (v.size() * sizeof(T) + 255) / 256 * 256;
}

}  // namespace

CudaExecution::CudaExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, int device,
                             std::unique_ptr<plan::TaskStream> tasks, Surveyed surveyed, const CudaOptions& options,
                             const Beside& beside)
    : KernelExecution(world, calls, device, options.timeline),
      heap_(heap),
      tasks_(std::move(tasks)),
      plan_(tasks_->frame()),
      options_(options),
      beside_(beside),
      layout_(std::move(surveyed.layout)),
      survey_(std::move(surveyed.tables)),
      own_epoch_(options.testing.first_epoch),
      out_rows_(execute::rows_of(plan_.problem, plan_.buffers[plan::buffer_out], plan::buffer_out)) {}

CudaExecution::CudaExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults,
                             int device, std::unique_ptr<plan::TaskStream> tasks, Surveyed surveyed,
                             TableMemory& memory, const CudaOptions& options, const Beside& beside)
    : CudaExecution(world, heap, calls, device, std::move(tasks), std::move(surveyed), options, beside) {
  offset_ = heap.allocate_or_grow(world, layout_.bytes() + state_bytes);
  place_.emplace(heap, offset_);
  state_offset_ = offset_ + layout_.bytes();
  heap.keep(offset_ + layout_.counter(0, 0), layout_.bytes() - layout_.counter(0, 0) + state_bytes);
  // Every kernel is loaded before any runs; refusals come before anything else is taken, on every rank alike.
  agree_on_kernel(memory);
  // What one rank cannot have, no rank uses. And no peer posts before all counters are set.
  runtime::agree(world_, [&] {
    own_fault_ = faults.take();
    fault_ = own_fault_.get();
    place_queues();
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking));
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
    IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming));
    IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming));
    upload();
    set_protocol();
    start_words(args_.protocol, layout_, own_epoch_);  // waits for the tables, too
    if (!table_.copies.empty()) prepare_skipping();
    return runtime::Terms("memory for a plan");
  });
  // The device has the tables now.
  if (!options_.timeline) memory.give_back(std::exchange(static_cast<TableEntries&>(table_), {}));
}

CudaExecution::CudaExecution(CudaPool& pool, std::unique_ptr<plan::TaskStream> tasks, Surveyed surveyed,
                             const TileCounts& leading, TableMemory& memory)
    : CudaExecution(pool.world(), pool.heap(), pool.calls(), pool.device(), std::move(tasks), std::move(surveyed),
                    pool.options()) {
  pool_ = &pool;
  epoch_ = &pool.epoch();
  fault_ = pool.fault();
  main_ = pool.stream();
  state_offset_ = pool.state_offset();
  const std::size_t area = pool.place(layout_);
  offset_ = pool.offset(area);
  take_pools_kernel(memory, leading);
  place_queues();
  const std::uint32_t* posts = upload();
  set_protocol();
  args_.protocol.turns = pool.join(*this, area, posts, static_cast<std::uint32_t>(layout_.signals(world_.rank())));
  if (layout_.in_heap(plan::buffer_out)) pool.provide_out();
  if (!options_.timeline) memory.give_back(std::exchange(static_cast<TableEntries&>(table_), {}));
}

// A peer's last epoch may still read this rank's workspaces and post to its counters: first all are idle, on every
// rank.
CudaExecution::~CudaExecution() {
  cudaSetDevice(device_);
  if (pool_ != nullptr) {
    retire();
    pool_->leave(*this, pools_memory_);
    return;
  }
  end_with_peers();
  retire();
  for (cudaStream_t stream : {main_, copies_})
    if (stream != nullptr) cudaStreamDestroy(stream);
  for (cudaEvent_t event : {begun_, copied_})
    if (event != nullptr) cudaEventDestroy(event);
}

// Slots are laid out by the kernel, so all ranks must run the same one: rank 0's. What one rank refuses, all refuse.
void CudaExecution::agree_on_kernel(TableMemory& memory) {
  const std::span<const GemmKernel* const> listed = tensor_core_kernels();
  const GemmKernel& plain = plain_kernel(plan_.problem.type);
  const Kernels kernels{
      {listed.begin(), listed.end()}, &plain, runtime::gpu_of(device_).major, [&](const KernelVariant& k) {
        return workers_of(static_cast<const GemmKernel&>(k), device_, world_);
      }};
  const KernelVariant* own = nullptr;
  // By number: other processes have the kernels elsewhere.
  const std::vector<std::int64_t> all = runtime::agree(world_, [&] {
    static_cast<void>(workers_of(plain, device_));
    own = &choose_kernel(plan_, survey_, survey_.tiles(), kernels, options_);
    table_ = table_for(own->shape, memory);
    return runtime::Terms("a kernel for a plan").tell(std::find(listed.begin(), listed.end(), own) - listed.begin());
  });
  kernel_ = all.front() < std::ssize(listed) ? listed[static_cast<std::size_t>(all.front())] : &plain;
  const int most = workers_of(*kernel_, device_, world_);
  workers_ =
      std::min(workers_of_rank(*kernel_, most, options_.ranks_per_gpu, survey_.kept_free()), most - beside_.strays);
  IMBREX_EXPECTS(workers_ > 0,
                 "kernel '{}' runs {} blocks or pairs of them at once on this GPU, of which {} are for what "
                 "runs concurrently",
                 kernel_->name, most, beside_.strays);
  if (kernel_ == own) return;
  memory.give_back(std::exchange(static_cast<TableEntries&>(table_), {}));
  table_ = table_for(kernel_->shape, memory);
}

RankTable CudaExecution::table_for(const TileShape& shape, TableMemory& memory) {
  return translate(*tasks_, survey_, layout_, world_.rank(), heap_.handle(), offset_, shape, memory.take());
}

// The same kernel, chosen by each rank by the tiles of rank 0.
void CudaExecution::take_pools_kernel(TableMemory& memory, const TileCounts& leading) {
  kernel_ = &static_cast<const GemmKernel&>(
      choose_kernel(plan_, survey_, leading, pool_->kernels(plan_.problem.type), options_));
  table_ = table_for(kernel_->shape, memory);
  IMBREX_EXPECTS(table_.copies.empty(), "{}", refusal_of_copies_in_turns());
  const int most = workers_of(*kernel_, device_, world_);
  workers_ = workers_of_rank(*kernel_, most, options_.ranks_per_gpu, survey_.kept_free());
}

void CudaExecution::place_queues() {
  const auto cluster = static_cast<std::uint32_t>(kernel_->shape.cluster);
  for (QueueSpan& queue : table_.queues) queue.workers = (queue.workers + cluster - 1) / cluster;
  place_workers(table_.queues, static_cast<std::uint32_t>(workers_));
}

const std::uint32_t* CudaExecution::upload() {
  std::vector<std::uint32_t> signals;
  for (int signal = 0; pool_ != nullptr && signal < layout_.signals(world_.rank()); ++signal)
    signals.push_back(layout_.posts(world_.rank(), signal));
  const std::vector<TaskTimes> blank(options_.timeline ? table_.tasks.size() : 0);
  const std::size_t tasks = 0, waits = tasks + bytes_of(table_.tasks), regions = waits + bytes_of(table_.waits),
                    posts = regions + bytes_of(table_.regions), in_epoch = posts + bytes_of(table_.posts),
                    times = in_epoch + bytes_of(signals), total = std::max<std::size_t>(times + bytes_of(blank), 256);
  if (pool_ != nullptr)
    pools_memory_ = pool_->take(total);
  else
    device_table_ = raw_memory(total);
  std::byte* base = pool_ != nullptr ? pools_memory_ : static_cast<std::byte*>(device_table_.get());
  // From where they lie: a copy of all of them would take longer to touch than several transfers to begin.
  const auto put = [&](std::size_t offset, const auto& v) {
    if (!v.empty())
      IMBREX_CUDA_TRY(cudaMemcpyAsync(base + offset, v.data(), v.size() * sizeof(v[0]), cudaMemcpyHostToDevice, main_));
  };
  put(tasks, table_.tasks);
  put(waits, table_.waits);
  put(regions, table_.regions);
  put(posts, table_.posts);
  put(in_epoch, signals);
  put(times, blank);
  // Kernels read tables before the stream's previous one has ended.
  IMBREX_CUDA_TRY(cudaStreamSynchronize(main_));
  args_.table.tasks = reinterpret_cast<const TaskEntry*>(base + tasks);
  args_.table.waits = reinterpret_cast<const WaitEntry*>(base + waits);
  args_.table.regions = reinterpret_cast<const RegionEntry*>(base + regions);
  args_.table.posts = reinterpret_cast<const PostEntry*>(base + posts);
  if (options_.timeline) {
    times_ = base + times;
    args_.table.times = reinterpret_cast<TaskTimes*>(times_);
    to_host_ = pool_ != nullptr ? pool_->gpu_to_host() : runtime::gpu_clock_to_host();
    if (!table_.copies.empty()) copy_times_ = std::make_unique<StepTimes>(table_.copies.size(), to_host_);
  }
  args_.table.queue_count = static_cast<std::uint32_t>(table_.queues.size());
  std::copy(table_.queues.begin(), table_.queues.end(), args_.table.queues);
  return reinterpret_cast<const std::uint32_t*>(base + in_epoch);
}

void CudaExecution::set_protocol() {
  Protocol& p = args_.protocol;
  p = protocol_of(world_, heap_.handle(), layout_, offset_, state_offset_, fault_, options_.testing,
                  pool_ != nullptr ? 2 : plan_.signal_copies);
  p.readers = blocks() + beside_.readers;  // one thread of each block

  if (table_.stores_to_peers) {
    // Four fifths of what NVLink carries each way, shared by all blocks.
    constexpr double link_bytes_per_ns = 0.8 * 370;
    const TileShape& shape = kernel_->shape;
    const double unit_bytes = static_cast<double>(shape.m * shape.n) / shape.units * 2;
    args_.unit_ns = static_cast<std::uint32_t>(unit_bytes * workers_ * shape.cluster / link_bytes_per_ns);
  }
  const RankShapes shapes = shapes_of(plan_.problem);
  for (int product = 0; product < plan::count_products(plan_.problem); ++product) {
    args_.n[product] = plan::cols_of(plan_.problem, product);
    args_.ldb[product] = layout_.pitch(plan::buffer_b_of(plan_.problem, product));
  }
  args_.k = shapes.depth;
  args_.a_rows[0] = args_.a_rows[1] = shapes.a.rows;
  args_.lda[0] = args_.lda[1] = layout_.pitch(plan::buffer_a);
  if (table_.gathered >= 0) {
    args_.a_rows[1] = plan_.buffers[index(table_.gathered)].rows;
    args_.lda[1] = layout_.pitch(table_.gathered);
    for (std::uint64_t copy = 0; copy < 2; ++copy) args_.a[1][copy] = heap_at(layout_.offset(table_.gathered, copy));
  }
  args_.b_by_columns = plan::layout_of_b(plan_.problem) == Layout::column_major ? 1 : 0;
  args_.row_scales = plan_.problem.scales == Scales::row ? 1 : 0;
  if (table_.gathered_scales >= 0)
    for (std::uint64_t copy = 0; copy < 2; ++copy)
      args_.a_scale[1][copy] = reinterpret_cast<const float*>(heap_at(layout_.offset(table_.gathered_scales, copy)));
}

void CudaExecution::set_operands(const Addresses& operands) {
  execute::expect_given(operands, plan_.problem);
  const auto expect_aligned = [&](const void* p) {
    IMBREX_EXPECTS(!kernel_->shape.registers || reinterpret_cast<std::uintptr_t>(p) % 16 == 0,
                   "operand at {}: it must be aligned to 16 bytes", p);
  };
  for (const void* p : {operands.a, operands.b, operands.bias, static_cast<const void*>(operands.a_scale),
                        static_cast<const void*>(operands.b_scale)})
    expect_aligned(p);
  for (const auto& further : operands.more) expect_aligned(further.b), expect_aligned(further.bias);
  args_.a[0][0] = args_.a[0][1] = operands.a;
  if (table_.gathered < 0) {
    args_.a[1][0] = args_.a[1][1] = operands.a;
    args_.a_rows[1] = args_.a_rows[0];
  }
  args_.a_scale[0][0] = args_.a_scale[0][1] = operands.a_scale;
  args_.b_scale = operands.b_scale;
  args_.b[0] = operands.b;
  args_.out[0] = operands.out;
  args_.bias[0] = operands.bias;
  for (std::size_t i = 0; i < operands.more.size(); ++i) {
    args_.b[i + 1] = operands.more[i].b;
    args_.out[i + 1] = operands.more[i].out;
    args_.bias[i + 1] = operands.more[i].bias;
  }
  args_.out[gathered_output] = operands.gathered;
  // Peers write an output without gaps.
  const bool peers_store = layout_.in_heap(plan::buffer_out);
  copy_out_ = peers_store && (out_rows_.has_gaps() || !heap_.holds(operands.out));
  if (peers_store && calls().outputs_lent()) expect_one_place(world_, heap_, copy_out_ ? nullptr : operands.out);
  if (copy_out_) args_.out[0] = staged_out();
}

// Outputs of plans that take turns lie in one place: a copy out of it is over before this rank lets peers into the next
// epoch, whatever its plan.
std::byte* CudaExecution::staged_out() const {
  return pool_ != nullptr ? pool_->out() : heap_at(layout_.offset(plan::buffer_out, 0));
}

void CudaExecution::prepare_skipping() {
  const auto signals = index(layout_.signals(world_.rank()));
  std::vector<std::uint32_t> posts(signals);
  for (std::size_t i = 0; i < signals; ++i)
    posts[i] = layout_.base(world_.rank(), static_cast<int>(i), static_cast<std::uint64_t>(plan_.signal_copies));
  signal_posts_ = raw_memory(std::max<std::size_t>(bytes_of(posts), 256));
  cuda::upload(signal_posts_.get(), posts.data(), signals * sizeof(std::uint32_t));
  skip_ = {args_.protocol, static_cast<const std::uint32_t*>(signal_posts_.get()), static_cast<std::uint32_t>(signals)};
  IMBREX_CUDA_TRY(load_skip_epoch());
}

// NOTE: the flag follows on the same stream: after an event on another one it comes late (measured), and a copy engine
// runs one stream's copies in order.
void CudaExecution::copy(std::size_t i, const Addresses& operands, std::uint64_t epoch, cudaStream_t main) {
  const CopyStep& step = table_.copies[i];
  // NOTE: the driver may run a copy within one GPU as a kernel, which would not start while the persistent one runs.
  cudaStream_t stream = step.local ? main : copies_;
  const RegionEntry &from = step.from, &to = step.to;
  const auto* source = reinterpret_cast<const std::byte*>(from.address + epoch % 2 * from.copy_stride);
  if (from.base == Base::a) source = static_cast<const std::byte*>(operands.a) + from.address;
  if (from.base == Base::a_scale) source = reinterpret_cast<const std::byte*>(operands.a_scale) + from.address;
  auto* destination = reinterpret_cast<std::byte*>(to.address + epoch % 2 * to.copy_stride);
  const std::size_t width = from.cols * size_of(from.type);
  if (copy_times_) copy_times_->begin(i, stream);
  if (width == from.pitch && width == to.pitch)
    IMBREX_CUDA_TRY(cudaMemcpyAsync(destination, source, width * from.rows, cudaMemcpyDefault, stream));
  else
    IMBREX_CUDA_TRY(
        cudaMemcpy2DAsync(destination, to.pitch, source, from.pitch, width, from.rows, cudaMemcpyDefault, stream));
  if (copy_times_) copy_times_->end(i, stream);
  if (!step.flag) return;
  void* flag = reinterpret_cast<std::byte*>(step.counter) + epoch % args_.protocol.copies * args_.protocol.set_stride;
  IMBREX_CUDA_TRY(cudaMemcpyAsync(flag, &copies_of(*args_.protocol.own).turns[epoch % 2], sizeof(std::uint32_t),
                                  cudaMemcpyDefault, stream));
}

// Copies go first: where the driver has one queue for all streams, a kernel that waits for them must be queued after
// them.
void CudaExecution::launch(const Addresses& operands, cudaStream_t stream, Call call) {
  expect_sound();
  set_operands(operands);
  hold_back(world_, options_, *epoch_);
  captured_ = captured_ || call != Call::direct;
  const bool copies = !table_.copies.empty();
  skipping_ = copies && (skipping_ || call == Call::captured);
  if (copies) {
    // NOTE: this launches a kernel, which on the copies' stream could come to stand after the persistent one that
    // waits for them.
    if (copy_times_) copy_times_->begin_epoch(stream);
    // The last epoch is over, everywhere on this rank, before data of this one leave.
    IMBREX_CUDA_TRY(cudaEventRecord(begun_, stream));
    IMBREX_CUDA_TRY(cudaStreamWaitEvent(copies_, begun_, 0));
    for (std::size_t i = 0; i < table_.copies.size(); ++i) copy(i, operands, *epoch_, stream);
    IMBREX_CUDA_TRY(cudaEventRecord(copied_, copies_));
  }
  args_.protocol.self_advancing = skipping_ ? 0 : 1;
  // Blocks that come early take SMs that are for others.
  const bool early = options_.ranks_per_gpu == 1 && beside_.readers == 0 && world_.options().sms_for_others == 0;
  IMBREX_CUDA_TRY(kernel_->launch(args_, workers_, maps_, early, stream));
  // The caller's A may change once its copies have left; so may the next flags.
  if (copies) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, copied_, 0));
  if (skipping_) IMBREX_CUDA_TRY(skip_epoch(skip_, stream));
  if (copy_out_ && out_rows_.has_gaps())
    IMBREX_CUDA_TRY(cudaMemcpy2DAsync(operands.out, out_rows_.pitch, args_.out[0], out_rows_.bytes, out_rows_.bytes,
                                      static_cast<std::size_t>(out_rows_.count), cudaMemcpyDeviceToDevice, stream));
  else if (copy_out_)
    IMBREX_CUDA_TRY(cudaMemcpyAsync(operands.out, args_.out[0], out_rows_.packed(), cudaMemcpyDeviceToDevice, stream));
  if (pool_ != nullptr && call == Call::direct) pool_->note_launch(number());
  *epoch_ += skipping_ ? 2 : 1;
}

std::vector<Span> CudaExecution::spans() {
  std::vector<TaskTimes> times(table_.tasks.size());
  IMBREX_CUDA_TRY(cudaMemcpy(times.data(), times_, times.size() * sizeof(TaskTimes), cudaMemcpyDeviceToHost));
  const std::shared_ptr<const Plan> whole = tasks_->whole();
  std::vector<Span> spans = task_spans(*whole, world_.rank(), table_.tasks, times, to_host_);
  if (copy_times_ == nullptr) return spans;
  const std::vector<StepTimes::Stretch> copied = copy_times_->read();
  const auto& queues = whole->ranks[index(world_.rank())].queues;
  for (std::size_t i = 0; i < copied.size(); ++i) {
    const CopyStep& step = table_.copies[i];
    spans.push_back({world_.rank(), "copy engine", label(queues[index(step.queue)].tasks[step.task]), Span::Kind::copy,
                     copied[i].begin, copied[i].end});
  }
  return spans;
}

std::string CudaExecution::fault_message() const {
  const device::Fault& f = *fault_;
  const auto epoch = std::uint64_t{f.epoch};
  const runtime::WaitLimits limits = runtime::limits_of(world_.options());
  const auto call_of = [&](const Plan& plan) {
    return execute::circumstances(world_, plan.problem, "this rank's last call");
  };
  if (f.kind == static_cast<std::uint32_t>(FaultKind::skip))
    return runtime::fault_text(f, fmt::format("rank {}", world_.rank()), limits,
                               fmt::format("for all ranks to end epoch {} of a captured graph", epoch), "of them") +
           call_of(*tasks_->whole());
  const std::shared_ptr<const Plan> whole = of_fault().tasks_->whole();
  const std::string who = task_name(*whole, world_.rank(), static_cast<int>(f.place[0]), f.place[1]);
  if (f.kind == static_cast<std::uint32_t>(FaultKind::arrival))
    return runtime::fault_text(f, who, limits, fmt::format("for the concurrent kernel to begin in epoch {}", epoch),
                               "blocks") +
           call_of(*whole);
  return runtime::fault_text(f, who, limits, fmt::format("for signal {} in epoch {}", std::uint32_t{f.place[2]}, epoch),
                             "posts") +
         call_of(*whole);
}

std::string CudaExecution::late_name(int late) const {
  return execute::epoch_text(world_, of_fault().plan_.problem, fault_->epoch, late);
}

// Plans that take turns have one record of failure.
const CudaExecution& CudaExecution::of_fault() const {
  return pool_ != nullptr ? pool_->execution(fault_->place[3]) : *this;
}

}  // namespace imbrex::cuda
