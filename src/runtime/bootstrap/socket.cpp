#include "runtime/bootstrap/socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::size_t max_descriptors = 4;

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    // A leading zero byte makes the name abstract; the length ends it.
    const std::size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), bytes);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

FileDescriptor make_socket() {
  return FileDescriptor(IMBREX_SYSTEM(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
}

union ControlBuffer {
  cmsghdr align;
  char bytes[CMSG_SPACE(max_descriptors * sizeof(int))];
};

}  // namespace

Deadline deadline_in(double seconds) {
  using Clock = std::chrono::steady_clock;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

int milliseconds_until(Deadline deadline) {
  const double left = std::chrono::duration<double, std::milli>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp(std::ceil(left), 0.0, 1e9));
}

Peer peer_of(const FileDescriptor& socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  IMBREX_SYSTEM(getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length));
  return {credentials.pid, credentials.uid};
}

FileDescriptor listen_at(const std::string& name) {
  FileDescriptor listener = make_socket();
  const Address address(name);
  if (bind(listener.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) return {};
    throw Error(ErrorCode::runtime_failure, fmt::format("cannot bind a Unix socket: {}", std::strerror(errno)));
  }
  IMBREX_SYSTEM(listen(listener.get(), 128));
  return listener;
}

FileDescriptor try_connect(const std::string& name) {
  FileDescriptor socket = make_socket();
  const Address address(name);
  if (connect(socket.get(), address.get(), address.length) == 0) return socket;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  throw Error(ErrorCode::runtime_failure, fmt::format("cannot connect a Unix socket: {}", std::strerror(errno)));
}

FileDescriptor try_accept(const FileDescriptor& listener) {
  FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
    throw Error(ErrorCode::runtime_failure, fmt::format("cannot accept a connection: {}", std::strerror(errno)));
  return socket;
}

bool send_message(const FileDescriptor& socket, const void* data, std::size_t bytes,
                  const std::vector<int>& descriptors) noexcept {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control{};
  if (!descriptors.empty()) {
    const std::size_t payload = std::min(descriptors.size(), max_descriptors) * sizeof(int);
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(payload);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(payload);
    std::memcpy(CMSG_DATA(header), descriptors.data(), payload);
  }
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

std::size_t receive_message(const FileDescriptor& socket, void* data, std::size_t bytes,
                            std::vector<FileDescriptor>* descriptors) {
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control{};
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (received < 0) return 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      FileDescriptor owned(fd);  // closed here where the caller wants none
      if (descriptors) descriptors->push_back(std::move(owned));
    }
  }
  return static_cast<std::size_t>(received);
}

}  // namespace imbrex::runtime
