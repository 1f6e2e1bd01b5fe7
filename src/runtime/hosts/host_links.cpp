#include "runtime/hosts/host_links.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "runtime/calls.hpp"
#include "runtime/quiet_thread.hpp"

namespace imbrex::runtime {
namespace {

// How often a rank says that it is there, in the shortest wait limit of any; and the part of its own limit after which
// it takes another for lost.
constexpr double ticks_in_limit = 8, part_to_loss = 0.75;
constexpr int failure_interval =
    100;                        // milliseconds between looks at a failure that a rank of this host may have recorded
constexpr double farewell = 1;  // seconds

}  // namespace

HostLinks::HostLinks(Acquaintance acquaintance, int rank, double limit)
    : roster_(std::move(acquaintance.roster)),
      rank_(rank),
      limit_(limit),
      links_(roster_.ranks.size()),
      block_(std::make_unique<ControlBlock>()),
      bell_(IMBREX_SYSTEM(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  for (std::size_t r = 0; r < links_.size(); ++r) {
    links_[r].connection = std::move(acquaintance.connections[r]);
    links_[r].open = static_cast<bool>(links_[r].connection);
    if (links_[r].open && own_address_.empty()) own_address_ = own_end(links_[r].connection.socket()).address();
    if (!is_far(static_cast<int>(r))) continue;
    block_->ranks[r].pid = roster_.ranks[r].pid;
    block_->ranks[r].state = running;
  }
  double shortest = limit;
  for (const RosterEntry& entry : roster_.ranks) shortest = std::min(shortest, double{entry.wait_limit});
  interval_ = shortest / ticks_in_limit;
}

HostLinks::~HostLinks() {
  if (thread_.joinable()) leave(RankState::failed);
}

void HostLinks::start(const Control& control, const HeapHandle& heap) {
  control_ = std::make_unique<Control>(control);
  heap_ = heap;
  thread_ = quiet_thread([this] { run(); });
}

void HostLinks::wake() noexcept {
  const std::uint64_t one = 1;
  // The thread looks by itself, too, every 100 ms.
  [[maybe_unused]] const auto written = bell_.is_own() ? write(bell_.get(), &one, sizeof one) : 0;
}

void HostLinks::send_all(FrameKind kind, std::string_view payload, std::string_view more) noexcept {
  const std::lock_guard lock(mutex_);
  bool unsent = false;
  for (Link& link : links_) {
    if (!link.open) continue;
    link.connection.send(kind, payload, more);
    unsent = unsent || link.connection.has_unsent();
  }
  if (unsent) wake();
}

void HostLinks::enter(std::uint64_t number, std::uint32_t gathered, const std::byte* bytes) noexcept {
  const Entry entry{number, gathered, 0};
  const std::size_t count = gathered == no_gather ? 0 : gathered;
  send_all(FrameKind::enter, bytes_of(entry), {reinterpret_cast<const char*>(bytes), count});
}

void HostLinks::refused(std::uint64_t number, std::uint64_t calls, std::string_view reason) noexcept {
  const RefusedCall call{number, calls};
  send_all(FrameKind::refused, bytes_of(call), reason.substr(0, sizeof RefusalRecord{}.text - 1));
}

void HostLinks::put_word(int rank, std::uint64_t offset, std::uint64_t value) noexcept {
  const PutWord word{offset, value};
  const std::lock_guard lock(mutex_);
  Link& link = links_[static_cast<std::size_t>(rank)];
  if (!link.open) return;
  link.connection.send(FrameKind::word, bytes_of(word));
  if (link.connection.has_unsent()) wake();
}

void HostLinks::tell_failure() {
  if (failure_told_ || !control_->has_failed()) return;
  failure_told_ = true;
  send_all(FrameKind::failure, control_->failure());
}

void HostLinks::run() {
  using Clock = std::chrono::steady_clock;
  const auto interval = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(interval_));
  auto next_tick = Clock::now() + interval;
  for (int r = 0; r < static_cast<int>(links_.size()); ++r) read(r);  // what came with the greeting
  std::vector<pollfd> polls(links_.size() + 1);
  while (!stop_) {
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t r = 0; r < links_.size(); ++r) {
        const Link& link = links_[r];
        const short out = link.connection.has_unsent() ? POLLOUT : 0;
        polls[r] = {link.open ? link.connection.socket().get() : -1, static_cast<short>(POLLIN | out), 0};
      }
    }
    polls.back() = {bell_.is_own() ? bell_.get() : -1, POLLIN, 0};
    const double left = std::chrono::duration<double, std::milli>(next_tick - Clock::now()).count();
    poll(polls.data(), polls.size(), static_cast<int>(std::clamp<double>(std::ceil(left), 0, failure_interval)));
    if (polls.back().revents) {
      std::uint64_t rings = 0;
      [[maybe_unused]] const auto taken = ::read(bell_.get(), &rings, sizeof rings);
    }
    for (std::size_t r = 0; r < links_.size(); ++r) {
      if (polls[r].revents & POLLOUT) {
        const std::lock_guard lock(mutex_);
        links_[r].connection.flush();
      }
      if (polls[r].revents & ~POLLOUT) read(static_cast<int>(r));
    }
    tell_failure();
    if (Clock::now() < next_tick) continue;
    next_tick = Clock::now() + interval;
    tick();
  }
}

// Times in which this process itself was stopped do not count.
void HostLinks::tick() {
  Alive alive;
  for (std::size_t i = 0; i < std::size(alive.entered); ++i)
    alive.entered[i] = word(control_->block().ranks[rank_].entered[i]).load(std::memory_order_relaxed);
  send_all(FrameKind::alive, bytes_of(alive));
  for (int r = 0; r < static_cast<int>(links_.size()); ++r) {
    Link& link = links_[static_cast<std::size_t>(r)];
    if (link.open && !link.connection.is_own()) read(r);  // which says so
    // One that has said nothing yet is still on its way here: who waits for it knows how long.
    if (link.open && link.heard && ++link.silent * interval_ > part_to_loss * limit_)
      lose(r, fmt::format("nothing was heard of it for {:.3g} s", part_to_loss * limit_));
  }
}

void HostLinks::read(int rank) {
  Link& link = links_[static_cast<std::size_t>(rank)];
  if (!link.open) return;
  const bool open = link.connection.receive();
  if (!link.connection.is_own())
    control_->record(
        fmt::format("{} failed: the program closed file descriptor {} of its world, or replaced it; it was "
                    "the connection to {}",
                    control_->name(rank_), link.connection.socket().get(), control_->name(rank)));
  while (const auto frame = link.connection.next()) {
    link.heard = true;
    link.silent = 0;
    if (!take(rank, *frame)) return lose(rank, "it sent what no rank sends");
  }
  if (link.connection.was_closed()) return lose(rank, "it ended without leaving the world");
  if (!open || !link.connection.fault().empty()) lose(rank, link.connection.fault());
}

void HostLinks::lose(int rank, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    Link& link = links_[static_cast<std::size_t>(rank)];
    link.open = false;
    if (link.connection.is_own()) shutdown(link.connection.socket().get(), SHUT_RDWR);
  }
  if (control_->state(rank) < finished) control_->record_lost(rank, why);
}

bool HostLinks::take(int rank, const Frame& frame) {
  RankRecord& record = block_->ranks[rank];
  switch (frame.kind) {
    case FrameKind::alive: {
      const auto alive = frame.as<Alive>();
      for (std::size_t i = 0; alive && i < std::size(alive->entered); ++i)
        word(record.entered[i]).store(alive->entered[i], std::memory_order_relaxed);
      return alive.has_value();
    }
    case FrameKind::enter: return take_entry(rank, frame);
    case FrameKind::word: return take_word(frame);
    case FrameKind::failure: control_->record(frame.payload); return true;
    case FrameKind::state: {
      const auto state = frame.as<std::uint32_t>();
      if (!state || (*state != finished && *state != RankState::failed)) return false;
      word(record.state).store(*state, std::memory_order_release);
      return true;
    }
    case FrameKind::refused: {
      RefusedCall call;
      if (frame.payload.size() < sizeof call) return false;
      std::memcpy(&call, frame.payload.data(), sizeof call);
      note_refusal(*control_, rank, call.number, call.calls, std::string_view(frame.payload).substr(sizeof call));
      return true;
    }
    default: return false;
  }
}

// The slot is free: this rank has entered the barrier before, after it had read what the slot held.
bool HostLinks::take_entry(int rank, const Frame& frame) {
  Entry entry;
  if (frame.payload.size() < sizeof entry) return false;
  std::memcpy(&entry, frame.payload.data(), sizeof entry);
  const std::size_t bytes = entry.gathered == no_gather ? 0 : entry.gathered;
  RankRecord& record = block_->ranks[rank];
  const std::uint64_t before = word(record.arrived).load(std::memory_order_relaxed);
  if (bytes > max_gather_bytes || frame.payload.size() != sizeof entry + bytes || entry.number != before + 1)
    return false;
  const auto slot = static_cast<std::size_t>(before % 2);
  std::memcpy(block_->gather[slot][rank], frame.payload.data() + sizeof entry, bytes);
  record.gathered[slot] = entry.gathered;
  word(record.arrived).store(entry.number, std::memory_order_release);
  return true;
}

bool HostLinks::take_word(const Frame& frame) {
  const auto put = frame.as<PutWord>();
  if (!put || put->offset % sizeof put->value != 0 || put->offset > heap_.stride - sizeof put->value) return false;
  auto& place = *reinterpret_cast<std::uint64_t*>(heap_.at(heap_.rank, put->offset));
  word(place).store(put->value, std::memory_order_release);
  return true;
}

void HostLinks::leave(RankState state) noexcept {
  stop_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  try {
    tell_failure();
    const std::uint32_t word = state;
    send_all(FrameKind::state, bytes_of(word));
    const Deadline deadline = deadline_in(std::min(farewell, limit_));
    for (bool done = false; !done && milliseconds_until(deadline) > 0;) {
      done = true;
      for (Link& link : links_) {
        if (!link.open) continue;
        link.open = !link.connection.finish();
        done = done && !link.open;
      }
      if (!done) usleep(200);
    }
  } catch (...) {
  }
  for (Link& link : links_) link = Link();
}

}  // namespace imbrex::runtime
