// Threads of the library's own.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "imbrex/error.hpp"

namespace imbrex::runtime {

/// A thread that takes none of the program's signals. Throws Error(runtime_failure) where
/// the system gives none.
template <typename Body>
std::thread quiet_thread(Body&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::forward<Body>(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::runtime_failure, fmt::format("cannot start a thread: {}", error.what()));
  }
}

}  // namespace imbrex::runtime
