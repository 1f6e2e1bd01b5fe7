#include "jobs/run_all_reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "base/hash.hpp"
#include "collectives/all_reduce.hpp"
#include "jobs/all_reduce_job.hpp"
#include "jobs/run_device.hpp"
#include "jobs/run_ranks.hpp"

namespace imbrex::jobs {
namespace {

class Job {
 public:
  Job(const AllReduceRequest& request, Device device, const StackedTensors& source,
      const std::function<void(const AllReduceResult&)>& report)
      : request_(request), device_(device), source_(source), report_(report) {}

  int run(World& world) const {
    if (request_.rms_norm) return run_rms_norm(world, request_, device_, source_, report_);
    AllReduceResult result;
    result.rows = source_.rows();
    result.cols = source_.cols();
    result.device = device_;
    const auto op = (device_ == Device::cuda ? make_cuda_all_reduce : make_cpu_all_reduce)(
        world, source_.count(), request_.type, request_.options);
    DeviceTensor in(device_, source_.elements(world.rank())), out(device_, source_.elements(world.rank()));
    Verdict verdict;
    for (int i = 0; i < request_.repeat; ++i) {
      out.poison();
      result.seconds.push_back(seconds_of(world, device_, [&] { (*op)(in.get(), out.get(), source_.count()); }));
      verdict.note(i, base::hash_of(out.read()));
    }
    result.report = op->report();
    std::vector<float> values(static_cast<std::size_t>(source_.count()));
    base::to_float(request_.type, out.read().data(), values.data(), std::ssize(values));
    if (!request_.out_prefix.empty())
      write_npy(fmt::format("{}.rank{}.npy", request_.out_prefix, world.rank()), source_.rows(), source_.cols(),
                values);
    if (request_.verify)
      verdict.worst = compare(reference(world.size(), result.report), values, request_.type, source_.cols());
    const bool right = judge(world, request_, verdict, "the sum", "the reported bound", result);
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

  const AllReduceRequest& request_;
  Device device_;
  const StackedTensors& source_;
  const std::function<void(const AllReduceResult&)>& report_;
};

Device choose_device(const AllReduceRequest& request) {
  if (request.device == Device::cpu) return Device::cpu;
  choose::GpuKind gpus;
  const bool own = World::launched() && request.device == Device::cuda;
  const std::string refusal = refusal_of_ranks(request.ranks, request.threads, own, gpus);
  if (refusal.empty()) return Device::cuda;
  IMBREX_EXPECTS(request.device != Device::cuda, "device cuda: {}", refusal);
  return Device::cpu;
}

}  // namespace

int run_all_reduce(const AllReduceRequest& request, const std::function<void(const AllReduceResult&)>& report) {
  IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
  IMBREX_EXPECTS(request.ranks >= 1 && request.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", request.ranks,
                 max_ranks);
  collectives::expect_type("all_reduce", request.type);
  std::unique_ptr<NpyFile> file;
  std::int64_t rows = request.rows, cols = request.cols;
  if (!request.a_path.empty()) {
    file = std::make_unique<NpyFile>(request.a_path);
    const NpyHeader& header = file->header();
    IMBREX_EXPECTS(header.dimensions == 2, "{} is one-dimensional; it must hold the ranks' matrices, stacked",
                   file->path());
    collectives::expect_type(file->path(), header.type);
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
  if (request.rms_norm)
    expect_rms_norm(request, rows, cols);
  else
    validate(request.options, rows * cols);
  const StackedTensors source(request, file.get(), rows, cols);
  const Job job(request, choose_device(request), source, report);
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  // Slots for two messages to and from every rank, twice; pages are taken on first touch.
  options.heap_bytes = (static_cast<std::size_t>(request.ranks) * 4 + 4) << 20;
  return run_ranks(request.ranks, request.threads, options, [&](World& world) { return job.run(world); });
}

}  // namespace imbrex::jobs
