#include "execute/cuda/embedding/look_up_execution.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/narrow.hpp"
#include "embedding/same_table.hpp"
#include "execute/circumstances.hpp"
#include "execute/cuda/embedding/blank_tables.hpp"
#include "execute/layout.hpp"
#include "runtime/agreement.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/fault_text.hpp"
#include "runtime/cuda/seats.hpp"
#include "runtime/group.hpp"

namespace imbrex::cuda {
namespace {

constexpr std::size_t word_step = 64, alignment = 256;  // of the words, and of the output

std::size_t part_bytes(const Problem& p) {
  return static_cast<std::size_t>(p.m / p.ranks * problem::width_of(p.tables)) * size_of(p.type);
}

}  // namespace

LookUpExecution::Layout LookUpExecution::layout_of(const Problem& problem) {
  Layout layout{};
  layout.entered = alignment;
  layout.done = layout.entered + static_cast<std::size_t>(problem.ranks) * word_step;
  layout.out = (layout.done + embedding::most_slices * word_step + alignment - 1) / alignment * alignment;
  layout.all = layout.out + part_bytes(problem);
  return layout;
}

LookUpExecution::LookUpExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults,
                                 int device, const Plan& plan, const CudaOptions& options)
    : KernelExecution(world, calls, device, options.timeline),
      heap_(heap),
      problem_(plan.problem),
      slices_(look_up_plan(plan)),
      options_(options),
      own_(problem_.tables, world.rank()),
      layout_(layout_of(problem_)),
      epoch_(options.testing.first_epoch) {
  for (int rank = 0; rank < problem_.ranks; ++rank)
    if (rank != world.rank() && problem::OwnShards(problem_.tables, rank).count() > 0) ++lookers_;
  // What one rank's tables do not let it have, all refuse, before anything else is taken.
  runtime::agree(world, [&] {
    make_look_up();
    return runtime::Terms("a lookup");
  });
  place_.emplace(heap, heap.allocate_or_grow(world, layout_.all));
  heap.keep(place_->offset, layout_.out);
  // What one rank cannot have, no rank uses. And no peer posts before all words are set.
  runtime::agree(world, [&] {
    own_fault_ = faults.take();
    fault_ = own_fault_.get();
    IMBREX_CUDA_TRY(load_ends());
    set_group();
    start_words();
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking));
    return runtime::Terms("memory for a lookup");
  });
}

LookUpExecution::~LookUpExecution() {
  cudaSetDevice(device_);
  end_with_peers();
  retire();
  if (main_ != nullptr) cudaStreamDestroy(main_);
}

void LookUpExecution::set_group() {
  ends_.group = runtime::group_of(world_, heap_.handle(), place_->offset, runtime::FaultPool::on_device(fault_),
                                  {options_.testing.delays, options_.testing.max_delay});
  ends_.entered = at(world_.rank(), layout_.entered);
  ends_.done = at(world_.rank(), layout_.done);
  ends_.step = word_step;
  ends_.slices = static_cast<std::uint32_t>(slices_.slices);
  ends_.posts = lookers_;
  ends_.advances = own_.count() == 0;
}

// As if every epoch before the first had run.
void LookUpExecution::start_words() {
  std::vector<std::byte> words(layout_.out);
  const device::State state{.epoch = epoch_,
                            .abort = 0,
                            .fault_lock = 0,
                            .readers = 0,
                            .entered = static_cast<std::uint32_t>(epoch_ & 0xffffffffu),
                            .told = 0,
                            .unused = {}};
  std::memcpy(words.data(), &state, sizeof state);
  const auto set = [&](std::size_t offset, std::size_t count, std::uint64_t value) {
    const auto word = static_cast<std::uint32_t>(value & 0xffffffffu);
    for (std::size_t i = 0; i < count; ++i) std::memcpy(words.data() + offset + i * word_step, &word, sizeof word);
  };
  set(layout_.entered, static_cast<std::size_t>(problem_.ranks), epoch_);
  set(layout_.done, embedding::most_slices, epoch_ * lookers_);
  cuda::upload(at(world_.rank(), 0), words.data(), words.size());
}

// Takes memory and loads the kernels, before any runs: for tables that have no rows yet.
void LookUpExecution::make_look_up() {
  if (own_.count() == 0) return;
  const std::vector<embedding::Table> blank = blank_tables(problem_, world_.rank(), true);
  embedding::LookUpShape shape{problem_.m, problem_.type, problem::width_of(problem_.tables)};
  shape.ranks = world_.size(), shape.rank = world_.rank();
  shape.slices = slices_.slices, shape.slice_rows = slices_.slice_rows;
  embedding::LookUpTuning tuning;
  // A rank that is alone waits for no other.
  const int for_others = world_.size() > 1 ? world_.options().sms_for_others : 0;
  tuning.blocks =
      static_cast<std::uint32_t>(runtime::look_up_blocks(runtime::sms_of(device_), options_.ranks_per_gpu, for_others));
  look_up_ = std::make_unique<embedding::CudaLookUp>(
      embedding::Tables{blank.data(), base::narrow<std::int32_t>(std::ssize(blank), "tables"), problem_.tables.rows},
      shape, tuning);
}

// A graph's replay may have bound others since.
void LookUpExecution::bind(const embedding::Tables& tables, cudaStream_t stream) {
  if (!captured_ &&
      std::equal(bound_.begin(), bound_.end(), tables.tables, tables.tables + tables.count, embedding::same_table))
    return;
  look_up_->bind(tables, stream);
  bound_.assign(tables.tables, tables.tables + tables.count);
}

void LookUpExecution::launch(const Addresses& operands, cudaStream_t stream, Call call) {
  expect_sound();
  execute::expect_given(operands, problem_);
  IMBREX_EXPECTS(operands.given != nullptr, "no tables are given");
  const auto& given = *static_cast<const plan::RankBags*>(operands.given);
  IMBREX_EXPECTS(std::cmp_equal(given.tables.count, own_.count()), "{} tables are given; rank {} has {}",
                 given.tables.count, world_.rank(), own_.count());
  captured_ = captured_ || call != Call::direct;
  hold_back(world_, options_, epoch_);
  void* out = operands.others[0];
  const bool straight = world_.size() == 1 || heap_.holds(out);
  if (world_.size() > 1 && calls().outputs_lent()) expect_one_place(world_, heap_, straight ? out : nullptr);
  auto* own_part = straight ? static_cast<std::byte*>(out) : at(world_.rank(), layout_.out);
  const auto stride = static_cast<std::ptrdiff_t>(heap_.handle().stride);
  if (world_.size() > 1) IMBREX_CUDA_TRY(launch_enter(ends_, stream));
  if (look_up_ != nullptr) {
    bind(given.tables, stream);
    std::vector<void*> parts;
    embedding::LookUpPeers peers{ends_.group, {}, word_step, 1};
    peers.group.readers = look_up_->blocks();
    for (int rank = 0; rank < world_.size(); ++rank) {
      const bool peer = rank != world_.rank();
      parts.push_back(own_part + (rank - world_.rank()) * stride);
      peers.to.push_back(
          {nullptr, peer ? at(rank, layout_.done) : nullptr,
           peer ? at(world_.rank(), layout_.entered + static_cast<std::size_t>(rank) * word_step) : nullptr, 1, 1});
    }
    look_up_->launch(given.bags, parts.data(), stream, world_.size() > 1 ? &peers : nullptr);
  }
  if (world_.size() > 1) IMBREX_CUDA_TRY(launch_arrive(ends_, stream));
  if (!straight)
    IMBREX_CUDA_TRY(cudaMemcpyAsync(out, own_part, part_bytes(problem_), cudaMemcpyDeviceToDevice, stream));
  ++epoch_;
}

std::int64_t LookUpExecution::take_misfits(Misfits misfits) {
  await_replays(device_);
  const std::lock_guard guard(calls().lock());
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  calls().follow(main_);
  await(main_);
  return look_up_ != nullptr ? look_up_->findings(main_, misfits) : 0;
}

std::string LookUpExecution::fault_message() const {
  const device::Fault& f = *fault_;
  const std::string who = fmt::format("rank {}, lookup,", world_.rank());
  const runtime::WaitLimits limits = runtime::limits_of(world_.options());
  const auto place = std::uint32_t{f.place[0]};
  const auto epoch = std::uint64_t{f.epoch};
  const std::string call = execute::circumstances(world_, problem_, "this rank's last call");
  if (f.kind == static_cast<std::uint32_t>(LookUpFault::arrived))
    return runtime::fault_text(f, who, limits, fmt::format("for slice {} in epoch {}", place, epoch), "posts") + call;
  return runtime::fault_text(f, who, limits, fmt::format("for rank {} to enter epoch {}", place, epoch)) + call;
}

std::string LookUpExecution::late_name(int late) const {
  return execute::epoch_text(world_, problem_, fault_->epoch, late);
}

}  // namespace imbrex::cuda
