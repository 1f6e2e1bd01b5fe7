// What the map costs an RMSNorm: of a packed matrix, of the same matrix in rows, and of one that a copy puts back in
// rows first, in turn, by replayed graphs whose calls go round matrices that L2 does not hold together. Results are
// compared before. Measured besides: the same bytes by cudaMemcpy on the device.
//
//   put_back [JSON [ROUNDS]]       (default 9 rounds)
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/packed.hpp"
#include "program/measure/random_bytes.hpp"
#include "program/measure/turns.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace {

using namespace imbrex;

struct Shape {
  std::int64_t rows, cols;
};

constexpr Shape shapes[] = {{1024, 4096}, {2048, 8192}, {4096, 8192}, {8192, 16384}, {16384, 16384}};
constexpr std::int64_t block_rows = 1024;  // CTA swizzle groups of 8 tiles
constexpr std::int64_t widths[] = {128, 256};
constexpr std::size_t rotated_bytes = std::size_t{256} << 20;

// Calls of a graph, timed by events around a replay of it.
class Replay {
 public:
  Replay(int calls, const std::function<void(int, cudaStream_t)>& call) : calls_(calls) {
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_) IMBREX_CUDA_TRY(cudaEventCreate(&event));
    cudaGraph_t graph = nullptr;
    IMBREX_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i, stream_);
    IMBREX_CUDA_TRY(cudaStreamEndCapture(stream_, &graph));
    IMBREX_CUDA_TRY(cudaGraphInstantiate(&ready_, graph, 0));
    IMBREX_CUDA_TRY(cudaGraphDestroy(graph));
  }
  ~Replay() {
    cudaGraphExecDestroy(ready_);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  double seconds() const {
    IMBREX_CUDA_TRY(cudaGraphLaunch(ready_, stream_));
    IMBREX_CUDA_TRY(cudaEventRecord(events_[0], stream_));
    IMBREX_CUDA_TRY(cudaGraphLaunch(ready_, stream_));
    IMBREX_CUDA_TRY(cudaEventRecord(events_[1], stream_));
    IMBREX_CUDA_TRY(cudaEventSynchronize(events_[1]));
    float milliseconds = 0;
    IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return milliseconds * 1e-3 / calls_;
  }

 private:
  int calls_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2]{};
  cudaGraphExec_t ready_ = nullptr;
};

struct Layout {
  cuda::RawMemory first_rows;
  PackedLayout packed;
};

// Blocks as a signaled plan leaves them: a swizzle group's columns side by side, then the next one's.
Layout layout_of(const Shape& shape, std::int64_t width) {
  std::vector<std::int32_t> first;
  const std::int64_t across = shape.cols / width;
  for (std::int64_t row = 0; row < shape.rows; row += block_rows)
    for (std::int64_t j = 0; j < across; ++j)
      first.push_back(static_cast<std::int32_t>(row * across + j * std::min(block_rows, shape.rows - row)));
  Layout layout{cuda::raw_memory(first.size() * sizeof(std::int32_t)), {}};
  cuda::upload(layout.first_rows.get(), first.data(), first.size() * sizeof(std::int32_t));
  layout.packed = {shape.rows,
                   shape.cols,
                   std::min(block_rows, shape.rows),
                   width,
                   static_cast<const std::int32_t*>(layout.first_rows.get()),
                   Device::cuda};
  return layout;
}

bool equal(const void* x, const void* y, std::size_t bytes) {
  bytes = std::min(bytes, std::size_t{64} << 20);
  std::vector<std::byte> a(bytes), b(bytes);
  IMBREX_CUDA_TRY(cudaMemcpy(a.data(), x, bytes, cudaMemcpyDeviceToHost));
  IMBREX_CUDA_TRY(cudaMemcpy(b.data(), y, bytes, cudaMemcpyDeviceToHost));
  return std::memcmp(a.data(), b.data(), bytes) == 0;
}

// The matrices of one shape.
class Matrices {
 public:
  Matrices(const Shape& shape, Type type)
      : shape_(shape), type_(type), bytes_(static_cast<std::size_t>(shape.rows * shape.cols) * size_of(type)) {
    const std::vector<std::byte> values = program::random_bytes(shape.rows * shape.cols, type, 1),
                                 weight = program::random_bytes(shape.cols, type, 2);
    weight_ = cuda::raw_memory(weight.size());
    cuda::upload(weight_.get(), weight.data(), weight.size());
    for (std::size_t i = 0; i < copies(); ++i) {
      packed_.push_back(cuda::raw_memory(bytes_));
      rows_.push_back(cuda::raw_memory(bytes_));
      out_.push_back(cuda::raw_memory(bytes_));
      cuda::upload(packed_.back().get(), values.data(), bytes_);
    }
  }

  std::size_t copies() const { return std::max<std::size_t>(1, rotated_bytes / bytes_); }
  std::size_t bytes() const { return bytes_; }
  void* packed(std::size_t i) const { return packed_[i % copies()].get(); }
  void* rows(std::size_t i) const { return rows_[i % copies()].get(); }
  void* out(std::size_t i) const { return out_[i % copies()].get(); }

  void norm(const PackedLayout& layout, const void* in, void* out, cudaStream_t stream) const {
    put_back(RowOperation::rms_norm, layout,
             {{"in", View::matrix(in, type_, layout.packed_rows(), layout.packed_cols())},
              {"weight", View::vector(weight_.get(), type_, shape_.cols)},
              {"out", View::matrix(out, type_, shape_.rows, shape_.cols)}},
             1e-6f, stream);
  }
  void copy(const PackedLayout& layout, const void* in, void* out, cudaStream_t stream) const {
    put_back(RowOperation::copy, layout,
             {{"in", View::matrix(in, type_, layout.packed_rows(), layout.packed_cols())},
              {"out", View::matrix(out, type_, shape_.rows, shape_.cols)}},
             0, stream);
  }

 private:
  Shape shape_;
  Type type_;
  std::size_t bytes_;
  cuda::RawMemory weight_;
  std::vector<cuda::RawMemory> packed_, rows_, out_;
};

int measure(const std::string& json, int rounds) {
  cudaDeviceProp gpu{};
  IMBREX_CUDA_TRY(cudaGetDeviceProperties(&gpu, 0));
  nlohmann::json all = nlohmann::json::array();
  fmt::print("{}, microseconds\n{:>5} {:>6} {:>6} {:>5}  {:>8} {:>8} {:>9} {:>8}  {:>6} {:>9} {:>6}\n", gpu.name,
             "type", "rows", "cols", "width", "mapped", "in rows", "copy+norm", "memcpy", "/rows", "copy/map", "TB/s");
  double map = 0, gain = 0, worst = 0;
  for (const Type type : {Type::bf16, Type::fp16})
    for (const Shape& shape : shapes) {
      const Matrices m(shape, type);
      const PackedLayout in_rows = PackedLayout::in_rows(shape.rows, shape.cols, Device::cuda);
      for (const std::int64_t width : widths) {
        const Layout layout = layout_of(shape, width);
        for (std::size_t i = 0; i < m.copies(); ++i) m.copy(layout.packed, m.packed(i), m.rows(i), nullptr);
        const cuda::RawMemory wanted = cuda::raw_memory(m.bytes());
        m.norm(in_rows, m.rows(0), wanted.get(), nullptr);
        m.norm(layout.packed, m.packed(0), m.out(0), nullptr);
        if (!equal(wanted.get(), m.out(0), m.bytes())) {
          fmt::print(stderr, "put_back: the norm through the map differs from that of rows\n");
          return 1;
        }
        const int calls = std::clamp(static_cast<int>(2 * m.copies()), 4, 64);
        const auto at = [](int i) { return static_cast<std::size_t>(i); };
        std::vector<std::unique_ptr<Replay>> ways;
        const auto add = [&](const std::function<void(int, cudaStream_t)>& call) {
          ways.push_back(std::make_unique<Replay>(calls, call));
        };
        add([&](int i, cudaStream_t s) { m.norm(layout.packed, m.packed(at(i)), m.out(at(i)), s); });
        add([&](int i, cudaStream_t s) { m.norm(in_rows, m.rows(at(i)), m.out(at(i)), s); });
        add([&](int i, cudaStream_t s) {
          m.copy(layout.packed, m.packed(at(i)), m.rows(at(i)), s);
          m.norm(in_rows, m.rows(at(i)), m.out(at(i)), s);
        });
        add([&](int i, cudaStream_t s) {
          IMBREX_CUDA_TRY(cudaMemcpyAsync(m.out(at(i)), m.rows(at(i)), m.bytes(), cudaMemcpyDeviceToDevice, s));
        });
        const std::vector<double> t =
            program::timed_in_turn(ways.size(), rounds, [&](std::size_t i) { return ways[i]->seconds(); });
        map += std::log(t[0] / t[1]);
        gain += std::log(t[2] / t[0]);
        worst = std::max(worst, t[0] / t[1]);
        all.push_back({{"type", name_of(type)},
                       {"rows", shape.rows},
                       {"cols", shape.cols},
                       {"width", width},
                       {"microseconds",
                        {{"mapped", t[0] * 1e6},
                         {"in_rows", t[1] * 1e6},
                         {"copy_and_norm", t[2] * 1e6},
                         {"memcpy", t[3] * 1e6}}}});
        fmt::print("{:>5} {:6} {:6} {:5}  {:8.2f} {:8.2f} {:9.2f} {:8.2f}  {:6.3f} {:9.3f} {:6.2f}\n", name_of(type),
                   shape.rows, shape.cols, width, t[0] * 1e6, t[1] * 1e6, t[2] * 1e6, t[3] * 1e6, t[0] / t[1],
                   t[2] / t[0], 2 * static_cast<double>(m.bytes()) / t[0] * 1e-12);
      }
    }
  const auto count = static_cast<double>(all.size());
  fmt::print("geometric means: mapped / in rows {:.4f}, worst {:.4f}; copy and norm / mapped {:.3f}\n",
             std::exp(map / count), worst, std::exp(gain / count));
  if (!json.empty())
    write_file(json, nlohmann::json{{"gpu", gpu.name},
                                    {"mapped_over_rows", std::exp(map / count)},
                                    {"worst", worst},
                                    {"copy_and_norm_over_mapped", std::exp(gain / count)},
                                    {"rows", all}}
                             .dump(1) +
                         "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return measure(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 9);
  } catch (const Error& error) {
    fmt::print(stderr, "put_back: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
