#include "program/all_reduce/all_reduce_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/convert.hpp"
#include "program/operands.hpp"

namespace imbrex::program {

std::vector<std::byte> StackedTensors::elements(int rank) const {
  std::vector<float> values(static_cast<std::size_t>(count()));
  if (file_ != nullptr)
    file_->read(rank * rows_, 0, rows_, cols_, values);
  else
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < cols_; ++j)
        values[static_cast<std::size_t>(i * cols_ + j)] = seeded_value(request_.seed, 0, rank * rows_ + i, j);
  return base::elements_of(request_.type, values);
}

std::vector<float> StackedTensors::values(int rank) const { return base::floats_of(request_.type, elements(rank)); }

DeviceTensor::DeviceTensor(Device device, std::vector<std::byte> elements) : host_(std::move(elements)) {
  if (device != Device::cuda) return;
  memory_ = std::make_unique<runtime::DeviceMemory>(host_.size());
  memory_->upload(host_);
}

void DeviceTensor::poison() {
  constexpr unsigned char nan = 0xff;  // in every type
  if (memory_)
    memory_->fill(nan);
  else
    std::fill(host_.begin(), host_.end(), std::byte{nan});
}

const std::vector<std::byte>& DeviceTensor::read() {
  if (memory_) memory_->download(host_);
  return host_;
}

void Verdict::note(int repeat, std::uint64_t hash_of_outputs) {
  if (repeat == 0)
    hash = hash_of_outputs;
  else if (differs < 0 && hash != hash_of_outputs)
    differs = repeat;
}

bool judge(World& world, const AllReduceRequest& request, const Verdict& own, const char* value, const char* bound,
           AllReduceResult& result) {
  if (!request.verify) return true;
  std::vector<Verdict> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Verdict& v = all[rank];
    result.max_error_over_bound = std::max(result.max_error_over_bound, v.worst.worst);
    if (!result.message.empty()) continue;
    if (v.worst.worst > 1)
      result.message = fmt::format("rank {}: element ({}, {}) is {}, {} {}: {:.3g} times {}", rank, v.worst.row,
                                   v.worst.col, v.worst.result, value, v.worst.value, v.worst.worst, bound);
    else if (v.differs >= 0)
      result.message = fmt::format("rank {}: the bits of repeat {} differ from those of the first", rank, v.differs);
    else if (v.hash != all[0].hash)
      result.message = fmt::format("the bits of rank {} differ from those of rank 0", rank);
  }
  result.verified = result.message.empty();
  return result.verified;
}

double seconds_of(World& world, Device device, const std::function<void()>& call) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  call();
  if (device == Device::cuda) runtime::DeviceMemory::synchronize();
  const double own = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace imbrex::program
