// Ends a PE's waits when the world fails: kernels and host threads that wait look at no more than a word.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex::shmem {

/// A thread that calls `end_waits` once, if the world fails.
class Guard {
 public:
  Guard(World& world, std::function<void()> end_waits)
      : world_(world), end_waits_(std::move(end_waits)), thread_([this] { run(); }) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    {
      const std::lock_guard guard(lock_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void run() {
    std::unique_lock guard(lock_);
    while (!changed_.wait_for(guard, std::chrono::milliseconds(5), [this] { return ended_; })) {
      try {
        world_.throw_if_failed();
      } catch (const Error&) {
        return end_waits_();
      }
    }
  }

  World& world_;
  std::function<void()> end_waits_;
  std::mutex lock_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace imbrex::shmem
