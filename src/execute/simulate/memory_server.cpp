#include "execute/simulate/memory_server.hpp"

#include <algorithm>
#include <limits>

namespace imbrex::simulate {

// A collective never takes all: 5 % stays, so that time always advances.
double MemoryServer::available() const { return std::max(bandwidth_ - reserved_, 0.05 * bandwidth_); }

double MemoryServer::share(bool charged) const {
  return std::min(sm_rate_, available() * (charged ? 0.5 : 1.0) / std::max(weights_, 1e-9));
}

void MemoryServer::advance(double now) {
  double left = now - last_;
  last_ = now;
  if (left <= 0) return;
  if (debt_ > 0) {
    const double rate = share(true);
    const double drain = available() - rate * weights_;
    const double span = std::min(left, debt_ / drain);
    debt_ = span < left ? 0 : debt_ - span * drain;
    served_ += rate * span;
    left -= span;
  }
  served_ += share(false) * left;
}

void MemoryServer::start(double now, std::uint32_t task, double bytes, double weight) {
  advance(now);
  if (loads_.empty()) served_ = 0;  // keeps the virtual clock small, so that its rounding stays below a byte
  loads_.push({served_ + bytes / weight, sequence_++, task, weight});
  weights_ += weight;
  ++generation_;
}

void MemoryServer::charge(double now, double bytes) {
  advance(now);
  debt_ += bytes;
  if (!loads_.empty()) ++generation_;
}

void MemoryServer::reserve(double now, double rate) {
  advance(now);
  reserved_ = std::max(0.0, reserved_ + rate);
  if (!loads_.empty()) ++generation_;
}

void MemoryServer::collect(double now, std::vector<std::uint32_t>& ended) {
  advance(now);
  // Slack of half a byte, or of what is served within the clock's rounding, so that a forecast always comes true.
  while (!loads_.empty() && loads_.top().until <= served_ + 0.5 + share(debt_ > 0) * (4e-16 * now + 1e-18)) {
    ended.push_back(loads_.top().task);
    weights_ -= loads_.top().weight;
    loads_.pop();
    ++generation_;
  }
  if (loads_.empty()) weights_ = 0;
}

double MemoryServer::next(double now) {
  advance(now);
  if (loads_.empty()) return std::numeric_limits<double>::infinity();
  double need = std::max(0.0, loads_.top().until - served_);
  if (debt_ <= 0) return now + need / share(false);
  const double rate = share(true);
  const double span = debt_ / (available() - rate * weights_);
  if (need <= rate * span) return now + need / rate;
  return now + span + (need - rate * span) / share(false);
}

}  // namespace imbrex::simulate
