#include "execute/cuda/lanes/lane_execution.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "execute/circumstances.hpp"
#include "execute/cuda/fused/cuda_pool.hpp"
#include "execute/layout.hpp"
#include "runtime/cuda/await_stream.hpp"
#include "runtime/cuda/gpu_clock.hpp"
#include "runtime/failure.hpp"

namespace imbrex::cuda {
namespace {

// Seconds that the first run of an execution may take, in which the libraries load their kernels.
constexpr double first_limit = 60;
// What ended collectives, and what waits for them, may take to leave the GPU.
constexpr auto patience = std::chrono::seconds(5);

}  // namespace

LaneExecution::LaneExecution(const CudaOptions& options, std::shared_ptr<SharedLibraries>&& libraries, LanePlan&& lanes,
                             std::unique_ptr<CudaExecution>&& kernel)
    : StreamExecution(libraries->calls(), options.timeline),
      libraries_(std::move(libraries)),
      world_(libraries_->world()),
      options_(options),
      lanes_(std::move(lanes)),
      kernel_(std::move(kernel)) {}

LaneExecution::LaneExecution(std::shared_ptr<SharedLibraries> libraries, LanePlan lanes,
                             std::unique_ptr<CudaExecution> kernel, const CudaOptions& options)
    : LaneExecution(options, std::move(libraries), std::move(lanes), std::move(kernel)) {
  IMBREX_EXPECTS(kernel_ != nullptr || library_name.find(options.kernel) != std::string_view::npos,
                 "no kernel named like '{}' runs plans with library collectives", options.kernel);
  make_steps();
  make_streams(std::make_shared<LaneStreams>(kernel_ == nullptr));
  kernel_ != nullptr ? make_joints() : make_marks(std::make_shared<MarkRoom>());
  queue_ = std::make_shared<EpochQueue<LaneExecution>>(kernel_ != nullptr ? lanes_.launches.size()
                                                                          : lanes_.program.steps.size());
  run_first();
  if (options_.timeline)
    times_ = std::make_unique<StepTimes>(lanes_.program.steps.size(), runtime::gpu_clock_to_host());
}

LaneExecution::LaneExecution(std::shared_ptr<SharedLibraries> libraries, LanePlan lanes, const CudaOptions& options,
                             const Turn& turn)
    : LaneExecution(options, std::move(libraries), std::move(lanes), nullptr) {
  steps_ = std::make_unique<LibrarySteps>(*libraries_, plan(), lanes_.program, *turn.room);
  make_streams(turn.streams);
  make_marks(turn.marks);
  queue_ = turn.queue;
  if (options_.timeline)
    times_ = std::make_unique<StepTimes>(lanes_.program.steps.size(), runtime::gpu_clock_to_host());
}

LaneExecution::~LaneExecution() {
  {
    const std::lock_guard guard(calls().lock());
    look();  // where a rank is lost, collectives under way have to be ended before anything waits for them
    try {
      if (!dead_ && queue_ != nullptr) finish();
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
    if (replays_) replays_->leak();
    if (streams_) streams_->leak();
    return;
  }
  cudaSetDevice(libraries_->device());
  for (const auto* events : {&ended_, &joined_})
    for (cudaEvent_t event : *events)
      if (event != nullptr) cudaEventDestroy(event);
  if (forked_ != nullptr) cudaEventDestroy(forked_);
}

void LaneExecution::make_steps() {
  std::vector<std::byte*> workspaces;
  for (int b = 0; kernel_ != nullptr && b < std::ssize(plan().buffers); ++b)
    workspaces.push_back(kernel_->layout_.in_heap(b) ? kernel_->heap_at(kernel_->layout_.offset(b, 0)) : nullptr);
  // Behind a kernel, as without one, every SM is free.
  steps_ = std::make_unique<LibrarySteps>(*libraries_, plan(), lanes_.program, std::move(workspaces),
                                          lanes_.behind ? 0 : lanes_.kept_free);
}

void LaneExecution::make_streams(std::shared_ptr<LaneStreams> streams) {
  streams_ = std::move(streams);
  const LaneStreams::Lanes& lanes = streams_->direct(lanes_.lanes());
  if (kernel_ == nullptr) own_stream_ = lanes.front();
  for (std::size_t s = 0; s < lanes_.lanes(); ++s) joined_.push_back(new_event());
  for (const LibraryStep& step : lanes_.program.steps) ended_.push_back(step.awaited ? new_event() : nullptr);
  forked_ = new_event();
}

void LaneExecution::make_marks(std::shared_ptr<MarkRoom> room) {
  const auto& steps = lanes_.program.steps;
  const auto waits = [](const LibraryStep& step) { return std::holds_alternative<Collective>(step.work); };
  if (std::any_of(steps.begin(), steps.end(), waits)) replays_ = std::make_unique<ReplayMarks>(std::move(room));
}

void LaneExecution::make_joints() {
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
  if (wait_bytes > 0) cuda::upload(at, waits.data(), wait_bytes);
  if (post_bytes > 0) cuda::upload(at + wait_bytes, posts.data(), post_bytes);
  const auto* next_wait = reinterpret_cast<const WaitEntry*>(at);
  const auto* next_post = reinterpret_cast<const PostEntry*>(at + wait_bytes);
  for (JointArgs& args : joints_) {
    args.waits = std::exchange(next_wait, next_wait + args.wait_count);
    args.posts = std::exchange(next_post, next_post + args.post_count);
  }
  IMBREX_CUDA_TRY(load_joint());
}

// Loads every kernel, and lets NCCL connect, before an epoch counts. Collectives last, and once all ranks are there: a
// kernel that is loaded after one can keep from a peer, in the same process, what that one waits for.
void LaneExecution::run_first() {
  std::size_t in = 0, out = 0;
  for (const OperandInfo& info : operands_of(plan().problem)) {
    std::size_t& most = info.role == OperandRole::input ? in : out;
    most = std::max(most, info.bytes());
  }
  // From the one to the other, which must not overlap.
  RawMemory from = raw_memory(in), to = raw_memory(out);
  const auto* scales = static_cast<const float*>(from.get());
  Addresses operands{from.get(), from.get(), to.get(), from.get(), scales, scales};
  operands.more.fill({from.get(), from.get(), to.get()});
  operands.gathered = to.get();
  operands.others.fill(to.get());
  const auto run = [&](bool collectives) {
    for (std::size_t i = 0; i < lanes_.program.steps.size(); ++i) {
      const auto& work = lanes_.program.steps[i].work;
      // What looks up needs tables; its kernels are loaded.
      if (std::holds_alternative<Collective>(work) != collectives || std::holds_alternative<Block>(work)) continue;
      steps_->launch(i, operands, stream());
      await_within([&] { return cudaStreamQuery(stream()); }, first_limit,
                   [&] { return fmt::format("{} before the first epoch", late(name_of_step(i), first_limit)); });
    }
    world_.barrier();
  };
  try {
    IMBREX_CUDA_TRY(cudaMemsetAsync(from.get(), 0, in, stream()));
    run(false);
    run(true);
    loaded_ = true;
  } catch (const Error&) {
    if (stuck_) static_cast<void>(from.release()), static_cast<void>(to.release());
    throw;
  }
}

// Loads the products of a plan that takes turns, in its first call: what they make of the workspaces' contents is
// overwritten by the epoch that follows. Nothing of this rank's is under way that a kernel which is loaded could wait
// for.
void LaneExecution::load_products(const Addresses& operands, cudaStream_t stream) {
  for (std::size_t i = 0; i < lanes_.program.steps.size(); ++i)
    if (!std::holds_alternative<Collective>(lanes_.program.steps[i].work)) steps_->launch(i, operands, stream);
  loaded_ = true;
}

void LaneExecution::expect_operands(const Addresses& operands) const {
  execute::expect_given(operands, plan().problem);
  const auto expect_aligned = [](const void* p) {
    IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(p) % operand_alignment == 0,
                   "operand at {}: it must be aligned to {} bytes", p, operand_alignment);
  };
  for (const void* p : {operands.a, operands.b, static_cast<const void*>(operands.out), operands.bias,
                        static_cast<const void*>(operands.a_scale), static_cast<const void*>(operands.b_scale),
                        static_cast<const void*>(operands.gathered)})
    expect_aligned(p);
  for (const auto& [b, bias, out] : operands.more) expect_aligned(b), expect_aligned(bias), expect_aligned(out);
}

void LaneExecution::expect_captures() const {
  const std::string& why = libraries_->why_no_captured_sends();
  if (why.empty()) return;
  for (std::size_t i = 0; i < lanes_.program.steps.size(); ++i) {
    const auto* work = std::get_if<Collective>(&lanes_.program.steps[i].work);
    const bool sends = work != nullptr && work->backend == Backend::nccl &&
                       (work->kind == CollectiveKind::all_to_all || work->kind == CollectiveKind::send_receive);
    IMBREX_EXPECTS(!sends, "{} is not captured: {}", name_of_step(i), why);
  }
}

// Nothing in a captured epoch depends on its number. What is refused is refused before anything is launched.
void LaneExecution::launch(const Addresses& operands, cudaStream_t main, Call call) {
  expect_sound();
  expect_operands(operands);
  if (kernel_ == nullptr) hold_back(world_, options_, queue_->queued);  // else the kernel is held back
  const bool captured = call != Call::direct;
  captured_ = captured_ || captured;
  if (captured) expect_captures();
  if (!captured && queue_->full()) finish_oldest();
  try {
    if (!loaded_ && !captured) load_products(operands, main);
    EpochQueue<LaneExecution>::Place& place = queue_->next();
    // On the execution's own stream, where nothing else runs, the host times replays itself.
    ReplayMarks* const marks = call == Call::captured ? replays_.get() : nullptr;
    if (marks != nullptr) marks->begin(main);
    launch_epoch(operands, main, captured ? forked_ : place.begun, call);
    if (marks != nullptr) marks->end(main);
    if (captured) return;
    IMBREX_CUDA_TRY(cudaEventRecord(place.done, main));
    place.whose = this;
    ++queue_->queued;
  } catch (const Error& error) {
    give_up(error.what());
  }
}

// `begun` is recorded where lanes fork off.
void LaneExecution::launch_epoch(const Addresses& operands, cudaStream_t main, cudaEvent_t begun, Call call) {
  if (times_) times_->begin_epoch(main);
  const std::size_t count = lanes_.lanes();
  const LaneStreams::Lanes& streams = call == Call::direct ? streams_->direct(count) : streams_->captured(main, count);
  for (const Launch& launch : lanes_.launches) {
    const cudaStream_t stream = launch.stream == Launch::callers ? main : streams[launch.stream];
    switch (launch.kind) {
      case Launch::Kind::kernel: kernel_->launch(operands, main, call); break;
      case Launch::Kind::begin: IMBREX_CUDA_TRY(cudaEventRecord(begun, main)); break;
      case Launch::Kind::fork: IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, begun, 0)); break;
      case Launch::Kind::joint: IMBREX_CUDA_TRY(launch_joint(joints_[launch.number], stream)); break;
      case Launch::Kind::await: IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, ended_[launch.number], 0)); break;
      case Launch::Kind::step: launch_step(launch.number, operands, stream); break;
      case Launch::Kind::join:
        IMBREX_CUDA_TRY(cudaEventRecord(joined_[launch.stream], stream));
        IMBREX_CUDA_TRY(cudaStreamWaitEvent(main, joined_[launch.stream], 0));
        break;
    }
  }
}

void LaneExecution::launch_step(std::size_t step, const Addresses& operands, cudaStream_t stream) {
  if (times_) times_->begin(step, stream);
  steps_->launch(step, operands, stream);
  if (times_) times_->end(step, stream);
  if (ended_[step] != nullptr) IMBREX_CUDA_TRY(cudaEventRecord(ended_[step], stream));
}

// `look` sees to limits, and may find that the epoch is over.
void LaneExecution::finish_oldest() {
  const std::uint64_t oldest = queue_->finished;
  await_within([&] { return queue_->finished > oldest ? cudaSuccess : cudaEventQuery(queue_->oldest().done); }, {},
               [] { return std::string(); });
  if (queue_->finished == oldest) finish_epoch();
}

void LaneExecution::await(cudaStream_t stream) {
  look();  // where the world has failed, what is under way has to be ended before this throws
  expect_sound();
  IMBREX_CUDA_TRY(cudaSetDevice(libraries_->device()));
  while (queue_->finished < queue_->queued) finish_oldest();
  // Replays on the execution's own stream have no marks, so that no host sees who has come to them.
  std::optional<double> limit;
  if (kernel_ == nullptr && stream == own_stream_) limit = world_.options().entry_limit;
  await_within([&] { return cudaStreamQuery(stream); }, limit, [&] { return late_epoch(*limit); });
  // Waits that were given up leave an idle stream, too, and an output that is not finished.
  look();
  expect_sound();
}

void LaneExecution::expect_sound() {
  world_.throw_if_failed();
  IMBREX_EXPECTS(!dead_, "this execution failed before");
  if (kernel_ != nullptr) kernel_->expect_sound();
}

CodecReport LaneExecution::codec_report() {
  const std::lock_guard guard(calls().lock());
  expect_sound();
  IMBREX_CUDA_TRY(cudaSetDevice(libraries_->device()));
  return steps_->codec_report();
}

std::int64_t LaneExecution::take_misfits(Misfits misfits) {
  await_replays(libraries_->device());
  const std::lock_guard guard(calls().lock());
  IMBREX_CUDA_TRY(cudaSetDevice(libraries_->device()));
  calls().follow(stream());
  await(stream());
  return steps_->take_misfits(misfits, stream());
}

std::vector<Span> LaneExecution::spans() {
  std::vector<Span> spans = kernel_ != nullptr ? kernel_->spans() : std::vector<Span>();
  const std::vector<StepTimes::Stretch> times = times_->read();
  constexpr Span::Kind kinds[] = {Span::Kind::compute, Span::Kind::copy, Span::Kind::reduction, Span::Kind::collective,
                                  Span::Kind::compute};
  for (std::size_t i = 0; i < times.size(); ++i) {
    const LibraryStep& step = lanes_.program.steps[i];
    const auto& queues = plan().ranks[static_cast<std::size_t>(world_.rank())].queues;
    spans.push_back({world_.rank(), fmt::format("stream {}", step.stream),
                     label(queues[static_cast<std::size_t>(step.queue)].tasks[step.task]), kinds[step.work.index()],
                     times[i].begin, times[i].end});
  }
  return spans;
}

template <typename Query, typename Late>
void LaneExecution::await_within(Query&& query, std::optional<double> limit, Late&& late) {
  const auto begin = Clock::now();
  const cudaError_t status = runtime::await_query(std::forward<Query>(query), [&] {
    look();
    calls().look();
    if (dead_) give_up("this execution failed");
    if (limit && std::chrono::duration<double>(Clock::now() - begin).count() > *limit) give_up(late());
  });
  if (status != cudaSuccess)
    give_up(fmt::format("rank {}: the GPU reports: {}", world_.rank(), cudaGetErrorString(status)));
}

bool LaneExecution::busy() const {
  bool found = kernel_ != nullptr && cudaStreamQuery(stream()) == cudaErrorNotReady;
  found = found || (streams_ != nullptr && streams_->busy());
  found = found || (queue_ != nullptr && queue_->busy());
  cudaGetLastError();
  return found;
}

// Ends what is under way and lets every rank fail. Joints that gave up hold back what follows them until the
// collectives have been ended; aborted collectives end soon, and what waits for them runs on.
void LaneExecution::end(const std::string& message) noexcept {
  if (dead_) return;
  dead_ = true;
  world_.fail(message);
  if (kernel_ != nullptr) kernel_->look();  // ends the kernel's waits
  libraries_->abort();
  if (record_ != nullptr) record_->ended = 1;
  stuck_ = true;
  for (const auto begin = Clock::now(); stuck_ && Clock::now() - begin < patience;) {
    stuck_ = busy();
    if (stuck_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Throws the world's first failure, which may be the loss of the rank that this one waited for.
void LaneExecution::give_up(const std::string& message) {
  end(message);
  runtime::fail(world_, message);
}

}  // namespace imbrex::cuda
