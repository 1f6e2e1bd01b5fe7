#include "embedding/cuda/cuda_look_up.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "base/ceil_div.hpp"
#include "base/cuda_check.hpp"
#include "base/narrow.hpp"
#include "embedding/cuda/findings.hpp"
#include "embedding/cuda/put.hpp"

namespace imbrex::embedding {

const void* look_up_kernel_fp32_4(Type out, bool weighted);
const void* look_up_kernel_fp16_4(Type out, bool weighted);
const void* look_up_kernel_fp16_8(Type out, bool weighted);
const void* look_up_kernel_bf16_4(Type out, bool weighted);
const void* look_up_kernel_bf16_8(Type out, bool weighted);
const void* look_up_kernel_int8_4(Type out, bool weighted);
const void* look_up_kernel_int8_8(Type out, bool weighted);

const void* look_up_kernel(TableRows rows, int columns, Type out, bool weighted) {
  const bool wide = columns == 8;
  switch (rows) {
    case TableRows::fp32: return wide ? nullptr : look_up_kernel_fp32_4(out, weighted);
    case TableRows::fp16: return wide ? look_up_kernel_fp16_8(out, weighted) : look_up_kernel_fp16_4(out, weighted);
    case TableRows::bf16: return wide ? look_up_kernel_bf16_8(out, weighted) : look_up_kernel_bf16_4(out, weighted);
    case TableRows::int8: return wide ? look_up_kernel_int8_8(out, weighted) : look_up_kernel_int8_4(out, weighted);
  }
  return nullptr;
}

namespace {

// Bytes that a warp gathers and stores between two looks at what is left.
constexpr std::uint32_t usual_item_bytes = 16384;
// What the second level holds beside rows of other tables.
constexpr std::uint64_t small_bytes = 16 << 20;
// None leaves first: popular rows of large tables come again, too.
constexpr std::int64_t usual_kept_bytes = std::numeric_limits<std::int64_t>::max();

bool is_small(const Piece& piece) { return std::uint64_t{piece.count} * piece.pitch <= small_bytes; }

std::uint32_t small_of(const std::vector<Piece>& pieces) {
  return static_cast<std::uint32_t>(std::find_if_not(pieces.begin(), pieces.end(), is_small) - pieces.begin());
}

// Whether lanes can hold 8 columns of each table, and store them.
bool fits_wide(const std::vector<Table>& tables, TableRows type, const LookUpShape& shape) {
  if (type == TableRows::fp32) return false;
  const auto out = static_cast<std::int64_t>(size_of(shape.out));
  const auto vector = static_cast<std::uintptr_t>(8 * size_of(type));
  return shape.pitch * out % 16 == 0 && std::all_of(tables.begin(), tables.end(), [&](const Table& t) {
           return t.dim % 8 == 0 && t.column * out % 16 == 0 &&
                  reinterpret_cast<std::uintptr_t>(t.rows) % vector == 0 &&
                  static_cast<std::uintptr_t>(t.pitch) % vector == 0;
         });
}

}  // namespace

CudaLookUp::CudaLookUp(const Tables& tables, const LookUpShape& shape, const LookUpTuning& tuning,
                       std::vector<BagsOf> of)
    : tables_(tables.tables, tables.tables + tables.count),
      of_(std::move(of)),
      type_(tables.type),
      shape_(shape),
      tuning_(tuning),
      progress_(cuda::raw_memory(sizeof(Progress))),
      findings_(cuda::raw_memory(sizeof(Findings))) {
  for (std::size_t t = of_.size(); t < tables_.size(); ++t) of_.push_back({static_cast<std::uint32_t>(t), true});
  IMBREX_EXPECTS(
      shape.ranks >= 1 && shape.ranks <= std::int32_t{most_ranks} && shape.rank >= 0 && shape.rank < shape.ranks,
      "rank {} of {}: at most {} ranks", shape.rank, shape.ranks, most_ranks);
  IMBREX_EXPECTS(shape.batch >= 1 && shape.batch % shape.ranks == 0, "batch = {}: {} ranks must divide it", shape.batch,
                 shape.ranks);
  IMBREX_EXPECTS(shape.slices >= 1 && shape.slices <= std::min<std::int64_t>(most_slices, shape.batch / shape.ranks),
                 "slices = {}: from 1 to {}, and at most one a row of {}", shape.slices, most_slices,
                 shape.batch / shape.ranks);
  const std::int64_t part_rows = shape.batch / shape.ranks;
  IMBREX_EXPECTS(shape.slice_rows == 0 || base::ceil_div(part_rows, shape.slice_rows) == shape.slices,
                 "slice_rows = {}: {} slices of {} rows", shape.slice_rows, shape.slices, part_rows);
  if (tuning_.item_bytes == 0) tuning_.item_bytes = usual_item_bytes;
  if (tuning_.kept_bytes == 0) tuning_.kept_bytes = usual_kept_bytes;
  IMBREX_CUDA_TRY(load_put());
  narrow_ = cut(4);
  fits_wide_ = fits_wide(tables_, type_, shape_);
  if (fits_wide_) wide_ = cut(8);
  int device = 0, multiprocessors = 0, per_sm = 0;
  IMBREX_CUDA_TRY(cudaGetDevice(&device));
  IMBREX_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  // All kernels that calls may come to, so that every launch has as many blocks; and none is loaded at a launch.
  std::uint32_t fit = tuning_.blocks_per_sm != 0 ? tuning_.blocks_per_sm : 32;
  for (const Cutting* c : {&wide_, &narrow_}) {
    if (c->pieces == nullptr) continue;
    for (const bool weighted : {false, true}) {
      IMBREX_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &per_sm, look_up_kernel(type_, c->columns, shape_.out, weighted), look_up_threads,
          cut_bytes(c->count, static_cast<std::uint32_t>(shape_.slices))));
      fit = std::min(fit, static_cast<std::uint32_t>(per_sm));
    }
  }
  blocks_ = fit * static_cast<std::uint32_t>(multiprocessors);
  if (tuning_.blocks != 0) blocks_ = std::min(blocks_, tuning_.blocks);
  cuda::fill(progress_.get(), 0, sizeof(Progress));
  cuda::fill(findings_.get(), 0, sizeof(Findings));
}

std::vector<Piece> CudaLookUp::pieces_of(int columns) const {
  std::vector<Piece> pieces;
  const auto out = static_cast<std::int64_t>(size_of(shape_.out));
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    for (std::int32_t begin = 0; begin < table.dim; begin += 32 * columns) {
      const std::int32_t lanes = std::min(32, (table.dim - begin) / columns);
      const std::int64_t skipped = begin * size_of(type_);
      pieces.push_back({static_cast<const std::byte*>(table.rows) + skipped, static_cast<std::uint32_t>(table.count),
                        static_cast<std::uint32_t>(table.pitch),
                        type_ == TableRows::int8 ? base::narrow<std::uint32_t>(table.scale - skipped, "scale") : 0,
                        of_[t].number,
                        base::narrow<std::uint32_t>((table.column + begin) * out, "bytes of an output row"),
                        static_cast<std::uint16_t>(lanes),
                        static_cast<std::uint8_t>(std::max(8u, std::bit_ceil(static_cast<std::uint32_t>(lanes)))),
                        begin == 0 && of_[t].leads});
    }
  }
  std::stable_partition(pieces.begin(), pieces.end(), is_small);
  return pieces;
}

CudaLookUp::Cutting CudaLookUp::cut(int columns) const {
  const std::vector<Piece> pieces = pieces_of(columns);
  const auto count = static_cast<std::int64_t>(pieces.size());
  IMBREX_EXPECTS(count <= most_pieces, "{} pieces of {} columns: at most {} in one lookup", count, 32 * columns,
                 most_pieces);
  IMBREX_EXPECTS((shape_.batch + shape_.ranks * shape_.slices) * count <= most_rows,
                 "batch = {} with {} pieces of tables: at most {} sums", shape_.batch, count, most_rows);
  Cutting made{cuda::raw_memory(pieces.size() * sizeof(Piece)), static_cast<std::uint32_t>(count), small_of(pieces),
               columns};
  cuda::upload(made.pieces.get(), pieces.data(), pieces.size() * sizeof(Piece));
  return made;
}

const CudaLookUp::Cutting& CudaLookUp::cutting_for(const Bags& bags, const std::vector<Strip>& to) const {
  const Tables tables{tables_.data(), static_cast<std::int32_t>(tables_.size()), type_};
  IMBREX_EXPECTS(bags.batch == shape_.batch, "batch = {}: it was made for {}", bags.batch, shape_.batch);
  check_shapes(tables, bags);
  std::array<void*, most_strips> parts{};
  std::uintptr_t all = 0;
  for (std::size_t i = 0; i < to.size(); ++i) parts[i] = to[i].out, all |= reinterpret_cast<std::uintptr_t>(to[i].out);
  const auto count = static_cast<std::int32_t>(to.size());
  check_shapes(tables, {parts.data(), count, shape_.out, shape_.pitch}, bags.batch * count);
  return fits_wide_ && all % 16 == 0 ? wide_ : narrow_;
}

void CudaLookUp::bind(const Tables& tables, cudaStream_t stream) {
  const auto alike = [](const Table& a, const Table& b) { return a.dim == b.dim && a.column == b.column; };
  IMBREX_EXPECTS(tables.type == type_ &&
                     std::equal(tables_.begin(), tables_.end(), tables.tables, tables.tables + tables.count, alike),
                 "{} tables are bound: they must be as those that the lookup was made for", tables.count);
  tables_.assign(tables.tables, tables.tables + tables.count);
  fits_wide_ = wide_.pieces != nullptr && fits_wide(tables_, type_, shape_);
  for (Cutting* c : {&narrow_, &wide_}) {
    if (c->pieces == nullptr || (c == &wide_ && !fits_wide_)) continue;
    const std::vector<Piece> pieces = pieces_of(c->columns);
    c->small = small_of(pieces);
    IMBREX_CUDA_TRY(put(c->pieces.get(), pieces.data(), pieces.size() * sizeof(Piece), stream));
  }
}

void CudaLookUp::launch(const Bags& bags, void* const* parts, cudaStream_t stream, const LookUpPeers* peers) {
  const std::int64_t part_rows = shape_.batch / shape_.ranks;
  LookUpRounds rounds;
  rounds.slices = shape_.slices;
  rounds.slice_rows =
      shape_.slice_rows != 0 ? shape_.slice_rows : base::ceil_div(part_rows, std::int64_t{shape_.slices});
  if (peers != nullptr) {
    IMBREX_EXPECTS(std::ssize(peers->to) == shape_.ranks, "{} destinations: they must be {}", peers->to.size(),
                   shape_.ranks);
    rounds.joint = rounds.advances = true;
    rounds.group = peers->group;
    rounds.done_step = peers->done_step, rounds.post = peers->post;
  }
  for (std::int32_t i = 1; i <= shape_.ranks; ++i) {  // this rank's rows come last
    const std::int32_t d = (shape_.rank + i) % shape_.ranks;
    Strip strip = peers != nullptr ? peers->to[static_cast<std::size_t>(d)] : Strip{};
    strip.out = parts[d];
    strip.first_row = static_cast<std::uint32_t>(d * part_rows), strip.rows = static_cast<std::uint32_t>(part_rows);
    strip.name = static_cast<std::uint32_t>(d);
    rounds.to.push_back(strip);
  }
  launch(bags, rounds, stream);
}

void CudaLookUp::launch(const Bags& bags, const LookUpRounds& rounds, cudaStream_t stream) {
  const std::int64_t count = std::ssize(rounds.to);
  IMBREX_EXPECTS(count >= 1 && count <= std::int64_t{most_strips} && rounds.slices <= shape_.slices,
                 "{} strips and {} slices: at most {} and {}", count, rounds.slices, most_strips, shape_.slices);
  IMBREX_EXPECTS(!rounds.advances || rounds.group.readers == blocks_, "an epoch of {} readers: they must be {}",
                 rounds.group.readers, blocks_);
  for (const Strip& strip : rounds.to)
    IMBREX_EXPECTS(strip.rows >= 1 && strip.first_row <= shape_.batch - strip.rows &&
                       strip.rows <= rounds.slices * rounds.slice_rows,
                   "rows {} + {} of a batch of {}, in {} slices of {}", strip.first_row, strip.rows, shape_.batch,
                   rounds.slices, rounds.slice_rows);
  const Cutting& cutting = cutting_for(bags, rounds.to);
  // As many items as there can be.
  IMBREX_EXPECTS(count * rounds.slices * rounds.slice_rows * std::int64_t{cutting.count} <= 2 * most_rows,
                 "{} strips of {} slices of {} rows of {} pieces of tables: at most {} sums", count, rounds.slices,
                 rounds.slice_rows, cutting.count, 2 * most_rows);
  LookUpArgs args{};
  args.pieces = static_cast<const Piece*>(cutting.pieces.get());
  args.piece_count = cutting.count, args.small_pieces = cutting.small;
  args.indices = bags.indices, args.offsets = bags.offsets, args.weights = bags.weights;
  args.progress = static_cast<Progress*>(progress_.get()), args.findings = static_cast<Findings*>(findings_.get());
  args.out_pitch = static_cast<std::uint64_t>(shape_.pitch) * size_of(shape_.out);
  args.count = static_cast<std::uint32_t>(bags.count), args.batch = static_cast<std::uint32_t>(bags.batch);
  args.item_bytes = tuning_.item_bytes;
  args.kept_bytes = static_cast<std::uint64_t>(tuning_.kept_bytes);
  args.wide = bags.type == IndexType::int64, args.mean = bags.pooling == Pooling::mean;
  args.strips = static_cast<std::uint32_t>(count);
  args.strips_inverse = count == 1 ? 0 : ~std::uint64_t{0} / args.strips + 1;
  args.slices = static_cast<std::uint32_t>(rounds.slices);
  args.slice_rows = static_cast<std::uint32_t>(rounds.slice_rows);
  args.joint = rounds.joint, args.one_wait = rounds.one_wait, args.advances = rounds.advances,
  args.alternates = rounds.alternates ? 1 : 0;
  args.group = rounds.group;
  args.post = rounds.post, args.done_step = static_cast<std::uint64_t>(rounds.done_step);
  args.counter_stride = static_cast<std::uint64_t>(rounds.counter_stride);
  args.out_stride = static_cast<std::uint64_t>(rounds.out_stride);
  std::copy(rounds.to.begin(), rounds.to.end(), args.to);
  void* parameters[] = {&args};
  IMBREX_CUDA_TRY(cudaLaunchKernel(look_up_kernel(type_, cutting.columns, shape_.out, bags.weights != nullptr),
                                   dim3(blocks_), dim3(look_up_threads), parameters,
                                   cut_bytes(cutting.count, args.slices), stream));
}

std::int64_t CudaLookUp::findings(cudaStream_t stream, Misfits misfits) {
  std::int64_t count = 0;
  for (const BagsOf& of : of_) count = std::max<std::int64_t>(count, of.number + std::int64_t{1});
  return take_findings(static_cast<Findings*>(findings_.get()), count, stream, misfits);
}

}  // namespace imbrex::embedding
