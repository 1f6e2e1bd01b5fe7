#include "runtime/host_world.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <exception>
#include <new>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/environment.hpp"
#include "runtime/attachment.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::runtime {
namespace {

// Seconds, where no others are chosen.
constexpr double usual_wait_limit = 30, usual_entry_limit = 600;

}  // namespace

WorldOptions validated(int size, WorldOptions options) {
  IMBREX_EXPECTS(size >= 1 && size <= max_world_size, "a world of {} ranks: there must be 1 to {}", size,
                 max_world_size);
  const auto expect_limit = [](const char* which, double seconds) {
    IMBREX_EXPECTS(seconds >= 0 && seconds <= base::most_wait_limit,
                   "{} limit of {} s: it must be more than 0 and at most {} s, or 0 for the usual one", which, seconds,
                   base::most_wait_limit);
  };
  expect_limit("wait", options.wait_limit);
  expect_limit("entry", options.entry_limit);
  // What is chosen holds for all waits.
  const std::optional<double> chosen = options.wait_limit > 0 ? options.wait_limit : base::environment().wait_limit();
  options.wait_limit = chosen.value_or(usual_wait_limit);
  if (options.entry_limit == 0) options.entry_limit = chosen.value_or(usual_entry_limit);
  // Before there are ranks, each of which would say it.
  static_cast<void>(base::environment().loss_detection());
  static_cast<void>(base::environment().check_calls());
  IMBREX_EXPECTS(options.heap_bytes <= std::size_t{1} << 40, "symmetric heap of {} bytes a rank: at most 2^40",
                 options.heap_bytes);
  IMBREX_EXPECTS(options.sms_for_others >= 0, "sms_for_others = {}: it must be 0 or more", options.sms_for_others);
  return options;
}

namespace {

std::size_t stride_of(const WorldOptions& options) {
  const std::size_t page = page_bytes();
  return std::max(page, (options.heap_bytes + page - 1) / page * page);
}

}  // namespace

std::shared_ptr<Segment> Segment::create(int size, const WorldOptions& options) {
  auto segment = std::make_shared<Segment>();
  const std::size_t stride = stride_of(options);
  segment->control_file = SharedMemory::create_file("imbrex-control", sizeof(ControlBlock));
  segment->heap_file = SharedMemory::create_file("imbrex-heap", stride * static_cast<std::size_t>(size));
  segment->control = SharedMemory(segment->control_file, sizeof(ControlBlock));
  segment->heap = SharedMemory(segment->heap_file, stride * static_cast<std::size_t>(size));
  ControlBlock& block = segment->block();
  block.magic = control_magic;
  block.version = protocol_version;
  block.size = static_cast<std::uint32_t>(size);
  block.heap_stride = stride;
  return segment;
}

std::shared_ptr<Segment> Segment::attach(FileDescriptor control_file, FileDescriptor heap_file, int size,
                                         const WorldOptions& options) {
  auto segment = std::make_shared<Segment>();
  segment->control_file = std::move(control_file);
  segment->heap_file = std::move(heap_file);
  segment->control = SharedMemory(segment->control_file, sizeof(ControlBlock));
  const ControlBlock& block = segment->block();
  if (block.magic != control_magic || block.version != protocol_version)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("control block has magic {:#x} and version {}; this is Imbrex protocol {:#x} version {}",
                            block.magic, block.version, control_magic, protocol_version));
  const std::size_t stride = stride_of(options);
  if (block.size != static_cast<std::uint32_t>(size) || block.heap_stride != stride)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("control block is of {} ranks with {} bytes each: it must be of {} with {}", block.size,
                            block.heap_stride, size, stride));
  segment->heap = SharedMemory(segment->heap_file, stride * static_cast<std::size_t>(size));
  return segment;
}

HostWorld::HostWorld(std::shared_ptr<Segment> segment, int rank, const WorldOptions& options, Kind kind,
                     std::vector<FileDescriptor> lines, std::unique_ptr<HostLinks> links)
    : segment_(std::move(segment)),
      rank_(rank),
      pid_(getpid()),
      exceptions_(std::uncaught_exceptions()),
      options_(validated(static_cast<int>(segment_->block().size), options)),
      links_(std::move(links)),
      control_(segment_->block(), rank, links_.get()),
      calls_(*this, control_, rank),
      told_(segment_->block().size),
      heap_({segment_->heap.data(), segment_->block().heap_stride, rank}, segment_->block().heap_stride) {
  control_.set_pid(rank, pid_);
  control_.set_process(own_process());
  // What is meant for a rank of another host must not seem to arrive.
  for (int r = 0; r < control_.size(); ++r)
    if (control_.is_far(r)) IMBREX_SYSTEM(mprotect(heap_.handle().at(r, 0), segment_->block().heap_stride, PROT_NONE));
  if (links_) links_->start(control_, heap_.handle());
  if (kind == Kind::processes && control_.size() > 1)
    watcher_ = std::make_unique<Watcher>(control_, rank, segment_->control_file, std::move(lines));
  control_.set_state(running);
}

HostWorld::~HostWorld() {
  if (!is_own()) {
    // It has neither the membership nor the watcher's thread.
    static_cast<void>(watcher_.release());
    static_cast<void>(links_.release());
    for (std::shared_ptr<void>* kept : {&attachment_, &collectives_, &stream_order_})
      static_cast<void>(new std::shared_ptr<void>(std::move(*kept)));  // what it owns is the parent's
    return;
  }
  const bool by_exception = std::uncaught_exceptions() > exceptions_;
  if (by_exception) fail("it left the world by an exception");
  attachment_.reset();
  collectives_.reset();
  stream_order_.reset();
  const RankState state = by_exception ? failed : finished;
  control_.set_state(state);
  if (links_) links_->leave(state);
}

int HostWorld::host_of(int rank) const {
  IMBREX_EXPECTS(rank >= 0 && rank < size(), "host of rank {}: ranks are 0 to {}", rank, size() - 1);
  return links_ ? links_->roster().ranks[static_cast<std::size_t>(rank)].host : 0;
}

std::string HostWorld::host_name(int host) const {
  IMBREX_EXPECTS(host >= 0 && host < hosts(), "host {}: hosts are 0 to {}", host, hosts() - 1);
  return links_ ? links_->host_name(links_->roster().ranks_of(host).front()) : own_host_name();
}

HostWorld& host_world(World& world) { return dynamic_cast<HostWorld&>(world); }

void put_word(World& world, int rank, std::size_t offset, std::uint64_t value) {
  host_world(world).links()->put_word(rank, offset, value);
}

std::string own_address(World& world) {
  const HostLinks* const links = host_world(world).links();
  return links ? links->own_address() : "127.0.0.1";
}

bool has_failed(World& world) noexcept { return host_world(world).control().has_failed(); }

void enter(World& world, Counted counted, std::uint32_t count) { host_world(world).control().enter(counted, count); }

std::vector<int> late_ranks(World& world, Counted counted) { return host_world(world).control().late(counted); }

void tell_late(World& world, const std::vector<int>& late, std::string_view what) noexcept {
  host_world(world).tell_late(late, what);
}

// A wait tells only after the wait limit: a word that is not as old was of the same lateness.
void HostWorld::tell_late(const std::vector<int>& late, std::string_view what) noexcept try {
  const double now = base::monotonic_seconds();
  std::vector<int> untold;
  {
    const std::lock_guard guard(told_lock_);
    for (const int r : late) {
      std::optional<double>& last = told_[static_cast<std::size_t>(r)];
      if (last && now - *last < options_.wait_limit) continue;
      last = now;
      untold.push_back(r);
    }
  }
  if (!untold.empty()) runtime::tell_late(rank_, control_.list(untold), untold.size(), what, options_.entry_limit);
} catch (...) {  // the wait goes on without words
}

Calls& calls_of(World& world) { return host_world(world).calls(); }

std::shared_ptr<void>& attachment(World& world) { return host_world(world).attachment(); }

std::shared_ptr<void>& stream_order_slot(World& world) { return host_world(world).stream_order(); }

std::shared_ptr<void>& collectives_slot(World& world) { return host_world(world).collectives(); }

bool HostWorld::is_own() const noexcept { return getpid() == pid_; }

void HostWorld::expect_own() const {
  IMBREX_EXPECTS(is_own(), "rank {} is process {}; process {}, which it forked, is no rank", rank_, pid_, getpid());
}

void HostWorld::fail(const std::string& message) noexcept {
  if (!is_own()) return;  // what becomes of the child is its parent's to judge
  try {
    const std::string name = fmt::format("rank {}", rank_);
    const bool named = message.starts_with(name) && message.size() > name.size() &&
                       (message[name.size()] == ' ' || message[name.size()] == ':');
    control_.record(named ? message : fmt::format("{} failed: {}", control_.name(rank_), message));
  } catch (...) {
    control_.record("a rank failed and had no memory left to say more");
  }
}

int run_rank(World& world, const std::function<int(World&)>& body) noexcept {
  const auto report = [&](const char* message, int code) {
    world.fail(message);
    print_rank_line(world.rank(), message);
    return code;
  };
  try {
    return body(world);
  } catch (const Error& error) {
    return report(error.what(), static_cast<int>(error.code()));
  } catch (const std::bad_alloc&) {
    return report("out of memory", 3);
  } catch (const std::exception& error) {
    return report(error.what(), 3);
  } catch (...) {
    return report("an exception that is no std::exception", 3);
  }
}

int worse(int a, int b) {
  const auto severity = [](int code) { return code == 3 ? 4 : code < 0 || code > 3 ? 3 : code; };
  return severity(a) >= severity(b) ? a : b;
}

}  // namespace imbrex::runtime
