// A Solver by kernels of the source that includes this: for the CPU in ways.cpp, for GPUs in ways.cu.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>

#include "apps/jacobi/solver.hpp"
#include "apps/jacobi/tiles.hpp"
#include "imbrex/shmem/rings.hpp"
#include "imbrex/shmem.hpp"

#if defined(__CUDACC__)
#include "apps/jacobi/lanes.hpp"
#endif

namespace imbrex::apps::jacobi {
namespace {

#if defined(__CUDACC__)
constexpr Device own_device = Device::cuda;
constexpr std::uint32_t most_threads = tile_threads;

// Loads a kernel now: at its first launch it could wait for kernels that run, which wait for that launch.
template <typename... Parameters>
void load(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  if (status != cudaSuccess)
    throw Error(ErrorCode::runtime_failure, std::string("cudaFuncGetAttributes failed: ") + cudaGetErrorString(status));
}
#else
constexpr Device own_device = Device::cpu;
constexpr std::uint32_t most_threads = 64;  // that a block of one thread plays

template <typename... Parameters>
void load(void (*)(Parameters...)) {}

constexpr std::uint32_t shared_bytes_of(int) { return ~std::uint32_t{0}; }

// What it is given is done at once.
class Lane {
 public:
  explicit Lane(int) {}
  CudaStream stream() const { return nullptr; }
  void copy(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
  void mark() const {}
  void follow(const Lane&) const {}
};
#endif

template <typename T>
class Ways final : public Solver {
 public:
  Ways(World& world, const JacobiRequest& request, std::uint32_t grid_rows, std::uint32_t grid_columns)
      : request_(request),
        field_(field_of<T>(static_cast<std::uint32_t>(request.rows), static_cast<std::uint32_t>(request.columns),
                           grid_rows, grid_columns, request.seed)),
        sweeps_(static_cast<std::uint64_t>(request.sweeps)),
        every_(static_cast<std::uint64_t>(request.every)),
        heap_(world, {.device = own_device,
                      .bytes = heap_bytes_of(request, own_device),
                      .ranks_per_gpu = request.ranks_per_gpu,
                      .contexts = 2 * most_blocks + 1,
                      .pauses = request.delays}),
        lane_(heap_.gpu()),
        inner_lane_(heap_.gpu()) {
    choose_blocks();
    load(jacobi::start<T>), load(exchange<T>), load(bands<false, T>), load(bands<true, T>), load(sweep_part<false, T>),
        load(sweep_part<true, T>);
    load(tiles<T, small_rows, small_columns>);
    if constexpr (sizeof(T) == 4) load(tiles<T, large_rows, large_columns>);
    for (T*& copy : places_.field) copy = allocate<T>(field_.elements());
    places_.signal_count = std::uint64_t{blocks_} * sides;
    places_.signals = allocate<Signal>(places_.signal_count);
    if (tiling_) places_.packet_count = std::uint64_t{blocks_} * sides * 2 * tiling_->box;
    places_.packets = allocate<EdgePacket>(places_.packet_count);
    places_.sum_count = sweeps_ / every_ * 2;
    places_.sums = allocate<std::uint64_t>(std::max<std::uint64_t>(places_.sum_count, 2));
    places_.replayed = allocate<std::uint64_t>(1);
    places_.arrived = allocate<std::uint64_t>(4);
    if (request.way == JacobiWay::ring) make_rings();
    capture();
  }

  void start() override {
    // NOTE: peers may write what start clears once they sweep, so all are here before and behind.
    heap_.barrier(heap_.world_team());
    launch(grid_of(std::uint64_t{field_.rows} * field_.columns), jacobi::start<T>, field_, places_);
    heap_.finish(lane_.stream());
    heap_.barrier(heap_.world_team());
  }

  void sweep() override {
    switch (request_.way) {
      case JacobiWay::kernel_boundaries:
        for (std::uint64_t s = 1; s <= sweeps_; ++s) {
          look_after_world(s);
          queue_sweep(s);
        }
        return;
      case JacobiWay::graph: return replay();
      case JacobiWay::overlapped: return queue_overlapped();
      case JacobiWay::in_kernel:
      case JacobiWay::ring: return queue_in_kernel();
    }
  }

  void finish() override {
    heap_.finish(lane_.stream());
    heap_.finish(inner_lane_.stream());
    heap_.barrier(heap_.world_team());
  }

  std::vector<std::byte> result() override {
    std::vector<std::byte> bytes(field_.elements() * sizeof(T));
    heap_.read(bytes.data(), places_.field[sweeps_ % 2], bytes.size(), heap_.pe());
    return bytes;
  }

  std::vector<std::uint64_t> sums() override {
    std::vector<std::uint64_t> words(places_.sum_count);
    heap_.read(words.data(), places_.sums, words.size() * sizeof(std::uint64_t), heap_.pe());
    return words;
  }

  const Field& field() const override { return field_; }

  std::string blocks() const override { return words_of(request_, tiling_, blocks_); }

 private:
  template <typename E>
  E* allocate(std::uint64_t count) {
    return static_cast<E*>(heap_.allocate(count * sizeof(E)));
  }

  template <typename... Parameters, typename... Arguments>
  void launch(shmem::Grid grid, void (*kernel)(shmem::Handle, Parameters...), Arguments&&... arguments) {
    if (grid.stream == nullptr) grid.stream = lane_.stream();
    shmem::launch(heap_, grid, kernel, heap_.handle(), arguments...);
  }

  // So many pieces of work, which do not wait.
  shmem::Grid grid_of(std::uint64_t pieces) const {
    const std::uint64_t wanted = std::max<std::uint64_t>(1, (pieces + sweep_threads - 1) / sweep_threads);
    const std::uint64_t most = own_device == Device::cuda ? most_blocks : host_blocks_of(request_);
    return {.blocks = static_cast<std::uint32_t>(std::min(wanted, most)), .threads = sweep_threads, .resident = false};
  }

  // Rings, and what neighbours get: rows of the first and the last band, and columns, for each parity of sweeps.
  void make_rings() {
    rings_.emplace(heap_, shmem::ring::RingOptions{.contexts = blocks_ + 1, .slots = 64, .templates = 2 * sides});
    for (std::uint32_t parity = 0; parity < 2; ++parity)
      for (std::uint32_t side = west; side <= east; ++side) {
        places_.leaving[parity][side - west] = allocate<T>(field_.rows);
        places_.landed[parity][side - west] = allocate<T>(field_.rows);
      }
    for (std::uint32_t side = 0; side < sides; ++side)
      for (std::uint32_t parity = 0; parity < 2; ++parity) {
        T* copy = places_.field[parity];
        const bool is_row = side < west;
        const std::int64_t rows = field_.rows, mine = side == north ? 0 : rows - 1, theirs = side == north ? rows : -1;
        const std::uint64_t band = side == north ? blocks_ - 1 : 0;  // of the neighbour, that has the signal
        const std::uint32_t number =
            rings_->add({.there = is_row ? copy + field_.at(theirs, 0) : places_.landed[parity][opposite(side) - west],
                         .here = is_row ? copy + field_.at(mine, 0) : places_.leaving[parity][side - west],
                         .bytes = (is_row ? field_.columns : field_.rows) * sizeof(T),
                         .signal = places_.signals + band * sides + opposite(side)});
        if (side == 0 && parity == 0) places_.puts = number;
      }
  }

  void choose_blocks() {
    blocks_ = 1;
    if (request_.way != JacobiWay::in_kernel && request_.way != JacobiWay::ring) return;
    std::uint32_t most =
        own_device == Device::cuda ? static_cast<std::uint32_t>(heap_.multiprocessors()) : host_blocks_of(request_);
    if (request_.blocks > 0) most = std::min(most, static_cast<std::uint32_t>(request_.blocks));
    if (request_.tile != JacobiTile::streamed && request_.way == JacobiWay::in_kernel) {
      if (shared_bytes<small_rows, small_columns> <= shared_bytes_of(heap_.gpu()))
        tiling_ = cut(field_, most, most_threads, small_rows, small_columns);
      if (!tiling_ && sizeof(T) == 4 && shared_bytes<large_rows, large_columns> <= shared_bytes_of(heap_.gpu()))
        tiling_ = cut(field_, most, most_threads, large_rows, large_columns);
      if (!tiling_ && request_.tile == JacobiTile::held) refuse_to_hold(field_, request_, most);
    }
    // Two bands to an SM: one computes while the other waits.
    if (own_device == Device::cuda && request_.blocks == 0) most *= 2;
    blocks_ = tiling_ ? tiling_->down * tiling_->across : std::min(most, field_.rows);
  }

  void queue_part(const Lane& lane, std::uint64_t s, Part part) {
    const std::uint64_t pieces = count_of(Pieces::of<T>(field_.rows, field_.columns), part);
    if (pieces == 0) return;
    shmem::Grid grid = grid_of(pieces);
    grid.stream = lane.stream();
    launch(grid, s % every_ == 0 ? sweep_part<true, T> : sweep_part<false, T>, field_, places_, s, every_, part);
  }

  // Rows to the neighbours, in the stream's order.
  void queue_exchange(std::uint64_t s, std::uint64_t replays) {
    T* made = places_.field[s % 2];
    const auto pe = static_cast<std::uint32_t>(heap_.pe());
    for (const std::uint32_t side : {north, south}) {
      if (!field_.has_neighbour(pe, side)) continue;
      const std::int64_t rows = field_.rows, mine = side == north ? 0 : rows - 1, theirs = side == north ? rows : -1;
      lane_.copy(heap_.pointer(made + field_.at(theirs, 0), static_cast<int>(field_.neighbour(pe, side))),
                 made + field_.at(mine, 0), field_.columns * sizeof(T));
    }
    launch({.blocks = 1, .threads = exchange_threads, .resident = false}, exchange<T>, field_, places_, s, replays);
  }

  void queue_sweep(std::uint64_t s, std::uint64_t replays = 0) {
    queue_part(lane_, s, Part::all);
    queue_exchange(s, replays);
  }

  /// Sweeps that are queued behind a failure would only be waited for.
  void look_after_world(std::uint64_t s) {
    if (s % 256 == 0) heap_.check();
  }

  void queue_overlapped() {
    for (std::uint64_t s = 1; s <= sweeps_; ++s) {
      look_after_world(s);
      if (s > 1) lane_.follow(inner_lane_);
      queue_part(lane_, s, Part::edge);
      if (s > 1) inner_lane_.follow(lane_);
      lane_.mark();  // the next inner part follows this edge
      queue_part(inner_lane_, s, Part::inner);
      inner_lane_.mark();
      queue_exchange(s, 0);
    }
  }

  void queue_in_kernel() {
    if (!tiling_)
      return launch({.blocks = blocks_, .threads = band_threads},
                    request_.way == JacobiWay::ring ? bands<true, T> : bands<false, T>, field_, places_, sweeps_,
                    every_);
    if constexpr (sizeof(T) == 4)
      if (tiling_->patch_rows == large_rows) return queue_tiles<large_rows, large_columns>();
    queue_tiles<small_rows, small_columns>();
  }

  // More than half of what an SM has: tiles are not to share one while others are free.
  template <std::uint32_t R, std::uint32_t C>
  static constexpr std::uint32_t shared_bytes = std::max<std::uint32_t>(shared_count<T, R, C> * sizeof(T),
                                                                        own_device == Device::cuda ? 116 * 1024 : 0);

  template <std::uint32_t R, std::uint32_t C>
  void queue_tiles() {
    launch({.blocks = blocks_,
            .threads = own_device == Device::cuda ? (tiling_->threads() + 31) / 32 * 32 : 1,
            .shared_bytes = shared_bytes<R, C>},
           tiles<T, R, C>, field_, places_, *tiling_, sweeps_, every_);
  }

#if defined(__CUDACC__)
  // Graphs of so many sweeps that in each the same ones write the same copy and tell residuals.
  void capture() {
    if (request_.way != JacobiWay::graph) return;
    constexpr std::uint64_t enough = 256;
    const std::uint64_t unit = every_ > sweeps_ ? 2 : std::lcm(std::uint64_t{2}, every_);
    length_ = std::max(unit, enough / unit * unit);
    if (sweeps_ <= std::max(length_, enough)) length_ = sweeps_;
    const auto captured = [&](std::uint64_t count, bool replays) {
      return std::make_unique<Graph>(lane_, [&] {
        for (std::uint64_t s = 1; s <= count; ++s) queue_sweep(s, replays && s == count ? count : 0);
      });
    };
    graph_ = captured(length_, length_ < sweeps_);
    if (sweeps_ % length_ != 0) rest_ = captured(sweeps_ % length_, false);
    heap_.finish(lane_.stream());
  }

  void replay() {
    for (std::uint64_t s = length_; s <= sweeps_; s += length_) graph_->replay();
    if (rest_) rest_->replay();
  }
#else
  void capture() {}
  void replay() {}  // run_jacobi refuses it
#endif

  const JacobiRequest& request_;
  Field field_;
  std::uint64_t sweeps_, every_;
  shmem::Heap heap_;
  std::optional<shmem::ring::Rings> rings_;
  Lane lane_, inner_lane_;
  Places<T> places_{};
  std::optional<Tiling> tiling_;
  std::uint32_t blocks_ = 1;
#if defined(__CUDACC__)
  std::unique_ptr<Graph> graph_, rest_;
  std::uint64_t length_ = 0;  // sweeps of graph_
#endif
};

std::unique_ptr<Solver> solver_here(World& world, const JacobiRequest& request, std::uint32_t grid_rows,
                                    std::uint32_t grid_columns) {
  if (request.type == "fp64") return std::make_unique<Ways<double>>(world, request, grid_rows, grid_columns);
  return std::make_unique<Ways<float>>(world, request, grid_rows, grid_columns);
}

}  // namespace
}  // namespace imbrex::apps::jacobi
