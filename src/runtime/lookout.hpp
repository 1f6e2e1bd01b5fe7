// A thread that looks after what no host thread may be waiting for.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/quiet_thread.hpp"

namespace imbrex::runtime {

/// Calls `look` every 5 ms, until it returns false or the lookout ends.
class Lookout {
 public:
  explicit Lookout(std::function<bool()> look) : parts_(std::make_unique<Parts>()), process_(getpid()) {
    parts_->look = std::move(look);
    parts_->thread = quiet_thread([parts = parts_.get()] { parts->run(); });
  }
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;
  ~Lookout() {
    if (getpid() != process_) {
      static_cast<void>(parts_.release());  // a child that the program forked has no such thread to wait for
      return;
    }
    {
      const std::lock_guard guard(parts_->lock);
      parts_->ended = true;
    }
    parts_->changed.notify_all();
    parts_->thread.join();
  }

 private:
  struct Parts {
    void run() {
      std::unique_lock guard(lock);
      while (!changed.wait_for(guard, std::chrono::milliseconds(5), [this] { return ended; }))
        if (!look()) return;
    }

    std::function<bool()> look;
    std::mutex lock;
    std::condition_variable changed;
    bool ended = false;
    std::thread thread;
  };

  std::unique_ptr<Parts> parts_;
  pid_t process_;
};

}  // namespace imbrex::runtime
