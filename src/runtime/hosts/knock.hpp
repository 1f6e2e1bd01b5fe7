// How a rank gets in at the gate of another host.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/hosts/admission.hpp"

namespace imbrex::runtime {

/// Who knocks, and at whose gate.
struct Caller {
  const Secret& secret;
  Proof world;
  RankClaim claim;
};

/// Why a place did not take a caller. What says more of who is there weighs more.
struct Reason {
  enum class Weight : std::uint8_t { absent, silent, foreign, false_one };
  Weight weight = Weight::absent;
  std::string text;
};

/// One try at one place: connects, greets, and learns whether it is taken. Nothing of it waits.
class Visit {
 public:
  /// `source`: the address to come from, where one is given.
  Visit(const Endpoint& at, const std::optional<Endpoint>& source, const Caller& caller);

  enum class State : std::uint8_t { under_way, taken, failed };
  State state() const { return state_; }
  /// Goes on with what has come. Each step has a second.
  State go_on();
  /// What to wait for while it is under way.
  pollfd waits_for() const;
  /// Once it is taken.
  Connection take() { return std::move(connection_); }
  /// Why it failed, or for what it waits.
  const Reason& reason() const { return reason_; }

 private:
  enum class Step : std::uint8_t { connect, banner, receipt };

  void hear();
  void greet(const Frame& frame);
  void wait_for(Step step, const Reason& reason);
  void fail(const Reason& reason);

  const Caller* caller_;
  Endpoint at_;
  Connection connection_;
  Step step_ = Step::connect;
  State state_ = State::under_way;
  Deadline deadline_;
  Reason reason_;
};

/// What each of several places answered.
class Answers {
 public:
  explicit Answers(std::vector<Endpoint> places) : places_(std::move(places)), reasons_(places_.size()) {}

  const std::vector<Endpoint>& places() const { return places_; }
  /// Kept where it weighs no less than what the place said before.
  void note(std::size_t place, const Reason& reason);
  /// "10.0.0.1 ports 29501 and 29503 to 29508: Connection refused; ...", the weightiest first.
  std::string text() const;

 private:
  std::vector<Endpoint> places_;
  std::vector<Reason> reasons_;
};

struct Taken {
  Connection connection;
  Endpoint at;
};

/// Knocks at all places at once, `again` and again where that is asked for, until one takes the caller: nothing past
/// the deadline, or once all have failed. `sources`: addresses of this host to come from; empty where none is named.
/// `meanwhile` is called many times a second, and may throw.
std::optional<Taken> knock(Answers& answers, const std::vector<Endpoint>& sources, const Caller& caller,
                           Deadline deadline, bool again, const std::function<void()>& meanwhile = {});

/// Waits for a whole frame. Nothing past the deadline, or once none will come: then the connection has a fault.
std::optional<Frame> await_frame(Connection& connection, Deadline deadline);

}  // namespace imbrex::runtime
