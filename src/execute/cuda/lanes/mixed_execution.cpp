#include "execute/cuda/lanes/mixed_execution.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "execute/layout.hpp"
#include "runtime/cuda/await_stream.hpp"
#include "runtime/cuda/gpu_clock.hpp"
#include "runtime/failure.hpp"

namespace imbrex::cuda {
namespace {

// Seconds that the first run of an execution may take, in which the libraries load their kernels.
constexpr double first_limit = 60;
// Epochs that may be queued: behind more, a launch could wait, without a limit, for a collective that no rank ends.
constexpr std::size_t most_queued = 16;
// What ended collectives, and what waits for them, may take to leave the GPU.
constexpr auto patience = std::chrono::seconds(5);

cudaEvent_t new_event() {
  cudaEvent_t made = nullptr;
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  return made;
}

}  // namespace

MixedExecution::MixedExecution(const CudaOptions& options, std::shared_ptr<SharedLibraries>&& libraries,
                               LanePlan&& lanes, std::unique_ptr<CudaExecution>&& kernel)
    : StreamExecution(libraries->calls(), options.timeline),
      libraries_(std::move(libraries)),
      world_(libraries_->world()),
      options_(options),
      lanes_(std::move(lanes)),
      kernel_(std::move(kernel)) {}

MixedExecution::MixedExecution(std::shared_ptr<SharedLibraries> libraries, LanePlan lanes,
                               std::unique_ptr<CudaExecution> kernel, const CudaOptions& options)
    : MixedExecution(options, std::move(libraries), std::move(lanes), std::move(kernel)) {
  std::vector<std::byte*> workspaces;
  for (int b = 0; b < std::ssize(lanes_.libraries.buffers); ++b)
    workspaces.push_back(kernel_->layout_.in_heap(b) ? kernel_->heap_at(kernel_->layout_.offset(b, 0)) : nullptr);
  // Behind the kernel, every SM is free.
  steps_ = std::make_unique<LibrarySteps>(*libraries_, lanes_.libraries, lanes_.program, std::move(workspaces),
                                          lanes_.behind ? 0 : lanes_.kept_free);
  make_streams();
  make_joints();
  run_first();
  if (options_.timeline)
    times_ = std::make_unique<StepTimes>(lanes_.program.steps.size(), runtime::gpu_clock_to_host());
}

MixedExecution::~MixedExecution() {
  {
    const std::lock_guard guard(calls().lock());
    look();  // where a rank is lost, collectives under way have to be ended before anything waits for them
    try {
      if (!dead_ && joined_.size() == streams_.size()) finish();
    } catch (const std::exception&) {  // what is under way has been ended
    }
    try {
      calls().drain();  // freeing waits for the device, and that perhaps for a launch of another rank in this process
    } catch (const std::exception&) {
    }
  }
  retire();
  if (stuck_) {
    // Freeing waits for the device.
    if (steps_) steps_->leak();
    static_cast<void>(joint_tables_.release());
    static_cast<void>(record_.release());
    return;
  }
  cudaSetDevice(libraries_->device());
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  for (const auto* events : {&ended_, &joined_, &done_})
    for (cudaEvent_t event : *events)
      if (event != nullptr) cudaEventDestroy(event);
  if (forked_ != nullptr) cudaEventDestroy(forked_);
}

void MixedExecution::make_streams() {
  int least = 0, greatest = 0;
  IMBREX_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (std::size_t s = 0; s < lanes_.lanes(); ++s) {
    cudaStream_t stream = nullptr;
    IMBREX_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    streams_.push_back(stream);
  }
  for (std::size_t s = 0; s < lanes_.lanes(); ++s) joined_.push_back(new_event());
  for (const LibraryStep& step : lanes_.program.steps) ended_.push_back(step.awaited ? new_event() : nullptr);
  for (std::size_t i = 0; i < most_queued; ++i) done_.push_back(new_event());
  forked_ = new_event();
}

void MixedExecution::make_joints() {
  void* record = nullptr;
  IMBREX_CUDA_TRY(cudaHostAlloc(&record, sizeof(LaneRecord), cudaHostAllocMapped | cudaHostAllocPortable));
  record_.reset(new (record) LaneRecord{});
  void* on_device = nullptr;
  IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&on_device, record, 0));

  const auto& steps = lanes_.program.steps;
  const execute::HeapLayout& layout = kernel_->layout_;
  std::vector<std::size_t> last(lanes_.lanes());
  std::vector<bool> tells(lanes_.lanes());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    last[steps[i].stream] = i;
    if (std::holds_alternative<Collective>(steps[i].work)) tells[steps[i].stream] = true;
  }
  std::vector<WaitEntry> waits;
  std::vector<PostEntry> posts;
  for (const Joint& joint : lanes_.joints) {
    const std::size_t step = joint.step < steps.size() ? joint.step : last[joint.stream];
    JointArgs args{};
    args.protocol = kernel_->args_.protocol;
    args.record = static_cast<LaneRecord*>(on_device);
    args.tells = tells[joint.stream] ? 1 : 0;
    args.wait_count = base::narrow<std::uint32_t>(joint.gates.size(), "waits of one task");
    args.post_count = base::narrow<std::uint32_t>(joint.posts.size(), "posts of one task");
    args.arrivals = joint.first ? kernel_->blocks() : 0;
    args.queue = base::narrow<std::uint16_t>(steps[step].queue, "queue");
    args.task = base::narrow<std::uint32_t>(steps[step].task, "tasks in a queue");
    args.step_and_one =
        joint.early || joint.step == steps.size() ? 0 : base::narrow<std::uint32_t>(joint.step + 1, "library tasks");
    for (const Gate& gate : joint.gates)
      waits.push_back({base::narrow<std::uint32_t>(gate.signal, "signals"), layout.posts(world_.rank(), gate.signal),
                       gate.count, 0});
    for (const int signal : joint.posts)
      posts.push_back({reinterpret_cast<std::uint64_t>(kernel_->heap_at(layout.counter(signal, 0)))});
    joints_.push_back(args);
  }
  const std::size_t wait_bytes = waits.size() * sizeof(WaitEntry), post_bytes = posts.size() * sizeof(PostEntry);
  joint_tables_ = raw_memory(wait_bytes + post_bytes);
  auto* at = static_cast<std::byte*>(joint_tables_.get());
  if (wait_bytes > 0) IMBREX_CUDA_TRY(cudaMemcpy(at, waits.data(), wait_bytes, cudaMemcpyHostToDevice));
  if (post_bytes > 0) IMBREX_CUDA_TRY(cudaMemcpy(at + wait_bytes, posts.data(), post_bytes, cudaMemcpyHostToDevice));
  const auto* next_wait = reinterpret_cast<const WaitEntry*>(at);
  const auto* next_post = reinterpret_cast<const PostEntry*>(at + wait_bytes);
  for (JointArgs& args : joints_) {
    args.waits = std::exchange(next_wait, next_wait + args.wait_count);
    args.posts = std::exchange(next_post, next_post + args.post_count);
  }
  IMBREX_CUDA_TRY(load_joint());
}

// Loads every kernel, and lets NCCL connect, before an epoch counts. Collectives last, and once all ranks are there: a
// kernel that is loaded behind one can keep from a peer, in the same process, what that one waits for.
void MixedExecution::run_first() {
  std::size_t bytes = 0;
  for (const Buffer& b : lanes_.libraries.buffers)
    if (b.role != BufferRole::workspace)
      bytes = std::max(bytes, static_cast<std::size_t>(b.rows * b.cols) * size_of(b.type));
  // From the one to the other, which must not overlap.
  RawMemory from = raw_memory(bytes), to = raw_memory(bytes);
  const auto* scales = static_cast<const float*>(from.get());
  Addresses operands{from.get(), from.get(), to.get(), from.get(), scales, scales};
  operands.more.fill({from.get(), from.get(), to.get()});
  operands.gathered = to.get();
  const auto run = [&](bool collectives) {
    for (std::size_t i = 0; i < lanes_.program.steps.size(); ++i) {
      if (std::holds_alternative<Collective>(lanes_.program.steps[i].work) != collectives) continue;
      steps_->launch(i, operands, stream());
      await_within([&] { return cudaStreamQuery(stream()); }, first_limit);
    }
    world_.barrier();
  };
  try {
    IMBREX_CUDA_TRY(cudaMemsetAsync(from.get(), 0, bytes, stream()));
    run(false);
    run(true);
  } catch (const Error&) {
    if (stuck_) static_cast<void>(from.release()), static_cast<void>(to.release());
    throw;
  }
}

void MixedExecution::launch_lanes(const Addresses& operands) {
  const auto& steps = lanes_.program.steps;
  std::size_t joint = 0;
  const auto launch_joints = [&](std::size_t step, bool early) {
    for (; joint < joints_.size() && lanes_.joints[joint].step == step && lanes_.joints[joint].early == early; ++joint)
      IMBREX_CUDA_TRY(launch_joint(joints_[joint], streams_[lanes_.joints[joint].stream]));
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const cudaStream_t stream = streams_[steps[i].stream];
    launch_joints(i, true);
    for (const std::size_t before : steps[i].waits) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, ended_[before], 0));
    launch_joints(i, false);
    if (times_) times_->begin(i, stream);
    steps_->launch(i, operands, stream);
    if (times_) times_->end(i, stream);
    if (steps[i].awaited) IMBREX_CUDA_TRY(cudaEventRecord(ended_[i], stream));
  }
  launch_joints(steps.size(), false);
}

void MixedExecution::expect_captures() const {
  const std::string& why = libraries_->why_no_captured_all_to_all();
  if (why.empty()) return;
  for (std::size_t i = 0; i < lanes_.program.steps.size(); ++i) {
    const auto* work = std::get_if<Collective>(&lanes_.program.steps[i].work);
    IMBREX_EXPECTS(work == nullptr || work->backend != Backend::nccl || work->kind != CollectiveKind::all_to_all,
                   "{} is not captured: {}", name_of_step(i), why);
  }
}

// The kernel goes first: where the driver has one queue for all streams, what waits for it must stand behind it. What
// it waits for is launched behind it, and finds room beside it.
void MixedExecution::launch(const Addresses& operands, cudaStream_t main, Call call) {
  expect_sound();
  kernel_->set_operands(operands);  // refuses before anything is launched
  for (const void* p : {static_cast<const void*>(operands.a), static_cast<const void*>(operands.out),
                        static_cast<const void*>(operands.bias), static_cast<const void*>(operands.a_scale)})
    IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(p) % operand_alignment == 0,
                   "operand at {}: it must be aligned to {} bytes", p, operand_alignment);
  const bool captured = call != Call::direct;
  if (captured) expect_captures();
  if (!captured && queued_ - finished_ == done_.size()) finish_oldest();
  try {
    if (times_) times_->begin_epoch(main);
    if (!lanes_.behind) IMBREX_CUDA_TRY(cudaEventRecord(forked_, main));
    kernel_->launch(operands, main, call);
    if (lanes_.behind) IMBREX_CUDA_TRY(cudaEventRecord(forked_, main));
    for (cudaStream_t stream : streams_) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, forked_, 0));
    launch_lanes(operands);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      IMBREX_CUDA_TRY(cudaEventRecord(joined_[s], streams_[s]));
      IMBREX_CUDA_TRY(cudaStreamWaitEvent(main, joined_[s], 0));
    }
    if (captured) return;
    IMBREX_CUDA_TRY(cudaEventRecord(done_[queued_ % done_.size()], main));
    ++queued_;
  } catch (const Error& error) {
    give_up(error.what());
  }
}

// `look` sees to limits: the kernel's waits and the joints' have their own, collectives tell when they begin.
void MixedExecution::finish_oldest() {
  const cudaEvent_t oldest = done_[finished_ % done_.size()];
  await_within([&] { return cudaEventQuery(oldest); }, 0);
  ++finished_;
}

void MixedExecution::await(cudaStream_t stream) {
  expect_sound();
  IMBREX_CUDA_TRY(cudaSetDevice(libraries_->device()));
  while (finished_ < queued_) finish_oldest();
  await_within([&] { return cudaStreamQuery(stream); }, 0);
  look();
  expect_sound();
}

void MixedExecution::expect_sound() {
  world_.throw_if_failed();
  IMBREX_EXPECTS(!dead_, "this execution failed before");
  kernel_->expect_sound();
}

CodecReport MixedExecution::codec_report() {
  const std::lock_guard guard(calls().lock());
  expect_sound();
  IMBREX_CUDA_TRY(cudaSetDevice(libraries_->device()));
  return steps_->codec_report();
}

std::vector<Span> MixedExecution::spans() {
  std::vector<Span> spans = kernel_->spans();
  const std::vector<StepTimes::Stretch> times = times_->read();
  constexpr Span::Kind kinds[] = {Span::Kind::compute, Span::Kind::copy, Span::Kind::reduction, Span::Kind::collective};
  for (std::size_t i = 0; i < times.size(); ++i) {
    const LibraryStep& step = lanes_.program.steps[i];
    const auto& queues = lanes_.libraries.ranks[static_cast<std::size_t>(world_.rank())].queues;
    spans.push_back({world_.rank(), fmt::format("stream {}", step.stream),
                     label(queues[static_cast<std::size_t>(step.queue)].tasks[step.task]), kinds[step.work.index()],
                     times[i].begin, times[i].end});
  }
  return spans;
}

std::string MixedExecution::name_of_step(std::size_t step) const {
  const LibraryStep& s = lanes_.program.steps[step];
  return task_name(lanes_.libraries, world_.rank(), s.queue, s.task);
}

void MixedExecution::look() noexcept {
  if (dead_) return;
  try {
    world_.throw_if_failed();
    libraries_->check();
    kernel_->look();
    world_.throw_if_failed();
    if (record_ == nullptr) return;
    const std::uint64_t word = record_->under_way;
    const auto step = static_cast<std::size_t>(word & 0xffffff);
    const auto now = Clock::now();
    if (std::exchange(seen_, word) != word) since_ = now;
    const double limit = world_.options().wait_limit;
    if (step != 0 && std::chrono::duration<double>(now - since_).count() > limit)
      end(fmt::format("{} waited longer than {} s for the other ranks in epoch {}", name_of_step(step - 1), limit,
                      word >> 24));
  } catch (const std::exception& error) {
    end(error.what());
  }
}

// With a limit of 0 `look` alone ends it.
template <typename Query>
void MixedExecution::await_within(Query&& query, double limit) {
  const auto begin = Clock::now();
  const cudaError_t status = runtime::await_query(std::forward<Query>(query), [&] {
    look();
    calls().look();
    if (dead_) give_up("this execution failed");
    if (limit > 0 && std::chrono::duration<double>(Clock::now() - begin).count() > limit)
      give_up(fmt::format("rank {} waited longer than {} s for the other ranks before the first epoch", world_.rank(),
                          limit));
  });
  if (status != cudaSuccess)
    give_up(fmt::format("rank {}: the GPU reports: {}", world_.rank(), cudaGetErrorString(status)));
}

bool MixedExecution::busy() const {
  const auto unfinished = [](cudaError_t status) { return status == cudaErrorNotReady; };
  bool found = unfinished(cudaStreamQuery(stream()));
  for (cudaStream_t s : streams_) found = found || unfinished(cudaStreamQuery(s));
  for (std::uint64_t i = finished_; i < queued_; ++i)
    found = found || unfinished(cudaEventQuery(done_[i % done_.size()]));
  cudaGetLastError();
  return found;
}

// Ends what is under way and lets every rank fail. Joints that gave up hold back what stands behind them until the
// collectives have been ended.
void MixedExecution::end(const std::string& message) noexcept {
  if (dead_) return;
  dead_ = true;
  world_.fail(message);
  kernel_->look();  // ends the kernel's waits
  libraries_->abort();
  if (record_ != nullptr) record_->ended = 1;
  stuck_ = true;
  for (const auto begin = Clock::now(); stuck_ && Clock::now() - begin < patience;) {
    stuck_ = busy();
    if (stuck_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Throws the world's first failure, which may be the loss of the rank that this one waited for.
void MixedExecution::give_up(const std::string& message) {
  end(message);
  runtime::fail(world_, message);
}

}  // namespace imbrex::cuda
