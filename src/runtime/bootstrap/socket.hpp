// Unix sockets of message kind, in the abstract namespace: no file, gone with the process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "runtime/memory.hpp"

namespace imbrex::runtime {

using Deadline = std::chrono::steady_clock::time_point;

Deadline deadline_in(double seconds);
/// For poll: milliseconds left, rounded up, not negative.
int milliseconds_until(Deadline deadline);

/// The process at the other end, as the kernel vouches for it.
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
};
Peer peer_of(const FileDescriptor& socket);

/// Whose process it is. All users that a user namespace does not map have one number in it, the overflow uid: a process
/// with that number is this user's if it shares the namespace and the kernel lets this process look at it, else
/// unknown.
enum class Owner { self, other, unknown };
Owner owner_of(const Peer& peer);

/// "user 1000 (pid 77)", for messages.
std::string describe(const Peer& peer);

/// Listens under `name`; an empty descriptor where another socket has the name.
FileDescriptor listen_at(const std::string& name);

/// Connects to the listener of `name`; an empty descriptor where there is none (yet).
FileDescriptor try_connect(const std::string& name);

/// Who has a socket of that name, listening or not: "user 1000 (pid 77)", or what is known instead.
/// Empty where there is none.
std::string holder_of(const std::string& name);

/// An empty descriptor where no connection waits, or none can be taken: `error` is the system's reason.
FileDescriptor accept_one(const FileDescriptor& listener, int& error);
/// Whether this process or system is out of descriptors or memory, as far as a new connection goes.
bool is_out_of_room(int error);
/// An empty descriptor where no connection waits. Throws Error(runtime_failure) where one does and this
/// process is out of descriptors or memory: the listener stays readable then.
FileDescriptor try_accept(const FileDescriptor& listener);

/// Sends one message, with descriptors. False where the peer is gone or does not read.
bool send_message(const FileDescriptor& socket, const void* data, std::size_t bytes,
                  const std::vector<int>& descriptors = {}) noexcept;

/// Receives one message that is there already, and the descriptors that came with it. 0 bytes: the peer is gone.
std::size_t receive_message(const FileDescriptor& socket, void* data, std::size_t bytes,
                            std::vector<FileDescriptor>* descriptors = nullptr);

}  // namespace imbrex::runtime
