#include "program/all_reduce/run_all_reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "base/hash.hpp"
#include "collectives/all_reduce.hpp"
#include "program/all_reduce/all_reduce_job.hpp"
#include "program/memory_need.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"

namespace imbrex::program {
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
    AllReduce op(world, source_.count(), request_.type, request_.options, device_);
    DeviceTensor in(device_, source_.elements(world.rank())), out(device_, source_.elements(world.rank()));
    Verdict verdict;
    for (int i = 0; i < request_.repeat; ++i) {
      out.poison();
      result.seconds.push_back(seconds_of(world, device_, [&] {
        op.run({{"in", View::vector(in.get(), request_.type, source_.count())},
                {"out", View::vector(out.get(), request_.type, source_.count())}});
      }));
      verdict.note(i, base::hash_of(out.read()));
    }
    result.report = op.report();
    const std::vector<float> values = base::floats_of(request_.type, out.read());
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

// What has to be known before ranks start, and is the same for all of them.
struct Setup {
  std::unique_ptr<NpyFile> file;  // of the ranks' tensors, or none
  std::int64_t rows = 0, cols = 0;
  Device device = Device::cpu;
};

// Throws Error for what is wrong with the request.
Setup set_up(const AllReduceRequest& request) {
  IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
  IMBREX_EXPECTS(request.ranks >= 1 && request.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", request.ranks,
                 max_ranks);
  collectives::expect_type("all_reduce", request.type);
  Setup setup{nullptr, request.rows, request.cols};
  auto& [file, rows, cols, device] = setup;
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
  device = choose_device(request);
  // Tensor and result; verified, the result as floats, the reference and its bound.
  const auto elements = static_cast<double>(rows) * static_cast<double>(cols),
             each = 2 * static_cast<double>(size_of(request.type)) +
                    (request.verify ? sizeof(float) + 2 * sizeof(double) : 0);
  if (device == Device::cpu)
    expect_memory(fmt::format("all_reduce {} x {} {} over {} ranks{}", rows, cols, name_of(request.type), request.ranks,
                              request.verify ? ", verified," : ""),
                  elements * each * request.ranks);
  return setup;
}

// The names of files are left out: one file may have several.
runtime::Terms terms_of(const AllReduceRequest& request, const Setup& setup) {
  runtime::Terms terms("a run of all_reduce");
  terms.add("m", setup.rows).add("n", setup.cols).add("ranks", request.ranks).add("type", name_of(request.type));
  terms.add("device", name_of(setup.device));
  collectives::add(terms, request.options);
  terms.add("rms_norm", request.rms_norm.has_value());
  const auto add_source = [&](const char* name, const std::string& path) {
    terms.add(name, path.empty() ? fmt::format("random by seed {}", request.seed) : "from a file");
  };
  if (request.rms_norm) {
    terms.add("eps", request.rms_norm->eps);
    add_source("residual", request.rms_norm->residual_path);
    add_source("weight", request.rms_norm->weight_path);
    terms.add("weight_type", name_of(request.rms_norm->weight_type.value_or(request.type)));
  }
  add_source("tensors", request.a_path);
  return terms.add("verify", request.verify).add("repeat", request.repeat);
}

}  // namespace

int run_all_reduce(const AllReduceRequest& request, const std::function<void(const AllReduceResult&)>& report) {
  Setup setup;
  agree_on_job(request.ranks, request.wait_limit, [&] {
    setup = set_up(request);
    return terms_of(request, setup);
  });
  const StackedTensors source(request, setup.file.get(), setup.rows, setup.cols);
  const Job job(request, setup.device, source, report);
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  // Slots for two messages to and from every rank, twice; pages are taken on first touch.
  options.heap_bytes = (static_cast<std::size_t>(request.ranks) * 4 + 4) << 20;
  return run_ranks(request.ranks, request.threads, options, [&](World& world) { return job.run(world); });
}

}  // namespace imbrex::program
