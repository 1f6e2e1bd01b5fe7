// Sockets between hosts. None of them blocks.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/bootstrap/socket.hpp"
#include "runtime/memory.hpp"

namespace imbrex::runtime {

/// An address of a host, IPv4 or IPv6, and a port.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const sockaddr* address, socklen_t length);

  /// From digits alone: "10.0.0.1", "fe80::1%eth0". Nothing where it is no address.
  static std::optional<Endpoint> parse(const std::string& digits, std::uint16_t port);
  /// Every address of this host.
  static Endpoint any(int family, std::uint16_t port);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }
  std::uint16_t port() const;
  Endpoint with_port(std::uint16_t port) const;
  /// Whether it means the host that uses it.
  bool is_loopback() const;
  /// The address in digits.
  std::string address() const;
  /// "10.0.0.1 port 29501".
  std::string text() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// A host and a port as people write them: "node1", "node1:29500", "10.0.0.1:29500", "[fe80::1]:29500", "fe80::1".
struct HostPort {
  std::string host;
  std::uint16_t port = 0;  // 0: not said
};
/// Throws Error(invalid_input), naming `variable`, where the text is neither.
HostPort parse_host_port(std::string_view variable, const std::string& text);

/// The addresses of a host, by digits or by name; asks again and again until the name is known. Throws
/// Error(runtime_failure) past the deadline.
std::vector<Endpoint> resolve(const std::string& host, std::uint16_t port, Deadline deadline);

/// The addresses of an interface of this host, IPv4 first. Throws Error(invalid_input), naming what there is, where the
/// host has no such interface or it has no address.
std::vector<Endpoint> addresses_of_interface(const std::string& name);

/// Listens there; an empty descriptor where somebody else does. Throws Error(runtime_failure) where the host cannot.
FileDescriptor listen_tcp(const Endpoint& at);

/// Begins to connect, from `source` where it is given; an empty descriptor, and why, where that fails at once. The
/// socket is connected, or has failed, once it can be written.
FileDescriptor begin_connect(const Endpoint& to, const std::optional<Endpoint>& source, std::string& why);
/// Whether it is connected, or has failed, and why; nothing while it is under way.
std::optional<bool> is_connected(const FileDescriptor& socket, std::string& why);

/// As accept_one.
FileDescriptor accept_tcp(const FileDescriptor& listener, int& error);

Endpoint own_end(const FileDescriptor& socket);
Endpoint far_end(const FileDescriptor& socket);

}  // namespace imbrex::runtime
