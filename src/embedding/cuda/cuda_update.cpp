#include "embedding/cuda/cuda_update.hpp"

#include <algorithm>
#include <bit>

#include "base/ceil_div.hpp"
#include "base/cuda_check.hpp"
#include "embedding/cuda/findings.hpp"
#include "embedding/cuda/put.hpp"

namespace imbrex::embedding {

CudaUpdate::CudaUpdate(const Tables& tables, const Step& step, std::int64_t batch, std::int64_t most_indices)
    : tables_(tables.tables, tables.tables + tables.count), type_(tables.type), step_(step), batch_(batch) {
  check_step(tables, step);
  IMBREX_EXPECTS(batch >= 1 && batch <= most_rows / tables.count, "batch = {}: with {} tables from 1 to {}", batch,
                 tables.count, most_rows / tables.count);
  const std::vector<UpdateTable> there = tables_on_gpu(step.states);
  std::uint32_t base = 0;
  for (const UpdateTable& table : there) {
    base += table.count;
    width_ = std::max(width_, table.dim);
  }
  step_.states = nullptr;
  bits_ = std::max(1, static_cast<int>(std::bit_width(base)));  // no_key is larger than any row in these bits, too
  IMBREX_CUDA_TRY(load_put());
  room_ = room_for(most_indices);
  on_gpu_ = cuda::raw_memory(there.size() * sizeof(UpdateTable));
  findings_ = cuda::raw_memory(sizeof(Findings));
  shares_ = cuda::raw_memory(there.size() * static_cast<std::size_t>(batch) * sizeof(float));
  cuda::upload(on_gpu_.get(), there.data(), there.size() * sizeof(UpdateTable));
  cuda::fill(findings_.get(), 0, sizeof(Findings));
}

std::unique_ptr<CudaUpdate::Room> CudaUpdate::room_for(std::int64_t most_indices) const {
  IMBREX_EXPECTS(most_indices >= 1 && most_indices <= most_rows, "{} indices: from 1 to {}", most_indices, most_rows);
  auto room = std::make_unique<Room>();
  room->most_indices = most_indices;
  IMBREX_CUDA_TRY(sort_bytes(static_cast<std::uint32_t>(most_indices), bits_, room->sort_bytes));
  for (cuda::RawMemory* memory :
       {&room->keys, &room->positions, &room->sorted_keys, &room->sorted_positions, &room->bags})
    *memory = cuda::raw_memory(static_cast<std::size_t>(most_indices) * sizeof(std::uint32_t));
  const auto tiles = static_cast<std::size_t>(base::ceil_div(most_indices, tile_indices));
  room->partial = cuda::raw_memory(tiles * 2 * width_ * sizeof(float));
  room->sort = cuda::raw_memory(room->sort_bytes);
  return room;
}

void CudaUpdate::grow(std::int64_t most_indices) {
  std::unique_ptr<Room> room = room_for(most_indices);
  if (room_->held) held_.push_back(std::move(room_));
  room_ = std::move(room);
}

std::vector<UpdateTable> CudaUpdate::tables_on_gpu(float* const* states) const {
  std::vector<UpdateTable> there;
  std::uint32_t base = 0;
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    const auto rows = static_cast<std::uint32_t>(table.count);
    there.push_back({static_cast<std::byte*>(table.rows),
                     step_.optimizer == Optimizer::row_wise_adagrad ? states[t] : nullptr,
                     static_cast<std::uint64_t>(table.pitch), rows, base, static_cast<std::uint32_t>(table.dim),
                     static_cast<std::uint32_t>(table.column)});
    base += rows;
  }
  return there;
}

void CudaUpdate::bind(const Tables& tables, float* const* states, cudaStream_t stream) {
  const auto alike = [](const Table& a, const Table& b) {
    return a.count == b.count && a.dim == b.dim && a.column == b.column;
  };
  IMBREX_EXPECTS(tables.type == type_ &&
                     std::equal(tables_.begin(), tables_.end(), tables.tables, tables.tables + tables.count, alike),
                 "{} tables are bound: they must be as those that the update was made for", tables.count);
  tables_.assign(tables.tables, tables.tables + tables.count);
  const std::vector<UpdateTable> there = tables_on_gpu(states);
  IMBREX_CUDA_TRY(put(on_gpu_.get(), there.data(), there.size() * sizeof(UpdateTable), stream));
}

void CudaUpdate::launch(const Bags& bags, const Output& gradients, float rate, cudaStream_t stream) {
  const Tables tables{tables_.data(), static_cast<std::int32_t>(tables_.size()), type_};
  IMBREX_EXPECTS(bags.batch <= batch_ && bags.count <= room_->most_indices,
                 "batch = {} with {} indices: it was made for {} with {} at most", bags.batch, bags.count, batch_,
                 room_->most_indices);
  check_shapes(tables, bags);
  check_shapes(tables, gradients, bags.batch);
  IMBREX_EXPECTS(gradients.ranks <= std::int32_t{most_ranks}, "{} ranks: at most {}", gradients.ranks, most_ranks);
  UpdateArgs args{};
  args.tables = static_cast<const UpdateTable*>(on_gpu_.get());
  args.indices = bags.indices, args.offsets = bags.offsets, args.weights = bags.weights;
  args.findings = static_cast<Findings*>(findings_.get());
  args.keys = static_cast<std::uint32_t*>(room_->keys.get());
  args.positions = static_cast<std::uint32_t*>(room_->positions.get());
  args.sorted_keys = static_cast<std::uint32_t*>(room_->sorted_keys.get());
  args.sorted_positions = static_cast<std::uint32_t*>(room_->sorted_positions.get());
  args.bags = static_cast<std::uint32_t*>(room_->bags.get());
  args.shares = static_cast<float*>(shares_.get());
  args.partial = static_cast<float*>(room_->partial.get());
  args.count = static_cast<std::uint32_t>(bags.count), args.batch = static_cast<std::uint32_t>(bags.batch);
  args.bag_count = args.batch * static_cast<std::uint32_t>(tables.count);
  args.part_rows = args.batch / static_cast<std::uint32_t>(gradients.ranks);
  args.tiles = static_cast<std::uint32_t>(base::ceil_div(bags.count, tile_indices));
  args.width = width_;
  args.rate = rate, args.epsilon = step_.epsilon;
  args.rows = type_, args.gradient = gradients.type;
  args.wide = bags.type == IndexType::int64, args.mean = bags.pooling == Pooling::mean;
  args.adagrad = step_.optimizer == Optimizer::row_wise_adagrad;
  args.gradient_pitch = static_cast<std::uint64_t>(gradients.pitch) * size_of(gradients.type);
  for (std::int32_t d = 0; d < gradients.ranks; ++d) args.parts[d] = static_cast<const std::byte*>(gradients.parts[d]);
  // Positions that no bag holds keep a key after all rows.
  IMBREX_CUDA_TRY(cudaMemsetAsync(room_->keys.get(), 0xff, static_cast<std::size_t>(bags.count) * 4, stream));
  IMBREX_CUDA_TRY(launch_keys(args, stream));
  if (bags.count == 0) return;  // but offsets were looked at
  IMBREX_CUDA_TRY(launch_sort(args, bits_, room_->sort.get(), room_->sort_bytes,
                              static_cast<std::uint32_t*>(room_->sorted_keys.get()),
                              static_cast<std::uint32_t*>(room_->sorted_positions.get()), stream));
  IMBREX_CUDA_TRY(launch_sums(args, stream));
}

std::int64_t CudaUpdate::findings(cudaStream_t stream, Misfits misfits) {
  return take_findings(static_cast<Findings*>(findings_.get()), std::ssize(tables_), stream, misfits);
}

}  // namespace imbrex::embedding
