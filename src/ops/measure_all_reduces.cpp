// Tuning all-reduces: jobs that measure them, and the table that comes of it.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "imbrex/measure.hpp"
#include "ops/cuda/all_reduce_sweep.hpp"
#include "ops/run_device.hpp"
#include "ops/run_ranks.hpp"
#include "tune/all_reduce_records.hpp"
#include "tune/records.hpp"

namespace imbrex {

int measure_all_reduces(const AllReduceMeasureRequest& request,
                        const std::function<void(const AllReduceMeasurement&)>& report) {
  IMBREX_EXPECTS(request.ranks >= 2 && request.ranks <= max_ranks, "ranks = {}: it must be from 2 to {}", request.ranks,
                 max_ranks);
  IMBREX_EXPECTS(request.rounds >= 1 && request.runs >= 1, "{} rounds of {} runs: there must be one at least",
                 request.rounds, request.runs);
  IMBREX_EXPECTS(request.least >= 1024 && request.least % 1024 == 0 && request.most >= 2 * request.least &&
                     request.most <= std::int64_t{1} << 32,
                 "vectors from {} to {} bytes: whole KiB, two sizes at least, and at most 4 GiB", request.least,
                 request.most);
  for (std::size_t i = 0; i < request.codecs.size(); ++i) {
    validate(request.codecs[i].reduce_scatter);
    validate(request.codecs[i].all_gather);
    IMBREX_EXPECTS(std::find(request.codecs.begin(), request.codecs.begin() + static_cast<std::ptrdiff_t>(i),
                             request.codecs[i]) == request.codecs.begin() + static_cast<std::ptrdiff_t>(i),
                   "codec {} comes twice", name_of(request.codecs[i]));
  }
  ops::GpuKind gpus;
  const std::string refusal = ops::refusal_of_ranks(request.ranks, request.threads, World::launched(), gpus);
  IMBREX_EXPECTS(refusal.empty(), "measuring needs GPUs: {}", refusal);
  if (!request.gpu.empty()) tune::expect_gpu(request.gpu, gpus.name);
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.heap_bytes = 1 << 20;
  return ops::run_ranks(request.ranks, request.threads, options, [&](World& world) {
    ops::sweep_all_reduces(world, request, [&](AllReduceMeasurement m) {
      m.gpu = gpus.name;
      if (world.rank() == 0) report(m);
    });
    return 0;
  });
}

std::string tuning_table(const std::vector<AllReduceMeasurement>& measurements, const std::string& date,
                         std::string_view before) {
  const AllReduceRecord record = record_of(measurements, date);
  const std::string& gpu = measurements.front().gpu;
  tune::Records records =
      before.empty() ? tune::Records{gpu, date, {}, {}} : tune::parse_records(before, "the table so far");
  tune::expect_gpu(records.gpu, gpu);
  tune::put_record(records.all_reduces, record);
  return to_json(records);
}

}  // namespace imbrex
