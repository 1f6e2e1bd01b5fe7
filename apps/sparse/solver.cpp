#include "apps/sparse/solver.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <vector>

#include "apps/common/check.hpp"
#include "apps/common/names.hpp"
#include "apps/sparse/launches.hpp"
#include "imbrex/shmem/rings.hpp"

namespace imbrex::apps::sparse {
namespace {

template <typename T>
std::vector<T> rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

constexpr std::array<std::string_view, 3> ways{"in_kernel", "kernel_boundaries", "ring"};

// What rings take of the heap for each block.
constexpr std::uint32_t stage_bytes = 64;
constexpr std::size_t ring_bytes = 128, most_ring_blocks = 8192;

// So many right-hand sides are worked on: whole groups.
std::uint32_t padded(std::int64_t columns) {
  if (columns == 1) return one_column;
  return narrow<std::uint32_t>((columns + several_columns - 1) / several_columns * several_columns, "right-hand sides");
}

}  // namespace

Way parse_way(std::string_view name) { return value_named<Way>(ways, name, "a way"); }
std::string_view name_of(Way way) { return ways[static_cast<std::size_t>(way)]; }

template <typename T>
struct Solver<T>::Parts {
  Parts(shmem::Heap& its, const Schedule& schedule, const SolverOptions& options)
      : heap(its),
        way(options.way),
        columns(static_cast<std::size_t>(options.columns)),
        steps(schedule.steps),
        launches(its.device() == Device::cuda ? gpu_launches<T>() : host_launches<T>()) {
    const std::uint32_t width = padded(options.columns);
    at_once = width == one_column ? one_column : several_columns;
    result = static_cast<T*>(heap.allocate(std::size_t{schedule.most_rows} * width * sizeof(T)));
    right = static_cast<T*>(heap.allocate(std::size_t{schedule.most_rows} * width * sizeof(T)));
    const std::size_t slot_count = std::size_t{schedule.most_slots} * width;
    args.slots = static_cast<shmem::Packet<T>*>(heap.allocate(2 * slot_count * sizeof(shmem::Packet<T>)));
    args.done =
        static_cast<shmem::Signal*>(heap.allocate(static_cast<std::size_t>(heap.pes()) * sizeof(shmem::Signal)));
    // Never empty.
    const auto place = [&]<typename Element>(Element*& to, std::vector<std::remove_const_t<Element>> values) {
      if (values.empty()) values.resize(2);
      memory.push_back(launches.place(heap, values.data(), values.size() * sizeof(Element)));
      to = static_cast<Element*>(memory.back().get());
    };
    place(args.chunks, schedule.chunks);
    place(args.tasks, schedule.tasks);
    place(args.source, schedule.source);
    place(args.value, rounded<T>(schedule.value));
    place(args.diagonal, rounded<T>(schedule.diagonal));
    place(args.solved, std::vector<shmem::Packet<T>>(schedule.rows.size() * width));
    place(args.drawn, std::vector<std::uint64_t>(1));
    place(args.ended, std::vector<std::uint64_t>(1));
    args.result = result, args.right = right;
    args.slot_count = slot_count;
    args.chunk_count = narrow<std::uint32_t>(schedule.chunks.size(), "chunks");
    args.columns = width;

    const std::uint32_t most = launches.most_blocks(heap, at_once, way == Way::ring);
    if (most == 0) {
      blocks = options.workers;
    } else {
      // More warps than can have something to do on a few levels would only poll.
      constexpr std::uint64_t levels_ahead = 8;
      const auto busy = levels_ahead * schedule.most_chunks * (width / at_once);
      blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(busy / launches.warps, 1, most));
    }
    if (way == Way::ring) {
      std::vector<std::uint32_t> all(static_cast<std::size_t>(heap.pes()));  // schedules differ, and rings may not
      heap.world().all_gather(&blocks, all.data(), sizeof blocks);
      rings.emplace(heap, shmem::ring::RingOptions{.contexts = *std::max_element(all.begin(), all.end()),
                                                   .slots = 512,
                                                   .stage_bytes = stage_bytes,
                                                   .templates = 0});
    }
  }

  ~Parts() {
    if (std::uncaught_exceptions() > exceptions) return;
    try {
      heap.release(args.done), heap.release(args.slots), heap.release(right), heap.release(result);
    } catch (const Error&) {
      // The world has failed, and its next call says so.
    }
  }

  void solve_by_steps() {
    ++epoch;
    std::uint32_t begin = 0;
    for (const Step& step : steps) {
      const std::uint64_t chunks = std::uint64_t{step.end - begin} * (args.columns / at_once);
      const auto wanted = (chunks + launches.warps - 1) / launches.warps;
      const auto grid = static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, blocks));
      if (grid != 0) launches.step(heap, {grid, at_once, nullptr}, args, epoch, begin, step.end);
      begin = step.end;
      if (step.meet) meet();
    }
    meet();
  }

  void meet() {
    heap.finish();
    if (heap.pes() > 1) heap.barrier(heap.world_team());
  }

  shmem::Heap& heap;
  Way way;
  std::size_t columns;
  std::vector<Step> steps;
  const Launches<T>& launches;
  int exceptions = std::uncaught_exceptions();
  std::uint32_t at_once = 1, blocks = 1;
  std::uint64_t epoch = 0;  ///< kernel boundaries
  SystemArgs<T> args{};
  T *result = nullptr, *right = nullptr;  ///< symmetric
  std::vector<std::shared_ptr<void>> memory;
  std::optional<shmem::ring::Rings> rings;
};

template <typename T>
std::size_t Solver<T>::heap_bytes(const Schedule& schedule, std::int64_t columns, Way way) {
  const std::size_t rounding = 4096 + (way == Way::ring ? most_ring_blocks * ring_bytes : 0);  // allocations' alignment
  return padded(columns) * 2 * (schedule.most_rows * sizeof(T) + schedule.most_slots * sizeof(shmem::Packet<T>)) +
         rounding;
}

template <typename T>
Solver<T>::Solver(shmem::Heap& heap, const Schedule& schedule, const SolverOptions& options) {
  parts_ = std::make_unique<Parts>(heap, schedule, options);
}

template <typename T>
Solver<T>::~Solver() = default;

template <typename T>
void Solver<T>::set_right(const std::vector<T>& right) {
  const std::size_t width = parts_->args.columns, columns = parts_->columns;
  std::vector<T> wide(right.size() / columns * width);
  for (std::size_t i = 0; i < right.size(); ++i) wide[i / columns * width + i % columns] = right[i];
  parts_->heap.write(parts_->right, wide.data(), wide.size() * sizeof(T), parts_->heap.pe());
}

template <typename T>
void Solver<T>::solve() {
  Parts& parts = *parts_;
  if (parts.way == Way::kernel_boundaries) return parts.solve_by_steps();
  enqueue(nullptr);
  parts.heap.finish();
}

template <typename T>
void Solver<T>::enqueue(CudaStream stream) {
  IMBREX_EXPECTS(parts_->way != Way::kernel_boundaries,
                 "a solve at kernel boundaries is not one kernel, and cannot be queued");
  const auto launch = parts_->way == Way::ring ? parts_->launches.by_ring : parts_->launches.in_kernel;
  launch(parts_->heap, {parts_->blocks, parts_->at_once, stream}, parts_->args);
}

template <typename T>
std::vector<T> Solver<T>::result(int pe, std::size_t rows) {
  const std::size_t width = parts_->args.columns, columns = parts_->columns;
  std::vector<T> wide(rows * width), result(rows * columns);
  parts_->heap.read(wide.data(), parts_->result, wide.size() * sizeof(T), pe);
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = wide[i / columns * width + i % columns];
  return result;
}

template class Solver<float>;
template class Solver<double>;

}  // namespace imbrex::apps::sparse
