// Tuning all-reduces: jobs that measure them, and the table that comes of it.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "program/measure/crossing.hpp"
#include "program/measure/cuda/all_reduce_sweep.hpp"
#include "program/measure/measure.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"
#include "records/all_reduce_records.hpp"
#include "records/records.hpp"

namespace imbrex::program {
namespace {

constexpr std::int64_t kib = 1024;

void expect_alike(const std::vector<AllReduceMeasurement>& list) {
  IMBREX_EXPECTS(list.size() >= 2, "{} sizes of all-reduces: a record needs two at least", list.size());
  const AllReduceMeasurement& first = list.front();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const AllReduceMeasurement& m = list[i];
    IMBREX_EXPECTS(m.bytes > 0 && m.bytes % kib == 0 && (i == 0 || m.bytes > list[i - 1].bytes),
                   "all-reduces of {} bytes: sizes must be whole KiB, and increase", m.bytes);
    IMBREX_EXPECTS(m.gpu == first.gpu && m.ranks == first.ranks && m.type == first.type,
                   "all-reduces of {} on {} x {} among those of {} on {} x {}: a record has one kind", name_of(m.type),
                   m.ranks, m.gpu, name_of(first.type), first.ranks, first.gpu);
    IMBREX_EXPECTS(std::equal(m.quantized.begin(), m.quantized.end(), first.quantized.begin(), first.quantized.end(),
                              [](const auto& x, const auto& y) { return x.codec == y.codec; }),
                   "all-reduces of {} bytes: not the codecs of those of {} bytes", m.bytes, first.bytes);
  }
}

}  // namespace

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
  choose::GpuKind gpus;
  const std::string refusal = refusal_of_ranks(request.ranks, request.threads, World::launched(), gpus);
  IMBREX_EXPECTS(refusal.empty(), "measuring needs GPUs: {}", refusal);
  if (!request.gpu.empty()) records::expect_gpu(request.gpu, gpus.name);
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.heap_bytes = 1 << 20;
  return run_ranks(request.ranks, request.threads, options, [&](World& world) {
    sweep_all_reduces(world, request, [&](AllReduceMeasurement m) {
      m.gpu = gpus.name;
      if (world.rank() == 0) report(m);
    });
    return 0;
  });
}

records::AllReduceRecord record_of(const std::vector<AllReduceMeasurement>& measurements, const std::string& date) {
  expect_alike(measurements);
  const AllReduceMeasurement& first = measurements.front();
  records::AllReduceRecord record{first.ranks, first.type, date, {}, {}};
  const auto crossing_of = [&](auto&& current, auto&& candidate) {
    std::vector<SizeComparison> comparisons;
    for (const AllReduceMeasurement& m : measurements) comparisons.push_back({m.bytes, current(m), candidate(m)});
    return crossing(comparisons);
  };
  record.one_shot_below =
      crossing_of([](const auto& m) { return m.one_shot; }, [](const auto& m) { return m.two_shot; });
  for (std::size_t i = 0; i < first.quantized.size(); ++i)
    record.codecs.push_back(
        {first.quantized[i].codec, crossing_of([](const auto& m) { return std::min(m.one_shot, m.two_shot); },
                                               [i](const auto& m) { return m.quantized[i].seconds; })});
  return record;
}

std::string tuning_table(const std::vector<AllReduceMeasurement>& measurements, const std::string& date,
                         std::string_view before) {
  const records::AllReduceRecord record = record_of(measurements, date);
  const std::string& gpu = measurements.front().gpu;
  records::Records records =
      before.empty() ? records::Records{gpu, date, {}, {}} : records::parse_records(before, "the table so far");
  records::expect_gpu(records.gpu, gpu);
  records::put_record(records.all_reduces, record);
  return records::to_json(records);
}

}  // namespace imbrex::program
