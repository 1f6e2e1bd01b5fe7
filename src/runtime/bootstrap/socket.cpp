#include "runtime/bootstrap/socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

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

/// True where every user of the system has a number of its own here, so that none reads as the overflow uid.
bool maps_all_users() {
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t inside = 0, outside = 0, length = 0, sum = 0;
  while (map >> inside >> outside >> length) sum += length;
  return sum >= 0xffffffff;
}

uid_t overflow_uid() {
  uid_t uid = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> uid;
  return uid;
}

bool shares_user_namespace(pid_t pid) {
  struct stat own {
  }, other{};
  // The kernel shows this file of a process only to those who might also trace it: not to other users.
  return pid > 0 && stat("/proc/self/ns/user", &own) == 0 &&
         stat(fmt::format("/proc/{}/ns/user", pid).c_str(), &other) == 0 && own.st_dev == other.st_dev &&
         own.st_ino == other.st_ino;
}

/// The number of the socket of that name, as text; empty where there is none. Each kind of socket has names of its own.
std::string inode_of(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream words(line);
    std::string address, references, protocol, flags, type, state, inode, path;
    if (words >> address >> references >> protocol >> flags >> type >> state >> inode >> path && path == '@' + name &&
        std::strtoul(type.c_str(), nullptr, 16) == SOCK_SEQPACKET)
      return inode;
  }
  return {};
}

/// The process that has the socket of that number open, among those whose descriptors this process may see.
std::optional<Peer> process_with_socket(const std::string& inode) {
  namespace fs = std::filesystem;
  const std::string wanted = fmt::format("socket:[{}]", inode);
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end; process.increment(error)) {
    const std::string number = process->path().filename();
    Peer peer;
    if (std::from_chars(number.data(), number.data() + number.size(), peer.pid).ec != std::errc{}) continue;
    std::error_code hidden;
    for (fs::directory_iterator file(process->path() / "fd", hidden); !hidden && file != end; file.increment(hidden)) {
      std::error_code gone;
      if (fs::read_symlink(file->path(), gone) != wanted || gone) continue;
      struct stat status {};
      if (stat(process->path().c_str(), &status) != 0) break;
      peer.uid = status.st_uid;
      return peer;
    }
  }
  return std::nullopt;
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

Owner owner_of(const Peer& peer) {
  if (peer.uid != geteuid()) return Owner::other;
  return peer.uid != overflow_uid() || shares_user_namespace(peer.pid) || maps_all_users() ? Owner::self
                                                                                           : Owner::unknown;
}

std::string describe(const Peer& peer) { return fmt::format("user {} (pid {})", peer.uid, peer.pid); }

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

std::string holder_of(const std::string& name) {
  if (const FileDescriptor socket = try_connect(name)) return describe(peer_of(socket));
  const std::string inode = inode_of(name);
  if (inode.empty()) return {};
  if (const auto peer = process_with_socket(inode)) return describe(*peer);
  return "a process that this one may not look at";
}

FileDescriptor accept_one(const FileDescriptor& listener, int& error) {
  FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  error = socket ? 0 : errno;
  return socket;
}

bool is_out_of_room(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

FileDescriptor try_accept(const FileDescriptor& listener) {
  int error = 0;
  FileDescriptor socket = accept_one(listener, error);
  if (is_out_of_room(error))
    throw Error(ErrorCode::runtime_failure, fmt::format("cannot accept a connection: {}", std::strerror(error)));
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
  ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  // Said once, where the other end was closed with something unread in it; what it had sent comes after that.
  if (received < 0 && errno == ECONNRESET) received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (received < 0) return 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      FileDescriptor owned(fd);  // closed here where the caller takes none
      if (descriptors) descriptors->push_back(std::move(owned));
    }
  }
  return static_cast<std::size_t>(received);
}

}  // namespace imbrex::runtime
