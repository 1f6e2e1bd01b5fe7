// SMs that kernels leave to others: while a kernel waits for a peer that is held back, another kernel that needs so
// many SMs at once begins and ends; without them, it does not begin before the wait has ended.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/stream.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "gpu/operators/whole_sms.hpp"
#include "imbrex/collectives.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex {
namespace {

using runtime::DeviceMemory;
using std::chrono::milliseconds;
using test::options_of;
using test::Stream;

constexpr double wait_limit = 20;
constexpr milliseconds held(1500), beginning(200);
constexpr unsigned long long blocks_wait_ns = 10'000'000'000;  // longer than a peer is held, shorter than a wait

// The other kernel, on a stream of its own, before others where there is room.
class Other {
 public:
  explicit Other(unsigned sms) : sms_(sms), meeting_(sizeof(test::Meeting)) {
    IMBREX_CUDA_TRY(test::load_whole_sms(bytes_));
    int least = 0, greatest = 0;
    IMBREX_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    IMBREX_CUDA_TRY(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
    reset();
  }
  ~Other() { cudaStreamDestroy(stream_); }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  // The GPU is idle.
  void reset() { meeting_.fill(0); }
  void launch() {
    IMBREX_CUDA_TRY(
        test::launch_whole_sms(static_cast<test::Meeting*>(meeting_.get()), sms_, bytes_, blocks_wait_ns, stream_));
  }
  bool ends_within(milliseconds limit) const {
    const auto end = std::chrono::steady_clock::now() + limit;
    do {
      const cudaError_t status = cudaStreamQuery(stream_);
      if (status != cudaErrorNotReady) {
        IMBREX_CUDA_TRY(status);
        return true;
      }
      std::this_thread::sleep_for(milliseconds(1));
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }
  // Empty where all blocks ran at once. It has ended.
  std::string fault() const {
    test::Meeting seen{};
    meeting_.download(&seen);
    if (seen.arrived == sms_ && seen.left == 0) return {};
    return std::to_string(seen.arrived) + " of " + std::to_string(sms_) + " blocks began, and " +
           std::to_string(seen.left) + " left before they had met";
  }

 private:
  unsigned sms_;
  int bytes_ = 0;
  DeviceMemory meeting_;
  cudaStream_t stream_ = nullptr;
};

// A kernel that waits for the peers: a call of it, and what is wrong with its result once the GPU is idle.
struct Waiting {
  std::function<void(cudaStream_t)> call;
  std::function<void()> judge;
};
using Make = std::function<Waiting(World&)>;

// Every worker has tiles whose rows of A the peer sends.
Waiting make_product(World& world, bool any_m) {
  const GemmShape shape{.m = 4096, .n = 8192, .k = 64, .any_m = any_m};
  auto subject = std::make_shared<test::Subject>(world, Operator::all_gather_gemm, shape,
                                                 options_of(Strategy::fused, Transport::store, 0), false);
  return {[subject](cudaStream_t stream) { subject->call(stream); }, [subject] { subject->judge("beside another"); }};
}

// Large enough for as many blocks as there may be.
Waiting make_sum(World& world) {
  constexpr std::int64_t count = 1 << 23;
  struct Sum {
    explicit Sum(World& world) : op(world, count, Type::fp32, {}, Device::cuda) {}
    AllReduce op;
    DeviceMemory in{count * sizeof(float)}, out{count * sizeof(float)};
  };
  auto sum = std::make_shared<Sum>(world);
  const std::vector<float> own(count, static_cast<float>(world.rank() + 1));
  sum->in.upload(own.data());
  const auto total = static_cast<float>(world.size() * (world.size() + 1) / 2);
  return {[sum](cudaStream_t stream) {
            sum->op.run({{"in", View::vector(sum->in.get(), Type::fp32, count)},
                         {"out", View::vector(sum->out.get(), Type::fp32, count)}},
                        stream);
          },
          [sum, total] {
            std::vector<float> got(count);
            sum->out.download(got.data());
            if (got != std::vector<float>(count, total)) throw Error(ErrorCode::unsound, "a sum is wrong");
          }};
}

// Rank 0's kernel waits while the others' hosts are held back at a barrier.
void expect_beside(World& world, const Make& make, unsigned sms, bool gets_in) {
  Waiting waiting = make(world);
  const Stream stream(world);
  Other other(sms);
  // Everything is loaded before anything waits.
  waiting.call(stream);
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  waiting.judge();
  other.launch();
  EXPECT_TRUE(other.ends_within(milliseconds(5000)) && other.fault().empty()) << "alone";
  other.reset();
  world.barrier();

  if (world.rank() != 0) {
    world.barrier();
    waiting.call(stream);
  } else {
    waiting.call(stream);
    std::this_thread::sleep_for(beginning);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << "nothing kept the kernel waiting";
    other.launch();
    EXPECT_EQ(other.ends_within(held), gets_in) << "while the kernel waits";
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << "the kernel waits no longer";
    world.barrier();
    EXPECT_TRUE(other.ends_within(milliseconds(12'000))) << "after the wait";
    EXPECT_EQ(other.fault(), "");
  }
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  waiting.judge();
  world.barrier();
}

void expect_beside(int ranks, int sms_for_others, const Make& make, unsigned sms, bool gets_in) {
  SCOPED_TRACE(std::to_string(sms_for_others) + " SMs for others, of which " + std::to_string(sms) + " are wanted");
  const WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = wait_limit, .sms_for_others = sms_for_others};
  EXPECT_EQ(test::on_world(ranks, options,
                           [&](World& world) {
                             expect_beside(world, make, sms, gets_in);
                             return 0;
                           }),
            0);
}

void expect_room(const Make& make) {
  for (const unsigned sms : {16u, 32u}) expect_beside(2, static_cast<int>(sms), make, sms, true);
  // What shows that the other kernel is kept out where nothing is left to it, and where too little is.
  expect_beside(2, 0, make, 16, false);
  expect_beside(2, 16, make, 48, false);
}

TEST(GpuBesideOthers, AProductOfOneM) {
  NEEDS_OWN_GPUS(2);
  expect_room([](World& world) { return make_product(world, false); });
}

TEST(GpuBesideOthers, AProductOfAnyM) {
  NEEDS_OWN_GPUS(2);
  expect_room([](World& world) { return make_product(world, true); });
}

TEST(GpuBesideOthers, AnAllReduce) {
  NEEDS_OWN_GPUS(2);
  expect_room(make_sum);
}

// A kernel that is queued behind the one that waits takes no SM before that one has ended.
TEST(GpuBesideOthers, TheNextKernelDoesNotBeginEarly) {
  NEEDS_OWN_GPUS(2);
  expect_beside(
      2, 16,
      [](World& world) {
        Waiting first = make_sum(world);
        const Waiting second = make_product(world, true);
        return Waiting{[first, second](cudaStream_t stream) {
                         first.call(stream);
                         second.call(stream);
                       },
                       [first, second] {
                         first.judge();
                         second.judge();
                       }};
      },
      16, true);
}

TEST(GpuBesideOthers, AGpuHasMoreSms) {
  NEEDS_OWN_GPUS(2);
  const WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = wait_limit, .sms_for_others = 1 << 20};
  EXPECT_EQ(test::on_world(2, options,
                           [](World& world) {
                             const std::string message =
                                 test::error_of([&] { AllReduce(world, 64, Type::fp32, {}, Device::cuda); });
                             EXPECT_NE(message.find("sms_for_others = 1048576: rank 0's GPU"), std::string::npos)
                                 << message;
                             return 0;
                           }),
            0);
}

}  // namespace
}  // namespace imbrex
