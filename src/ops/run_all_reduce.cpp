#include "imbrex/run_all_reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "imbrex/npy.hpp"
#include "imbrex/world.hpp"
#include "ops/operands.hpp"
#include "ops/reference.hpp"
#include "ops/run_device.hpp"
#include "ops/run_ranks.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex {
namespace {

constexpr std::byte poison{0xff};  // NaN in every type

/// The ranks' tensors, stacked by rank: from a file, or a seed.
class Source {
 public:
  Source(const AllReduceRequest& request, const NpyFile* file, std::int64_t rows, std::int64_t cols)
      : request_(request), file_(file), rows_(rows), cols_(cols) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t count() const { return rows_ * cols_; }

  /// A rank's elements.
  std::vector<std::byte> elements(int rank) const {
    std::vector<float> values(static_cast<std::size_t>(count()));
    if (file_ != nullptr)
      file_->read(rank * rows_, 0, rows_, cols_, values);
    else
      for (std::int64_t i = 0; i < rows_; ++i)
        for (std::int64_t j = 0; j < cols_; ++j)
          values[static_cast<std::size_t>(i * cols_ + j)] = seeded_value(request_.seed, 0, rank * rows_ + i, j);
    std::vector<std::byte> bytes(values.size() * size_of(request_.type));
    from_float(request_.type, values.data(), bytes.data(), count());
    return bytes;
  }

  std::vector<float> values(int rank) const {
    const std::vector<std::byte> bytes = elements(rank);
    std::vector<float> values(static_cast<std::size_t>(count()));
    to_float(request_.type, bytes.data(), values.data(), count());
    return values;
  }

 private:
  const AllReduceRequest& request_;
  const NpyFile* file_;
  std::int64_t rows_, cols_;
};

// A rank's tensor and its sum, where the device works.
class Memory {
 public:
  Memory(Device device, std::vector<std::byte> in) : host_in_(std::move(in)), host_out_(host_in_.size()) {
    if (device != Device::cuda) return;
    in_ = std::make_unique<runtime::DeviceMemory>(host_in_.size());
    out_ = std::make_unique<runtime::DeviceMemory>(host_in_.size());
    in_->upload(host_in_);
  }

  const void* in() const { return in_ ? in_->get() : host_in_.data(); }
  void* out() { return out_ ? out_->get() : host_out_.data(); }
  void poison_output() {
    if (out_)
      out_->fill(static_cast<unsigned char>(poison));
    else
      std::fill(host_out_.begin(), host_out_.end(), poison);
  }
  /// Also waits for the device.
  const std::vector<std::byte>& output() {
    if (out_) out_->download(host_out_);
    return host_out_;
  }

 private:
  std::vector<std::byte> host_in_, host_out_;
  std::unique_ptr<runtime::DeviceMemory> in_, out_;
};

std::uint64_t hash_of(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
  return hash;
}

// What one rank tells the others about its result.
struct Verdict {
  Comparison worst;
  std::uint64_t hash = 0;
  int differs = -1;  // repeat whose bits differ from the first one's
};

class Job {
 public:
  Job(const AllReduceRequest& request, Device device, const Source& source,
      const std::function<void(const AllReduceResult&)>& report)
      : request_(request), device_(device), source_(source), report_(report) {}

  int run(World& world) const {
    AllReduceResult result;
    result.rows = source_.rows();
    result.cols = source_.cols();
    result.device = device_;
    const auto op = (device_ == Device::cuda ? make_cuda_all_reduce : make_cpu_all_reduce)(
        world, source_.count(), request_.type, request_.options);
    Memory memory(device_, source_.elements(world.rank()));
    Verdict verdict;
    for (int i = 0; i < request_.repeat; ++i) {
      memory.poison_output();
      world.barrier();
      const auto begin = std::chrono::steady_clock::now();
      (*op)(memory.in(), memory.out(), source_.count());
      if (device_ == Device::cuda) runtime::DeviceMemory::synchronize();
      result.seconds.push_back(
          slowest(world, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
      const std::uint64_t hash = hash_of(memory.output());
      if (i == 0)
        verdict.hash = hash;
      else if (verdict.differs < 0 && hash != verdict.hash)
        verdict.differs = i;
    }
    result.report = op->report();
    std::vector<float> values(static_cast<std::size_t>(source_.count()));
    to_float(request_.type, memory.output().data(), values.data(), std::ssize(values));
    if (!request_.out_prefix.empty())
      write_npy(fmt::format("{}.rank{}.npy", request_.out_prefix, world.rank()), source_.rows(), source_.cols(),
                values);
    if (request_.verify)
      verdict.worst = compare(reference(world.size(), result.report), values, request_.type, source_.cols());
    const bool right = judge(world, verdict, result);
    if (world.rank() == 0) report_(result);
    return right ? 0 : static_cast<int>(ErrorCode::unsound);
  }

 private:
  Reference reference(int ranks, const AllReduceReport& report) const {
    const auto count = static_cast<std::size_t>(source_.count());
    Reference ref{std::vector<double>(count), std::vector<double>(count, static_cast<double>(report.largest_error))};
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> values = source_.values(rank);
      for (std::size_t i = 0; i < count; ++i) ref.value[i] += static_cast<double>(values[i]);
    }
    return ref;
  }

  static double slowest(World& world, double seconds) {
    std::vector<double> all(static_cast<std::size_t>(world.size()));
    world.all_gather(&seconds, all.data(), sizeof seconds);
    return *std::max_element(all.begin(), all.end());
  }

  // The same on every rank.
  bool judge(World& world, const Verdict& own, AllReduceResult& result) const {
    if (!request_.verify) return true;
    std::vector<Verdict> all(static_cast<std::size_t>(world.size()));
    world.all_gather(&own, all.data(), sizeof own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const Verdict& v = all[rank];
      result.max_error_over_bound = std::max(result.max_error_over_bound, v.worst.worst);
      if (!result.message.empty()) continue;
      if (v.worst.worst > 1)
        result.message = fmt::format("rank {}: element ({}, {}) is {}, the sum {}: {:.3g} times the reported bound",
                                     rank, v.worst.row, v.worst.col, v.worst.result, v.worst.value, v.worst.worst);
      else if (v.differs >= 0)
        result.message = fmt::format("rank {}: the bits of repeat {} differ from those of the first", rank, v.differs);
      else if (v.hash != all[0].hash)
        result.message = fmt::format("the bits of rank {} differ from those of rank 0", rank);
    }
    result.verified = result.message.empty();
    return result.verified;
  }

  const AllReduceRequest& request_;
  Device device_;
  const Source& source_;
  const std::function<void(const AllReduceResult&)>& report_;
};

Device choose_device(const AllReduceRequest& request) {
  if (request.device == Device::cpu) return Device::cpu;
  std::string gpu;
  const bool own = World::launched() && request.device == Device::cuda;
  const std::string refusal = refusal_of_ranks(request.ranks, request.threads, own, gpu);
  if (refusal.empty()) return Device::cuda;
  IMBREX_EXPECTS(request.device != Device::cuda, "device cuda: {}", refusal);
  return Device::cpu;
}

}  // namespace

int run_all_reduce(const AllReduceRequest& request, const std::function<void(const AllReduceResult&)>& report) {
  IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
  IMBREX_EXPECTS(request.ranks >= 1 && request.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", request.ranks,
                 max_ranks);
  std::unique_ptr<NpyFile> file;
  std::int64_t rows = request.rows, cols = request.cols;
  if (!request.a_path.empty()) {
    file = std::make_unique<NpyFile>(request.a_path);
    const NpyHeader& header = file->header();
    IMBREX_EXPECTS(header.dimensions == 2, "{} is one-dimensional; it must hold the ranks' matrices, stacked",
                   file->path());
    IMBREX_EXPECTS(header.rows % request.ranks == 0, "{}: {} rows do not divide by {} ranks, whose tensors are stacked",
                   file->path(), header.rows, request.ranks);
    IMBREX_EXPECTS((rows == 0 || rows == header.rows / request.ranks) && (cols == 0 || cols == header.cols),
                   "{} holds tensors of M, N = {}, {}, not {}, {} as asked", file->path(), header.rows / request.ranks,
                   header.cols, rows, cols);
    rows = header.rows / request.ranks;
    cols = header.cols;
  }
  constexpr std::int64_t most = std::int64_t{1} << 40;
  IMBREX_EXPECTS(rows >= 0 && cols >= 0 && (cols == 0 || rows <= most / cols),
                 "M, N = {}, {}: neither may be negative, nor their product above 2^40", rows, cols);
  validate(request.options, rows * cols);
  const Source source(request, file.get(), rows, cols);
  const Job job(request, choose_device(request), source, report);
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  // Slots for two messages to and from every rank, twice; pages are taken on first touch.
  options.heap_bytes = (static_cast<std::size_t>(request.ranks) * 4 + 4) << 20;
  return run_ranks(request.ranks, request.threads, options, [&](World& world) { return job.run(world); });
}

}  // namespace imbrex
