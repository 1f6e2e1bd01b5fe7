#include "execute/cuda/libraries/library_steps.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "base/ceil_div.hpp"
#include "base/narrow.hpp"
#include "execute/cuda/steps/moves.hpp"
#include "execute/layout.hpp"
#include "plan/builder.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
/// In a stream's scratch, after the product's workspace.
std::size_t scales_at(const LibraryGemm& gemm) { return (gemm.workspace_bytes() + 15) / 16 * 16; }

}  // namespace

LibrarySteps::LibrarySteps(SharedLibraries& libraries, const Plan& plan, const LibraryProgram& program,
                           std::vector<std::byte*> workspaces, int most_sms)
    : libraries_(libraries), plan_(plan), program_(program), memory_(plan, std::move(workspaces)) {
  make_communicators(most_sms);
  find_communicators(most_sms);
  make_gemms(nullptr);
  make_reports();
  make_blocks();
}

LibrarySteps::LibrarySteps(SharedLibraries& libraries, const Plan& plan, const LibraryProgram& program,
                           SharedRoom& room)
    : libraries_(libraries), plan_(plan), program_(program), memory_(plan, {}, &room) {
  if (const std::string lack = libraries.lacks(plan); !lack.empty()) IMBREX_EXPECTS(false, "the plan needs {}", lack);
  find_communicators(0);
  make_gemms(&room);
  make_reports();
  make_blocks();
}

void LibrarySteps::leak() {
  memory_.leak();
  for (auto& [kind, launches] : launches_) static_cast<void>(launches.release());
  static_cast<void>(kept_.release());
  static_cast<void>(new std::vector<std::shared_ptr<void>>(std::move(scratch_)));
}

// NCCL is loaded only where a plan needs it.
void LibrarySteps::make_communicators(int most_sms) {
  std::set<std::vector<int>> rank_sets;
  for (const auto& [number, parts] : execute::collective_groups(plan_))
    if (parts.front()->backend == Backend::nccl)
      rank_sets.insert(ranks_of(*parts.front(), plan_));
    else
      static_cast<void>(libraries_.collectives());
  libraries_.make_communicators(rank_sets, most_sms);
}

void LibrarySteps::find_communicators(int most_sms) {
  for (const LibraryStep& step : program_.steps) {
    const auto* work = std::get_if<Collective>(&step.work);
    if (work != nullptr && work->backend != Backend::nccl) own_ = &libraries_.collectives();
    const bool nccl = work != nullptr && work->backend == Backend::nccl;
    communicators_.push_back(nccl ? &libraries_.communicator(ranks_of(*work, plan_), most_sms) : nullptr);
  }
}

void LibrarySteps::make_gemms(SharedRoom* room) {
  std::vector<std::size_t> bytes(program_.forked.size());
  for (const LibraryStep& step : program_.steps) {
    gemms_.emplace_back();
    const auto* p = std::get_if<Product>(&step.work);
    if (p == nullptr) continue;
    LibraryShape shape{p->a.rows,
                       p->b.cols,
                       p->a.cols,
                       p->batch,
                       plan_.problem.type,
                       buffer(p->to).type,
                       {},
                       {},
                       {},
                       buffer(p->b).layout == Layout::column_major,
                       plan_.problem.scales,
                       0};
    shape.a = {memory_.pitch(p->a), p->a_step * memory_.pitch(p->a), memory_.alignment(p->a, p->a_step)};
    shape.b = {memory_.pitch(p->b), 0, memory_.alignment(p->b, 0)};
    if (!p->bias.empty()) shape.bias_alignment = memory_.alignment(p->bias, 0);
    shape.out = {memory_.pitch(p->to), p->to_step * memory_.pitch(p->to), memory_.alignment(p->to, p->to_step)};
    gemms_.back() = std::make_unique<LibraryGemm>(libraries_.handle(), shape, p->algorithm);
    // A size between those that were surveyed may have an algorithm of any workspace.
    const std::size_t algorithms = room != nullptr ? LibraryGemm::most_workspace : scales_at(*gemms_.back());
    bytes[step.stream] = std::max(bytes[step.stream], algorithms + moved_scale_bytes(*p));
  }
  // Behind the workspaces.
  for (std::size_t s = 0; s < bytes.size(); ++s)
    scratch_.push_back(room != nullptr ? room->take(s + 1, bytes[s]) : std::shared_ptr<void>(raw_memory(bytes[s])));
}

// A codec's collectives of an epoch, of which a later one overwrites the report of an earlier one.
void LibrarySteps::make_reports() {
  const auto quantized = [](const LibraryStep& step) {
    const auto* work = std::get_if<Collective>(&step.work);
    return work != nullptr && work->codec;
  };
  const auto count = std::count_if(program_.steps.begin(), program_.steps.end(), quantized);
  reports_.resize(program_.steps.size());
  if (count == 0) return;
  kept_ = raw_memory(size(count) * sizeof(KeptReport));
  cuda::fill(kept_.get(), 0, size(count) * sizeof(KeptReport));
  auto* next = static_cast<KeptReport*>(kept_.get());
  for (std::size_t i = 0; i < reports_.size(); ++i)
    if (quantized(program_.steps[i])) reports_[i] = next++;
}

// Workspaces lie where they lie, so a table can say where blocks read and store.
void LibrarySteps::make_blocks() {
  std::map<WorkKind, std::vector<BlockLaunch>> launches;
  launch_of_.resize(program_.steps.size());
  const auto put = [&](const Region& r, const Store* store) {
    RegionEntry& entry = blocks_.regions.emplace_back();
    entry.address = reinterpret_cast<std::uint64_t>(at(r, {}));
    entry.pitch = size(memory_.pitch(r)) * size_of(buffer(r).type);
    entry.rows = base::narrow<std::uint32_t>(r.rows, "rows"),
    entry.cols = base::narrow<std::uint32_t>(r.cols, "columns");
    entry.type = buffer(r).type;
    if (store == nullptr) return;
    entry.row = base::narrow<std::uint32_t>(store->row, "rows");
    entry.col = base::narrow<std::uint32_t>(store->col, "columns");
  };
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const auto* block = std::get_if<Block>(&program_.steps[i].work);
    if (block == nullptr) continue;
    launch_of_[i] = launches[block->kind].size();
    launches[block->kind].push_back({blocks_.tasks.size()});
    TaskEntry& entry = blocks_.tasks.emplace_back();
    put_numbers(entry, *block);
    entry.regions = base::narrow<std::uint32_t>(blocks_.regions.size(), "regions");
    for (const Region& read : block->reads) put(read, nullptr);
    for (const Store& store : block->stores) put(store.to, &store);
  }
  for (const auto& [kind, all] : launches)
    launches_[kind] = work_on_gpu(kind)->make({plan_, libraries_.world().rank(), blocks_}, all);
}

std::int64_t LibrarySteps::take_misfits(Misfits misfits, cudaStream_t stream) const {
  std::int64_t found = 0;
  for (const auto& [kind, launches] : launches_) found += launches->take_misfits(misfits, stream);
  return found;
}

CodecReport LibrarySteps::codec_report() const {
  CodecReport all;
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    if (reports_[i] == nullptr) continue;
    const CommReport own = CudaCollectives::told_by(reports_[i]).report;
    const auto& work = std::get<Collective>(program_.steps[i].work);
    all.largest_error = std::max(all.largest_error, std::bit_cast<float>(own.error_bits));
    all.non_finite += static_cast<std::int64_t>(own.non_finite);
    // Blocks of a reduce-scatter, and of an all-reduce shares of whole groups, go to their owners; of the sums, which
    // are shared out in the same way, one rank tells.
    const std::int64_t ranks = libraries_.world().size(), count = work.to.rows * work.to.cols;
    const bool spreads = work.kind == CollectiveKind::all_reduce;
    all.groups += base::ceil_div(count, std::int64_t{work.codec->reduce_scatter.group}) * (spreads ? 1 : ranks);
    if (spreads && libraries_.world().rank() == 0)
      all.groups += base::ceil_div(count, std::int64_t{work.codec->all_gather.group});
  }
  return all;
}

void LibrarySteps::copy(const Transfer& transfer, const Addresses& operands, cudaStream_t stream) const {
  if (transfer.from.empty()) return;
  const std::size_t element = size_of(buffer(transfer.from).type), width = size(transfer.from.cols) * element,
                    from_pitch = size(memory_.pitch(transfer.from)) * element,
                    to_pitch = size(memory_.pitch(transfer.to)) * element, rows = size(transfer.from.rows);
  std::byte *from = at(transfer.from, operands), *to = at(transfer.to, operands);
  if (width == from_pitch && width == to_pitch)
    IMBREX_CUDA_TRY(cudaMemcpyAsync(to, from, width * rows, cudaMemcpyDeviceToDevice, stream));
  else
    IMBREX_CUDA_TRY(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDeviceToDevice, stream));
}

void LibrarySteps::set_apart(const Region& to, const Addresses& operands, cudaStream_t stream) const {
  if (to.empty() || !memory_.has_apart(to)) return;
  const std::size_t row = size(buffer(to).cols) * size_of(buffer(to).type);
  IMBREX_CUDA_TRY(cudaMemcpy2DAsync(memory_.at_apart(to), operand_alignment, at(to, operands), row, row, size(to.rows),
                                    cudaMemcpyDeviceToDevice, stream));
}

void LibrarySteps::sum(const Reduction& reduction, const Addresses& operands, cudaStream_t stream) const {
  MoveArgs args{};
  args.task.kind = TaskKind::reduction;
  args.task.rows = base::narrow<std::uint32_t>(reduction.from.front().rows, "rows of a sum");
  args.task.cols = base::narrow<std::uint32_t>(reduction.from.front().cols, "columns of a sum");
  args.task.adds = base::narrow<std::uint16_t>(reduction.from.size(), "sources of a sum");
  args.task.stores = base::narrow<std::uint16_t>(reduction.to.size(), "destinations of a sum");
  std::size_t i = 0;
  for (const auto* regions : {&reduction.from, &reduction.to})
    for (const Region& r : *regions) {
      RegionEntry& entry = args.regions[i++];
      entry.address = reinterpret_cast<std::uint64_t>(at(r, operands));
      entry.pitch = size(memory_.pitch(r)) * size_of(buffer(r).type);
      if (plan::is_bias(plan_.problem, r)) {
        entry.pitch = 0;
        entry.address = size(r.col) * size_of(buffer(r).type);
        entry.base = Base::bias;
        args.bias = execute::input_of(operands, plan_.problem, r.buffer);
      }
      entry.rows = args.task.rows;
      entry.cols = args.task.cols;
      entry.type = buffer(r).type;
    }
  IMBREX_CUDA_TRY(launch_move(args, stream));
}

void LibrarySteps::collective(const Collective& c, runtime::Communicator* communicator, const Addresses& operands,
                              cudaStream_t stream) const {
  const std::byte* from = at(c.from, operands);
  std::byte* to = at(c.to, operands);
  const Type type = buffer(c.from).type;
  const std::size_t in = size(c.from.rows * c.from.cols), out = size(c.to.rows * c.to.cols);
  const auto run = [&](auto& with, std::size_t ranks) {
    switch (c.kind) {
      case CollectiveKind::all_gather: return with.all_gather(from, to, in, type, stream);
      case CollectiveKind::reduce_scatter: return with.reduce_scatter(from, to, out, type, stream);
      case CollectiveKind::all_reduce: return with.all_reduce(from, to, in, type, stream);
      case CollectiveKind::all_to_all: return with.all_to_all(from, to, in / ranks, type, stream);
      case CollectiveKind::send_receive: break;  // not among all ranks
    }
  };
  if (c.kind == CollectiveKind::send_receive) {
    const std::vector<int> joined = ranks_of(c, plan_);
    const auto place = [&](int rank) {
      return base::narrow<int>(std::find(joined.begin(), joined.end(), rank) - joined.begin(), "ranks");
    };
    communicator->send_receive(from, place(c.send_to), to, place(c.receive_from), in, type, stream);
  } else if (c.codec && c.kind == CollectiveKind::all_reduce)
    own_->all_reduce(from, to, static_cast<std::int64_t>(in), type, *c.codec, stream);
  else if (c.codec)
    own_->exchange(ExchangeKind::reduce_scatter, from, to, static_cast<std::int64_t>(out), type,
                   c.codec->reduce_scatter, stream);
  else if (communicator == nullptr)
    run(*own_, size(libraries_.world().size()));
  else
    run(*communicator, communicator->size());
}

// Scales of rows that begin inside 16 bytes, which cuBLASLt does not take, are moved after the product's workspace.
std::size_t LibrarySteps::moved_scale_bytes(const Product& p) const {
  if (p.a_scale.empty() || memory_.has_apart(p.a_scale) || memory_.alignment(p.a_scale, 0) >= operand_alignment)
    return 0;
  return size(p.a_scale.rows) * sizeof(float);
}

void LibrarySteps::multiply(const Product& p, const LibraryGemm& gemm, void* scratch, const Addresses& operands,
                            cudaStream_t stream) const {
  Addresses o{at(p.a, operands), at(p.b, operands), at(p.to, operands)};
  if (!p.bias.empty()) o.bias = at(p.bias, operands);
  if (!p.a_scale.empty()) {
    o.a_scale = reinterpret_cast<const float*>(memory_.has_apart(p.a_scale) ? memory_.at_apart(p.a_scale)
                                                                            : at(p.a_scale, operands));
    o.b_scale = operands.b_scale + (plan_.problem.scales == Scales::row ? p.b.col : 0);
    if (const std::size_t bytes = moved_scale_bytes(p); bytes > 0) {
      auto* moved = static_cast<std::byte*>(scratch) + scales_at(gemm);
      IMBREX_CUDA_TRY(cudaMemcpyAsync(moved, o.a_scale, bytes, cudaMemcpyDeviceToDevice, stream));
      o.a_scale = reinterpret_cast<const float*>(moved);
    }
  }
  gemm.launch(o, scratch, stream);
}

void LibrarySteps::launch(std::size_t i, const Addresses& operands, cudaStream_t stream) const {
  const LibraryStep& step = program_.steps[i];
  if (const auto* p = std::get_if<Product>(&step.work))
    multiply(*p, *gemms_[i], scratch_[step.stream].get(), operands, stream);
  else if (const auto* reduction = std::get_if<Reduction>(&step.work))
    sum(*reduction, operands, stream);
  else if (const auto* transfer = std::get_if<Transfer>(&step.work)) {
    copy(*transfer, operands, stream);
    set_apart(transfer->to, operands, stream);
  } else if (const auto* block = std::get_if<Block>(&step.work)) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream, &status));
    launches_.at(block->kind)->launch(launch_of_[i], operands, stream, status != cudaStreamCaptureStatusNone);
  } else {
    const auto& work = std::get<Collective>(step.work);
    collective(work, communicators_[i], operands, stream);
    if (reports_[i] != nullptr) own_->keep_report(reports_[i], stream);
    set_apart(work.to, operands, stream);
  }
}

}  // namespace imbrex::cuda
