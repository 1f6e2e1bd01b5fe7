#include "execute/cuda/lanes/library_execution.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "execute/cuda/lanes/epoch_queue.hpp"
#include "execute/cuda/lanes/mixed_execution.hpp"
#include "execute/cuda/libraries/library_steps.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/libraries/shared_libraries.hpp"
#include "execute/cuda/times/step_times.hpp"
#include "execute/layout.hpp"
#include "runtime/cuda/await_stream.hpp"
#include "runtime/cuda/gpu_clock.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "runtime/failure.hpp"

namespace imbrex::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds that the first run of an execution may take, in which the libraries load their kernels.
constexpr double first_limit = 60;
// What plans that take turns are taken to have: they share a queue, whose length is not known when the first is made.
constexpr std::size_t most_steps_in_turns = 32;

std::string name_of_step(const Plan& plan, int rank, const LibraryStep& step) {
  return label(
      plan.ranks[static_cast<std::size_t>(rank)].queues[static_cast<std::size_t>(step.queue)].tasks[step.task]);
}

Span::Kind kind_of_step(const LibraryStep& step) {
  constexpr Span::Kind kinds[] = {Span::Kind::compute, Span::Kind::copy, Span::Kind::reduction, Span::Kind::collective};
  return kinds[step.work.index()];
}

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

cudaEvent_t new_event() {
  cudaEvent_t made = nullptr;
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  return made;
}

class LibraryExecution;

/// What executions that take turns share.
struct Turn {
  std::shared_ptr<EpochQueue<LibraryExecution>> queue;
  std::shared_ptr<SharedRoom> room;
};

class LibraryExecution final : public StreamExecution {
 public:
  /// Collective: every step runs once.
  LibraryExecution(std::shared_ptr<SharedLibraries> libraries, const Plan& plan, const CudaOptions& options);
  /// Not collective: one of several that take turns. The libraries lack nothing for the plan, and no call of the rank
  /// is under way.
  LibraryExecution(std::shared_ptr<SharedLibraries> libraries, const Plan& plan, const CudaOptions& options,
                   const Turn& turn);
  ~LibraryExecution() override;

  /// Whether some graph may hold its calls.
  bool captured() const { return captured_; }

  void look() noexcept override;
  cudaStream_t stream() const override { return streams_.front(); }
  std::string_view kernel_name() const override { return library_name; }
  CodecReport codec_report() override;

 private:
  LibraryExecution(const CudaOptions& options, std::shared_ptr<SharedLibraries>&& libraries, const Plan& plan)
      : StreamExecution(libraries->calls(), options.timeline),
        libraries_(std::move(libraries)),
        world_(libraries_->world()),
        plan_(plan),
        options_(options) {}

  void launch(const Addresses& operands, cudaStream_t stream, Call call) override;
  void await(cudaStream_t stream) override;
  void expect_sound() override;
  std::vector<Span> spans() override;

  void translate();
  void expect_captures() const;
  void make_streams();
  void run_first();
  void load_products(const Addresses& operands, cudaStream_t stream);
  void launch_epoch(const Addresses& operands, cudaStream_t main, cudaEvent_t begun);
  void finish_oldest();
  template <typename Query>
  void await_within(Query&& query, std::optional<double> limit);
  std::string late(double limit) const;
  bool busy() const;
  void end(const std::string& message) noexcept;
  [[noreturn]] void give_up(const std::string& message);

  std::shared_ptr<SharedLibraries> libraries_;
  World& world_;
  Plan plan_;
  CudaOptions options_;
  LibraryProgram program_;
  bool forks_ = false;  // some stream waits for the epoch's begin
  std::unique_ptr<LibrarySteps> steps_;
  std::unique_ptr<StepTimes> times_;  // where a timeline is wanted
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> ended_;  // by step; null where nobody waits for it
  cudaEvent_t forked_ = nullptr;    // where a captured epoch begins
  std::shared_ptr<EpochQueue<LibraryExecution>> queue_;
  bool loaded_ = false;  // every product has run once
  bool captured_ = false, dead_ = false, stuck_ = false;
};

// Delegates, so that the destructor runs, which knows what may be freed, where this throws.
LibraryExecution::LibraryExecution(std::shared_ptr<SharedLibraries> libraries, const Plan& plan,
                                   const CudaOptions& options)
    : LibraryExecution(options, std::move(libraries), plan) {
  translate();
  steps_ = std::make_unique<LibrarySteps>(*libraries_, plan_, program_);
  queue_ = std::make_shared<EpochQueue<LibraryExecution>>(program_.steps.size());
  make_streams();
  run_first();
  if (options.timeline) times_ = std::make_unique<StepTimes>(program_.steps.size(), runtime::gpu_clock_to_host());
}

LibraryExecution::LibraryExecution(std::shared_ptr<SharedLibraries> libraries, const Plan& plan,
                                   const CudaOptions& options, const Turn& turn)
    : LibraryExecution(options, std::move(libraries), plan) {
  translate();
  steps_ = std::make_unique<LibrarySteps>(*libraries_, plan_, program_, *turn.room);
  queue_ = turn.queue;
  make_streams();
  if (options.timeline) times_ = std::make_unique<StepTimes>(program_.steps.size(), runtime::gpu_clock_to_host());
}

void LibraryExecution::translate() {
  IMBREX_EXPECTS(library_name.find(options_.kernel) != std::string_view::npos,
                 "no kernel named like '{}' runs plans with library collectives", options_.kernel);
  // Every rank looks at every rank's part, so that all refuse alike.
  for (int rank = 0; rank < world_.size(); ++rank) {
    LibraryProgram program = library_program(plan_, rank);
    if (rank == world_.rank()) program_ = std::move(program);
  }
  forks_ = std::find(program_.forked.begin(), program_.forked.end(), true) != program_.forked.end();
}

LibraryExecution::~LibraryExecution() {
  {
    const std::lock_guard guard(calls().lock());
    look();  // where a rank is lost, collectives under way have to be ended before anything waits for them
    try {
      if (!dead_ && !streams_.empty()) finish();
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
    return;
  }
  cudaSetDevice(libraries_->device());
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  for (cudaEvent_t event : ended_)
    if (event != nullptr) cudaEventDestroy(event);
  if (forked_ != nullptr) cudaEventDestroy(forked_);
}

void LibraryExecution::make_streams() {
  int least = 0, greatest = 0;
  IMBREX_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (std::size_t s = 0; s < program_.forked.size(); ++s) {
    cudaStream_t stream = nullptr;
    // A collective must not wait until the blocks of a product have all started.
    IMBREX_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, s == 0 ? least : greatest));
    streams_.push_back(stream);
  }
  for (const LibraryStep& step : program_.steps) ended_.push_back(step.awaited ? new_event() : nullptr);
  forked_ = new_event();
}

// Loads every kernel, and lets NCCL connect, before an epoch counts. Products first: a library that loads a kernel
// behind a collective can keep from a peer, in the same process, what that collective waits for.
void LibraryExecution::run_first() {
  std::size_t bytes = 0;
  for (const OperandInfo& info : operands_of(plan_.problem)) bytes = std::max(bytes, info.bytes());
  // A is copied to the gathered A, which must not overlap it.
  RawMemory any = raw_memory(bytes), gathered = raw_memory(plan_.problem.gathered_a ? bytes : 0);
  const auto* scales = static_cast<const float*>(any.get());
  Addresses operands{any.get(), any.get(), any.get(), any.get(), scales, scales};
  operands.more.fill({any.get(), any.get(), any.get()});
  operands.gathered = gathered.get();
  const auto run = [&](bool collectives) {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (std::holds_alternative<Collective>(program_.steps[i].work) != collectives) continue;
      steps_->launch(i, operands, stream());
      await_within([&] { return cudaStreamQuery(stream()); }, first_limit);
    }
    world_.barrier();
  };
  try {
    IMBREX_CUDA_TRY(cudaMemsetAsync(any.get(), 0, bytes, stream()));
    run(false);
    run(true);
    loaded_ = true;
  } catch (const Error&) {
    if (stuck_) static_cast<void>(any.release()), static_cast<void>(gathered.release());
    throw;
  }
}

// The same of a plan that takes turns, in its first call: what products make of what is in the workspaces, the epoch
// behind them overwrites. Nothing of this rank's is under way that a kernel which is loaded could wait for.
void LibraryExecution::load_products(const Addresses& operands, cudaStream_t stream) {
  for (std::size_t i = 0; i < program_.steps.size(); ++i)
    if (!std::holds_alternative<Collective>(program_.steps[i].work)) steps_->launch(i, operands, stream);
  loaded_ = true;
}

// `main` takes the place of the program's first stream; `begun` is recorded there.
void LibraryExecution::launch_epoch(const Addresses& operands, cudaStream_t main, cudaEvent_t begun) {
  const auto stream_at = [&](std::size_t i) { return i == 0 ? main : streams_[i]; };
  if (times_) times_->begin_epoch(main);
  for (std::size_t s = 0; forks_ && s < streams_.size(); ++s)
    if (program_.forked[s]) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream_at(s), begun, 0));
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const LibraryStep& step = program_.steps[i];
    cudaStream_t stream = stream_at(step.stream);
    for (const std::size_t before : step.waits) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, ended_[before], 0));
    if (times_) times_->begin(i, stream);
    steps_->launch(i, operands, stream);
    if (times_) times_->end(i, stream);
    if (step.awaited) IMBREX_CUDA_TRY(cudaEventRecord(ended_[i], stream));
  }
  for (const std::size_t last : program_.ends) IMBREX_CUDA_TRY(cudaStreamWaitEvent(main, ended_[last], 0));
}

void LibraryExecution::expect_captures() const {
  const std::string& why = libraries_->why_no_captured_all_to_all();
  if (why.empty()) return;
  for (const LibraryStep& step : program_.steps) {
    const auto* work = std::get_if<Collective>(&step.work);
    IMBREX_EXPECTS(work == nullptr || work->backend != Backend::nccl || work->kind != CollectiveKind::all_to_all,
                   "{} is not captured: {}", name_of_step(plan_, world_.rank(), step), why);
  }
}

// Nothing in a captured epoch depends on its number.
void LibraryExecution::launch(const Addresses& operands, cudaStream_t stream, Call call) {
  expect_sound();
  execute::expect_given(operands, plan_.problem);
  const auto expect_aligned = [](const void* p) {
    IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(p) % operand_alignment == 0,
                   "operand at {}: it must be aligned to {} bytes", p, operand_alignment);
  };
  for (const void* p : {operands.a, operands.b, static_cast<const void*>(operands.out), operands.bias,
                        static_cast<const void*>(operands.a_scale), static_cast<const void*>(operands.b_scale),
                        static_cast<const void*>(operands.gathered)})
    expect_aligned(p);
  for (const auto& [b, bias, out] : operands.more) expect_aligned(b), expect_aligned(bias), expect_aligned(out);
  hold_back(world_, options_, queue_->queued);
  const bool captured = call != Call::direct;
  captured_ = captured_ || captured;
  if (captured) expect_captures();
  if (!captured && queue_->full()) finish_oldest();
  try {
    if (!loaded_ && !captured) load_products(operands, stream);
    // Where the epoch begins, other streams fork off.
    const cudaEvent_t begun = captured ? forked_ : queue_->next().begun;
    if (!captured || forks_) IMBREX_CUDA_TRY(cudaEventRecord(begun, stream));
    launch_epoch(operands, stream, begun);
    if (captured) return;
    IMBREX_CUDA_TRY(cudaEventRecord(queue_->next().done, stream));
    queue_->next().whose = this;
    ++queue_->queued;
  } catch (const Error& error) {
    give_up(error.what());
  }
}

void LibraryExecution::finish_oldest() {
  const std::uint64_t oldest = queue_->finished;
  // `look` sees to its limit, and may find that it is over.
  await_within([&] { return queue_->finished > oldest ? cudaSuccess : cudaEventQuery(queue_->oldest().done); }, {});
  if (queue_->finished == oldest) queue_->finish_oldest();
}

// Replayed graphs have no epochs: on the execution's own stream, where nothing else runs, they are given one's limit.
void LibraryExecution::await(cudaStream_t stream) {
  expect_sound();
  IMBREX_CUDA_TRY(cudaSetDevice(libraries_->device()));
  while (queue_->finished < queue_->queued) finish_oldest();
  std::optional<double> limit;
  if (stream == streams_.front()) limit = world_.options().wait_limit;
  await_within([&] { return cudaStreamQuery(stream); }, limit);
  // A collective of Imbrex' own that gave up a wait leaves an idle stream, too, and an output that is not finished.
  look();
  expect_sound();
}

CodecReport LibraryExecution::codec_report() {
  const std::lock_guard guard(calls().lock());
  expect_sound();
  IMBREX_CUDA_TRY(cudaSetDevice(libraries_->device()));
  return steps_->codec_report();
}

std::vector<Span> LibraryExecution::spans() {
  const std::vector<StepTimes::Stretch> times = times_->read();
  std::vector<Span> spans;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const LibraryStep& step = program_.steps[i];
    spans.push_back({world_.rank(), fmt::format("stream {}", step.stream), name_of_step(plan_, world_.rank(), step),
                     kind_of_step(step), times[i].begin, times[i].end});
  }
  return spans;
}

void LibraryExecution::expect_sound() {
  world_.throw_if_failed();
  IMBREX_EXPECTS(!dead_, "this execution failed before");
}

// An epoch's time counts from its beginning, which may be long after it was queued.
void LibraryExecution::look() noexcept {
  if (dead_) return;
  try {
    world_.throw_if_failed();
    libraries_->check();
    while (queue_ != nullptr && queue_->finished < queue_->queued) {
      const EpochQueue<LibraryExecution>::Place& oldest = queue_->oldest();
      const cudaError_t status = cudaEventQuery(oldest.done);
      if (status == cudaErrorNotReady) {
        std::optional<Clock::time_point>& since = queue_->oldest_begun;
        if (!since && cudaEventQuery(oldest.begun) == cudaSuccess) since = Clock::now();
        const double limit = world_.options().wait_limit;
        if (since && std::chrono::duration<double>(Clock::now() - *since).count() > limit)
          end(oldest.whose->late(limit));
        cudaGetLastError();
        return;
      }
      IMBREX_CUDA_TRY(status);
      queue_->finish_oldest();
    }
  } catch (const std::exception& error) {
    end(error.what());
  }
}

template <typename Query>
void LibraryExecution::await_within(Query&& query, std::optional<double> limit) {
  const auto begin = Clock::now();
  const cudaError_t status = runtime::await_query(std::forward<Query>(query), [&] {
    look();
    calls().look();
    if (dead_) give_up("this execution failed");
    if (limit && std::chrono::duration<double>(Clock::now() - begin).count() > *limit) give_up(late(*limit));
  });
  if (status != cudaSuccess)
    give_up(fmt::format("rank {}: the GPU reports: {}", world_.rank(), cudaGetErrorString(status)));
}

// Names the first collective that is not known to have ended.
std::string LibraryExecution::late(double limit) const {
  std::string where = fmt::format("rank {}", world_.rank());
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const LibraryStep& step = program_.steps[i];
    if (!std::holds_alternative<Collective>(step.work)) continue;
    if (ended_[i] != nullptr && cudaEventQuery(ended_[i]) == cudaSuccess) continue;
    where = task_name(plan_, world_.rank(), step.queue, step.task);
    break;
  }
  cudaGetLastError();
  return fmt::format("{} waited longer than {} s for the other ranks in epoch {}", where, limit,
                     options_.testing.first_epoch + queue_->finished);
}

bool LibraryExecution::busy() const {
  const auto unfinished = [](cudaError_t status) { return status == cudaErrorNotReady; };
  bool found =
      std::any_of(streams_.begin(), streams_.end(), [&](cudaStream_t s) { return unfinished(cudaStreamQuery(s)); });
  found = found || (queue_ != nullptr && queue_->busy());
  cudaGetLastError();
  return found;
}

// Ends what is under way and lets every rank fail.
void LibraryExecution::end(const std::string& message) noexcept {
  if (dead_) return;
  dead_ = true;
  world_.fail(message);
  libraries_->abort();
  // Aborted collectives end soon, and what waits for them runs on.
  stuck_ = true;
  for (int i = 0; i < 1000 && stuck_; ++i) {
    stuck_ = busy();
    if (stuck_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Throws the world's first failure, which may be the loss of the rank that this one waited for.
void LibraryExecution::give_up(const std::string& message) {
  end(message);
  runtime::fail(world_, message);
}

class Turns final : public LibraryTurns, public std::enable_shared_from_this<Turns> {
 public:
  explicit Turns(std::shared_ptr<SharedLibraries> libraries, const CudaOptions& options)
      : libraries_(std::move(libraries)), options_(options) {}

  std::string lacks(const Plan& plan) const override { return libraries_->lacks(plan); }

  std::shared_ptr<Execution> prepare(const Plan& plan) override {
    // Taking and giving back memory, and loading kernels, can wait for what runs, which waits for other ranks.
    libraries_->calls().drain();
    dropped_.clear();
    std::unique_ptr<LibraryExecution> made;
    try {
      made = std::make_unique<LibraryExecution>(libraries_, plan, options_, turn_);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::runtime_failure) libraries_->world().fail(error.what());
      throw;
    }
    return {made.release(), [self = shared_from_this()](Execution* e) {
              self->drop(std::unique_ptr<LibraryExecution>(static_cast<LibraryExecution*>(e)));
            }};
  }

 private:
  // Its last call may be under way.
  void drop(std::unique_ptr<LibraryExecution> execution) {
    const std::lock_guard guard(libraries_->calls().lock());
    (execution->captured() ? held_ : dropped_).push_back(std::move(execution));
  }

  std::shared_ptr<SharedLibraries> libraries_;
  CudaOptions options_;
  Turn turn_{std::make_shared<EpochQueue<LibraryExecution>>(most_steps_in_turns), std::make_shared<SharedRoom>()};
  std::vector<std::unique_ptr<LibraryExecution>> dropped_, held_;
};

class PreparingLibraries final : public Libraries {
 public:
  PreparingLibraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu)
      : shared_(std::make_shared<SharedLibraries>(world, calls, device, ranks_per_gpu)) {}

  std::unique_ptr<StreamExecution> prepare(const Plan& plan, const CudaOptions& options) override {
    return made([&] { return std::make_unique<LibraryExecution>(shared_, plan, options); });
  }

  std::unique_ptr<StreamExecution> prepare(LanePlan lanes, std::unique_ptr<CudaExecution> kernel,
                                           const CudaOptions& options) override {
    return made(
        [&] { return std::make_unique<MixedExecution>(shared_, std::move(lanes), std::move(kernel), options); });
  }

  std::shared_ptr<LibraryTurns> take_turns(const std::vector<Plan>& plans, const CudaOptions& options) override {
    // Makes the communicators, loads kernels, and lets NCCL connect as it does for such sizes.
    for (const Plan& plan : plans) static_cast<void>(prepare(plan, options));
    return std::make_shared<Turns>(shared_, options);
  }

 private:
  template <typename Make>
  std::unique_ptr<StreamExecution> made(Make&& make) {
    try {
      return make();
    } catch (const Error& error) {
      // Refusals are alike on all ranks; any other failure the others must learn of.
      if (error.code() == ErrorCode::runtime_failure) shared_->world().fail(error.what());
      throw;
    }
  }

  std::shared_ptr<SharedLibraries> shared_;
};

}  // namespace

std::shared_ptr<Libraries> make_libraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu) {
  return std::make_shared<PreparingLibraries>(world, calls, device, ranks_per_gpu);
}

}  // namespace imbrex::cuda
