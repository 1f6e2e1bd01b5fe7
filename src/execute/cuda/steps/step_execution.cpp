#include "execute/cuda/steps/step_execution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "execute/circumstances.hpp"
#include "execute/cuda/fused/rank_protocol.hpp"
#include "execute/cuda/steps/moves.hpp"
#include "execute/cuda/steps/signals.hpp"
#include "runtime/agreement.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/fault_text.hpp"
#include "runtime/cuda/seats.hpp"

namespace imbrex::cuda {
namespace {

using base::index;

int first_output(const Plan& plan) {
  const auto is_output = [](const Buffer& b) { return b.role == BufferRole::output; };
  return base::narrow<int>(std::find_if(plan.buffers.begin(), plan.buffers.end(), is_output) - plan.buffers.begin(),
                           "buffers");
}

}  // namespace

StepExecution::StepExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults,
                             int device, std::shared_ptr<const Plan> plan, execute::HeapLayout layout,
                             const CudaOptions& options)
    : KernelExecution(world, calls, device, options.timeline),
      heap_(heap),
      ordered_(in_one_queue(std::move(plan), world.rank())),
      plan_(*ordered_.plan),
      layout_(std::move(layout)),
      options_(options),
      output_(first_output(plan_)),
      out_rows_(execute::rows_of(plan_.problem, plan_.buffers[index(output_)], output_)),
      epoch_(options.testing.first_epoch) {
  place_.emplace(heap, heap.allocate_or_grow(world, layout_.bytes() + state_bytes));
  heap.keep(place_->offset + layout_.counter(0, 0), layout_.bytes() - layout_.counter(0, 0) + state_bytes);
  // What one rank cannot have, no rank uses. And no peer posts before all words are set.
  runtime::agree(world, [&] {
    own_fault_ = faults.take();
    fault_ = own_fault_.get();
    make_steps();
    IMBREX_CUDA_TRY(load_signals());
    IMBREX_CUDA_TRY(load_move());
    start_words(protocol_, layout_, epoch_);
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking));
    return runtime::Terms("memory for a plan");
  });
}

StepExecution::~StepExecution() {
  cudaSetDevice(device_);
  end_with_peers();
  retire();
  if (main_ != nullptr) cudaStreamDestroy(main_);
}

void StepExecution::make_steps() {
  const int rank = world_.rank();
  table_ = translate(plan_, layout_, rank, heap_.handle(), place_->offset, no_tiles);
  list_ = step_list(plan_, rank, table_);
  upload();
  protocol_ = protocol_of(world_, heap_.handle(), layout_, place_->offset, place_->offset + layout_.bytes(), fault_,
                          options_.testing, plan_.signal_copies);
  protocol_.readers = list_.readers;
  // A rank that is alone waits for no other.
  const int for_others = world_.size() > 1 ? world_.options().sms_for_others : 0;
  const int most = runtime::look_up_blocks(runtime::sms_of(device_), options_.ranks_per_gpu, for_others);
  const LaunchPlace place{plan_, rank, table_, &protocol_, base::narrow<std::uint32_t>(most, "blocks")};
  for (const auto& [kind, launches] : list_.launches) launches_[kind] = work_on_gpu(kind)->make(place, launches);
}

void StepExecution::upload() {
  std::size_t bytes = 0;
  const auto place = [&](const auto& entries) {
    const std::size_t offset = bytes;
    bytes += (entries.size() * sizeof(entries[0]) + 255) / 256 * 256;
    return offset;
  };
  const std::size_t waits = place(table_.waits), posts = place(table_.posts);
  signals_ = raw_memory(std::max<std::size_t>(bytes, 256));
  auto* base = static_cast<std::byte*>(signals_.get());
  const auto put = [&](std::size_t offset, const auto& entries) {
    if (!entries.empty()) cuda::upload(base + offset, entries.data(), entries.size() * sizeof(entries[0]));
  };
  put(waits, table_.waits), put(posts, table_.posts);
  waits_ = reinterpret_cast<const WaitEntry*>(base + waits);
  posts_ = reinterpret_cast<const PostEntry*>(base + posts);
}

std::string_view StepExecution::kernel_name() const { return list_.launches.empty() ? "none" : work().kernel; }

void StepExecution::run(const SignalStep& step, const Addresses&, cudaStream_t stream) const {
  JointArgs args{};
  args.protocol = protocol_;
  args.waits = waits_ + step.first_wait, args.wait_count = step.waits;
  args.posts = posts_ + step.first_post, args.post_count = step.posts;
  args.task = step.task;
  IMBREX_CUDA_TRY(launch_signals(args, stream));
}

void StepExecution::run(const MoveStep& step, const Addresses& operands, cudaStream_t stream) const {
  const TaskEntry& task = table_.tasks[step.task];
  MoveArgs args{};
  args.task = task;
  args.task.regions = 0;
  std::copy_n(table_.regions.begin() + task.regions, task.adds + task.stores, args.regions);
  args.state = list_.readers > 0 ? protocol_.own : nullptr;
  args.in = operands.others[0], args.out = operands.others[task.output];
  IMBREX_CUDA_TRY(launch_move(args, stream));
}

void StepExecution::run(const BlockStep& step, const Addresses& operands, cudaStream_t stream) const {
  launches_.at(step.kind)->launch(step.launch, operands, stream, captured_);
}

void StepExecution::launch(const Addresses& operands, cudaStream_t stream, Call call) {
  expect_sound();
  execute::expect_given(operands, plan_.problem);
  captured_ = captured_ || call != Call::direct;
  hold_back(world_, options_, epoch_);
  Addresses there = operands;
  void* out = operands.others[index(output_)];
  const bool peers_store = layout_.in_heap(output_),
             copies = peers_store && (out_rows_.has_gaps() || !heap_.holds(out));
  if (peers_store && calls().outputs_lent()) expect_one_place(world_, heap_, copies ? nullptr : out);
  if (copies)
    there.others[index(output_)] = heap_.handle().at(world_.rank(), place_->offset + layout_.offset(output_, 0));
  for (const Step& step : list_.steps) std::visit([&](const auto& each) { run(each, there, stream); }, step);
  if (copies && !out_rows_.has_gaps())
    IMBREX_CUDA_TRY(
        cudaMemcpyAsync(out, there.others[index(output_)], out_rows_.packed(), cudaMemcpyDeviceToDevice, stream));
  else if (copies)
    IMBREX_CUDA_TRY(cudaMemcpy2DAsync(out, out_rows_.pitch, there.others[index(output_)], out_rows_.bytes,
                                      out_rows_.bytes, static_cast<std::size_t>(out_rows_.count),
                                      cudaMemcpyDeviceToDevice, stream));
  ++epoch_;
}

std::int64_t StepExecution::take_misfits(Misfits misfits) {
  await_replays(device_);
  const std::lock_guard guard(calls().lock());
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  calls().follow(main_);
  await(main_);
  std::int64_t found = 0;
  for (const auto& [kind, launches] : launches_) found += launches->take_misfits(misfits, main_);
  return found;
}

std::string StepExecution::fault_message() const {
  device::Fault f = *fault_;
  const auto epoch = std::uint64_t{f.epoch};
  // A launch that waits itself tells of words.
  const bool launch = f.kind == static_cast<std::uint32_t>(FaultKind::block);
  const TaskEntry& task = table_.tasks[launch ? std::uint32_t{f.place[0]} : std::uint32_t{f.place[1]}];
  std::uint32_t signal = f.place[2];
  if (launch) {
    const WaitEntry& wait = table_.waits[task.waits];
    const std::uint32_t before = static_cast<std::uint32_t>(epoch >> (protocol_.copies - 1)) * wait.posts;
    signal = wait.signal;
    f.expected = f.expected - before;
    f.seen = f.seen - before;
  }
  const plan::TaskPlace place =
      ordered_.from.empty() ? plan::TaskPlace{world_.rank(), task.queue, task.task} : ordered_.from[task.task];
  const std::string_view name = list_.launches.empty() ? "a plan" : work().name;
  return runtime::fault_text(
             f, fmt::format("rank {}, {},", world_.rank(), name), runtime::limits_of(world_.options()),
             fmt::format("for signal {} in epoch {}, queue {} task {}", signal, epoch, place.queue, place.index),
             "posts") +
         execute::circumstances(world_, plan_.problem, "this rank's last call");
}

std::string StepExecution::late_name(int late) const {
  return execute::epoch_text(world_, plan_.problem, fault_->epoch, late);
}

}  // namespace imbrex::cuda
