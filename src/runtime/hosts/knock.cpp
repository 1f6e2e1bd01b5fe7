#include "runtime/hosts/knock.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace imbrex::runtime {
namespace {

using Weight = Reason::Weight;

constexpr double pause_between_tries = 0.02;  // seconds
constexpr int look_interval = 20;             // milliseconds

}  // namespace

Visit::Visit(const Endpoint& at, const std::optional<Endpoint>& source, const Caller& caller)
    : caller_(&caller), at_(at) {
  std::string why;
  connection_ = Connection(begin_connect(at, source, why));
  wait_for(Step::connect, {Weight::absent, "no answer"});
  if (!connection_) fail({Weight::absent, why});
}

void Visit::wait_for(Step step, const Reason& reason) {
  step_ = step;
  reason_ = reason;
  deadline_ = deadline_in(patience);
}

void Visit::fail(const Reason& reason) {
  reason_ = reason;
  state_ = State::failed;
  connection_ = Connection();
}

pollfd Visit::waits_for() const {
  const bool sends = step_ == Step::connect || connection_.has_unsent();
  return {connection_.socket().get(), static_cast<short>(POLLIN | (sends ? POLLOUT : 0)), 0};
}

Visit::State Visit::go_on() {
  if (state_ != State::under_way) return state_;
  if (step_ == Step::connect) {
    std::string why;
    const auto connected = is_connected(connection_.socket(), why);
    if (connected && !*connected) fail({Weight::absent, why});
    if (connected && *connected) wait_for(Step::banner, {Weight::silent, "who listens there says nothing"});
  }
  if (state_ == State::under_way && step_ != Step::connect) hear();
  if (state_ == State::under_way && milliseconds_until(deadline_) == 0) fail(Reason(reason_));
  return state_;
}

void Visit::hear() {
  connection_.flush();
  connection_.receive();
  while (const auto frame = connection_.next()) {
    if (step_ == Step::banner) {
      greet(*frame);
      if (state_ != State::under_way) return;
      continue;
    }
    if (frame->kind != FrameKind::receipt) return fail({Weight::false_one, "who listens there sent no receipt"});
    connection_.send(FrameKind::alive, {});
    state_ = State::taken;
    return;
  }
  if (connection_.fault().empty()) return;
  if (const auto version = connection_.other_version())
    fail({Weight::foreign, fmt::format("who listens there speaks version {} of the protocol, this rank {}", *version,
                                       protocol_version)});
  else if (step_ == Step::receipt)
    fail({Weight::false_one, fmt::format("who listens there shows this world's name and did not take the greeting ({})",
                                         connection_.fault())});
  else if (connection_.was_closed())
    fail({Weight::silent, "who listens there closed the connection"});
  else
    fail({Weight::foreign, "who listens there does not speak this protocol"});
}

void Visit::greet(const Frame& frame) {
  const auto banner = frame.kind == FrameKind::banner ? frame.as<Banner>() : std::nullopt;
  if (!banner) return fail({Weight::foreign, "who listens there does not speak this protocol"});
  if (!same(banner->world, caller_->world))
    return fail({Weight::foreign,
                 "who listens there belongs to another world: do all ranks have the same variables of the launch?"});
  const KeyPair keys;
  const auto shared = keys.shared_with(banner->key);
  if (!shared) return fail({Weight::false_one, "who listens there has no key for the connection"});
  RankHello hello{{}, keys.own(), at_.port(), 0};
  hello.proof = of_hello(caller_->secret, *banner, hello);
  connection_.send(FrameKind::hello, bytes_of(hello));
  connection_.protect(Session(caller_->secret, *shared, transcript_of(*banner, hello), End::guest));
  connection_.send(FrameKind::claim, bytes_of(caller_->claim));
  wait_for(
      Step::receipt,
      {Weight::false_one,
       fmt::format("who listens there shows this world's name and did not take the greeting within {} s", patience)});
}

void Answers::note(std::size_t place, const Reason& reason) {
  Reason& known = reasons_[place];
  if (known.text.empty() || reason.weight >= known.weight) known = reason;
}

std::string Answers::text() const {
  struct Group {
    std::string address;
    Reason reason;
    std::vector<int> ports;
  };
  std::vector<Group> groups;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const std::string address = places_[i].address();
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& one) {
      return one.address == address && one.reason.text == reasons_[i].text;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), {address, reasons_[i], {}});
    group->ports.push_back(places_[i].port());
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& one, const Group& other) { return one.reason.weight > other.reason.weight; });
  std::string text;
  for (const Group& group : groups) {
    std::string ports;
    for (std::size_t from = 0, to = 0; from < group.ports.size(); from = to + 1) {
      for (to = from; to + 1 < group.ports.size() && group.ports[to + 1] == group.ports[to] + 1;) ++to;
      ports += fmt::format("{}{}", ports.empty() ? "" : ", ", group.ports[from]);
      if (to > from) ports += fmt::format(" to {}", group.ports[to]);
    }
    text += fmt::format("{}{} port{} {}: {}", text.empty() ? "" : "; ", group.address,
                        group.ports.size() > 1 ? "s" : "", ports, group.reason.text);
  }
  return text;
}

std::optional<Taken> knock(Answers& answers, const std::vector<Endpoint>& sources, const Caller& caller,
                           Deadline deadline, bool again, const std::function<void()>& meanwhile) {
  const std::vector<Endpoint>& places = answers.places();
  struct Try {
    std::optional<Visit> visit;
    Deadline next{};
  };
  std::vector<Try> tries(places.size());
  const auto source_for = [&](const Endpoint& to) {
    const auto same =
        std::find_if(sources.begin(), sources.end(), [&](const Endpoint& own) { return own.family() == to.family(); });
    return same == sources.end() ? std::nullopt : std::optional(same->with_port(0));
  };
  while (true) {
    std::vector<pollfd> polls;
    for (std::size_t i = 0; i < tries.size(); ++i) {
      Try& one = tries[i];
      if (!one.visit && milliseconds_until(one.next) == 0) one.visit.emplace(places[i], source_for(places[i]), caller);
      if (!one.visit) continue;
      if (one.visit->go_on() == Visit::State::taken) return Taken{one.visit->take(), places[i]};
      if (one.visit->state() == Visit::State::under_way) {
        polls.push_back(one.visit->waits_for());
        continue;
      }
      answers.note(i, one.visit->reason());
      one.visit.reset();
      one.next = again ? deadline_in(pause_between_tries) : Deadline::max();
    }
    const int left = milliseconds_until(deadline);
    if (left == 0 || (!again && polls.empty())) break;
    if (meanwhile) meanwhile();
    poll(polls.data(), polls.size(), std::min(look_interval, left));
  }
  for (std::size_t i = 0; i < tries.size(); ++i)
    if (tries[i].visit) answers.note(i, tries[i].visit->reason());
  return std::nullopt;
}

std::optional<Frame> await_frame(Connection& connection, Deadline deadline) {
  while (true) {
    if (auto frame = connection.next()) return frame;
    if (!connection.fault().empty()) return std::nullopt;
    pollfd entry{connection.socket().get(), POLLIN, 0};
    const int left = milliseconds_until(deadline);
    if (left == 0) return std::nullopt;
    if (poll(&entry, 1, left) > 0) connection.receive();
  }
}

}  // namespace imbrex::runtime
