#include "program/measure/cuda/all_reduce_sweep.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "program/measure/cuda/call_meter.hpp"
#include "program/measure/random_bytes.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::program {
namespace {

class Sweep {
 public:
  Sweep(World& world, const AllReduceMeasureRequest& request)
      : request_(request),
        collectives_(world, runtime::select_device(world)),
        stream_(cuda::make_stream()),
        in_(cuda::raw_memory(static_cast<std::size_t>(request.most))),
        out_(cuda::raw_memory(static_cast<std::size_t>(request.most))),
        meter_(world, collectives_, stream_.get(), [this](std::size_t) { collectives_.finish(stream_.get()); }) {
    const std::int64_t count = request.most / static_cast<std::int64_t>(size_of(request.type));
    const std::vector<std::byte> bytes =
        random_bytes(count, request.type, static_cast<std::uint64_t>(world.rank()) * 7919 + 1);
    cuda::upload(in_.get(), bytes.data(), bytes.size());
  }

  AllReduceMeasurement measure(std::int64_t bytes) {
    const std::int64_t count = bytes / static_cast<std::int64_t>(size_of(request_.type));
    std::vector<cuda::CallMeter::Call> calls;
    for (const cuda::ExactAlgorithm algorithm : {cuda::ExactAlgorithm::one_shot, cuda::ExactAlgorithm::two_shot})
      calls.push_back(able([this, algorithm, count] {
        collectives_.all_reduce(in_.get(), out_.get(), count, request_.type, stream_.get(), {.algorithm = algorithm});
      }));
    for (const CodecPair& codec : request_.codecs)
      calls.push_back(able([this, codec, count] {
        collectives_.all_reduce(in_.get(), out_.get(), count, request_.type, codec, stream_.get());
      }));
    std::vector<double> seconds = meter_.times(calls, cuda::CallMeter::runs_for(bytes, request_.runs), request_.rounds);
    std::replace(seconds.begin(), seconds.end(), 0.0, std::numeric_limits<double>::infinity());
    AllReduceMeasurement m;
    m.ranks = request_.ranks;
    m.type = request_.type;
    m.bytes = bytes;
    m.one_shot = seconds[0];
    m.two_shot = seconds[1];
    for (std::size_t i = 0; i < request_.codecs.size(); ++i)
      m.quantized.push_back({request_.codecs[i], seconds[2 + i]});
    return m;
  }

 private:
  // The call once it has run; empty where the size is refused, which it is on every rank alike.
  cuda::CallMeter::Call able(cuda::CallMeter::Call call) {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      return {};
    }
    collectives_.finish(stream_.get());
    return call;
  }

  const AllReduceMeasureRequest& request_;
  cuda::CudaCollectives collectives_;
  cuda::Stream stream_;
  cuda::RawMemory in_, out_;
  cuda::CallMeter meter_;
};

}  // namespace

void sweep_all_reduces(World& world, const AllReduceMeasureRequest& request,
                       const std::function<void(const AllReduceMeasurement&)>& report) {
  Sweep sweep(world, request);
  for (std::int64_t bytes = request.least; bytes <= request.most; bytes *= 2) report(sweep.measure(bytes));
}

}  // namespace imbrex::program
