#include "runtime/hosts/tcp.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "base/check.hpp"
#include "runtime/quiet_thread.hpp"

namespace imbrex::runtime {
namespace {

// The system's resolver has limits of its own, which are not this world's: it runs beside, and is left to itself past
// the deadline.
struct Answer {
  int code = EAI_AGAIN;
  std::vector<Endpoint> endpoints;
};

Answer ask_resolver(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  Answer answer;
  answer.code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  for (const addrinfo* one = found; one; one = one->ai_next)
    answer.endpoints.emplace_back(one->ai_addr, one->ai_addrlen);
  if (found) freeaddrinfo(found);
  return answer;
}

Answer ask_in_time(const std::string& host, const std::string& port, Deadline deadline) {
  auto promise = std::make_shared<std::promise<Answer>>();
  auto future = promise->get_future();
  quiet_thread([=] { promise->set_value(ask_resolver(host, port, 0)); }).detach();
  return future.wait_until(deadline) == std::future_status::ready ? future.get() : Answer{};
}

FileDescriptor try_tcp(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

FileDescriptor make_tcp(int family) {
  FileDescriptor socket = try_tcp(family);
  if (!socket)
    throw Error(ErrorCode::runtime_failure, fmt::format("cannot make a TCP socket: {}", std::strerror(errno)));
  return socket;
}

void set(const FileDescriptor& socket, int level, int option, int value) {
  IMBREX_SYSTEM(setsockopt(socket.get(), level, option, &value, sizeof value));
}

Endpoint end_of(const FileDescriptor& socket, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  // The other end may have gone.
  if (ask(socket.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return {reinterpret_cast<const sockaddr*>(&storage), length};
}

}  // namespace

Endpoint::Endpoint(const sockaddr* address, socklen_t length) : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, address, length_);
}

std::optional<Endpoint> Endpoint::parse(const std::string& digits, std::uint16_t port) {
  const Answer answer = ask_resolver(digits, std::to_string(port), AI_NUMERICHOST);
  if (answer.code != 0 || answer.endpoints.empty()) return std::nullopt;
  return answer.endpoints.front();
}

Endpoint Endpoint::any(int family, std::uint16_t port) {
  Endpoint all;
  all.storage_.ss_family = static_cast<sa_family_t>(family);
  all.length_ = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return all.with_port(port);
}

std::uint16_t Endpoint::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port
                                    : reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

Endpoint Endpoint::with_port(std::uint16_t port) const {
  Endpoint other = *this;
  if (family() == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&other.storage_)->sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in*>(&other.storage_)->sin_port = htons(port);
  return other;
}

bool Endpoint::is_loopback() const {
  if (family() == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
}

std::string Endpoint::address() const {
  char text[NI_MAXHOST] = {};
  if (length_ == 0 || getnameinfo(get(), length_, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  // A listener for both families sees IPv4 so.
  constexpr std::string_view mapped = "::ffff:";
  const std::string_view digits = text;
  return std::string(digits.starts_with(mapped) && digits.find('.') != digits.npos ? digits.substr(mapped.size())
                                                                                   : digits);
}

std::string Endpoint::text() const { return fmt::format("{} port {}", address(), port()); }

HostPort parse_host_port(std::string_view variable, const std::string& text) {
  std::string_view host = text, port;
  if (const auto bracket = text.find(']'); text.starts_with('[') && bracket != text.npos) {
    host = std::string_view(text).substr(1, bracket - 1);
    port = std::string_view(text).substr(bracket + 1);
    IMBREX_EXPECTS(port.empty() || port.starts_with(':'), "{}='{}': after ']' comes ':' and a port", variable, text);
    if (!port.empty()) port.remove_prefix(1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = std::string_view(text).substr(0, text.find(':'));
    port = std::string_view(text).substr(text.find(':') + 1);
  }
  HostPort result{std::string(host), 0};
  IMBREX_EXPECTS(!host.empty(), "{}='{}' names no host: it must be a host or address, or one with ':' and a port",
                 variable, text);
  if (port.empty() && host.size() + 2 >= text.size() && !text.ends_with(':')) return result;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
  IMBREX_EXPECTS(error == std::errc{} && end == port.data() + port.size() && result.port != 0,
                 "{}='{}': port '{}' is not a number from 1 to 65535", variable, text, port);
  return result;
}

std::vector<Endpoint> resolve(const std::string& host, std::uint16_t port, Deadline deadline) {
  if (const auto digits = Endpoint::parse(host, port)) return {*digits};
  for (int code = 0;; std::this_thread::sleep_for(std::chrono::milliseconds(200))) {
    Answer answer = ask_in_time(host, std::to_string(port), deadline);
    if (answer.code == 0 && !answer.endpoints.empty()) return answer.endpoints;
    if (answer.code != EAI_AGAIN || code == 0) code = answer.code;
    if (milliseconds_until(deadline) <= 200)
      throw Error(ErrorCode::runtime_failure,
                  fmt::format("no address of host '{}' is known: {}", host, gai_strerror(code)));
  }
}

std::vector<Endpoint> addresses_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  IMBREX_SYSTEM(getifaddrs(&list));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, freeifaddrs);
  std::vector<Endpoint> found;
  std::string others;
  bool exists = false;
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    const std::string_view here = one->ifa_name;
    exists = exists || here == name;
    if (fmt::format(", {},", others).find(fmt::format(", {},", here)) == std::string::npos)
      others += fmt::format("{}{}", others.empty() ? "" : ", ", here);
    if (here != name || !one->ifa_addr || !(one->ifa_flags & IFF_UP)) continue;
    if (one->ifa_addr->sa_family == AF_INET) found.emplace_back(one->ifa_addr, socklen_t{sizeof(sockaddr_in)});
    if (one->ifa_addr->sa_family == AF_INET6) found.emplace_back(one->ifa_addr, socklen_t{sizeof(sockaddr_in6)});
  }
  std::stable_partition(found.begin(), found.end(), [](const Endpoint& one) { return one.family() == AF_INET; });
  IMBREX_EXPECTS(exists, "IMBREX_INTERFACE='{}': this host has no such interface; it has {}", name, others);
  IMBREX_EXPECTS(!found.empty(), "IMBREX_INTERFACE='{}': this interface is down, or has no address", name);
  return found;
}

FileDescriptor listen_tcp(const Endpoint& at) {
  FileDescriptor listener = make_tcp(at.family());
  set(listener, SOL_SOCKET, SO_REUSEADDR, 1);  // connections that are over hold the port for minutes
  if (at.family() == AF_INET6) set(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // Who else has the port may show at either call.
  if (bind(listener.get(), at.get(), at.length()) == 0 && listen(listener.get(), 128) == 0) return listener;
  if (errno == EADDRINUSE || errno == EACCES) return {};
  throw Error(ErrorCode::runtime_failure, fmt::format("cannot listen at {}: {}", at.text(), std::strerror(errno)));
}

FileDescriptor begin_connect(const Endpoint& to, const std::optional<Endpoint>& source, std::string& why) {
  FileDescriptor socket = try_tcp(to.family());
  if (!socket) {
    why = fmt::format("cannot make a TCP socket: {}", std::strerror(errno));
    return {};
  }
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  if (source && bind(socket.get(), source->get(), source->length()) != 0) {
    why = fmt::format("cannot send from {}: {}", source->address(), std::strerror(errno));
    return {};
  }
  if (connect(socket.get(), to.get(), to.length()) == 0 || errno == EINPROGRESS || errno == EINTR) return socket;
  why = std::strerror(errno);
  return {};
}

std::optional<bool> is_connected(const FileDescriptor& socket, std::string& why) {
  pollfd entry{socket.get(), POLLOUT, 0};
  if (poll(&entry, 1, 0) <= 0) return std::nullopt;
  int error = 0;
  socklen_t length = sizeof error;
  IMBREX_SYSTEM(getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length));
  // On one host a socket may meet itself, at a port that the system gives out.
  if (error == 0 && own_end(socket).text() == far_end(socket).text()) error = ECONNREFUSED;
  if (error != 0) why = std::strerror(error);
  return error == 0;
}

FileDescriptor accept_tcp(const FileDescriptor& listener, int& error) {
  FileDescriptor socket = accept_one(listener, error);
  // Who connected may have gone: that is no fault of this end's.
  const int yes = 1;
  if (socket) setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return socket;
}

Endpoint own_end(const FileDescriptor& socket) { return end_of(socket, getsockname); }
Endpoint far_end(const FileDescriptor& socket) { return end_of(socket, getpeername); }

}  // namespace imbrex::runtime
