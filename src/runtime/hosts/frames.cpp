#include "runtime/hosts/frames.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

#include <fmt/format.h>

namespace imbrex::runtime {

bool Connection::receive() {
  if (!fault_.empty()) return false;
  if (!is_own()) {
    fault_ = "this process closed the connection's file descriptor";
    return false;
  }
  char buffer[16384];
  // One part each time, so that who sends without end has no more of this thread than others.
  const ssize_t bytes = recv(socket_.get(), buffer, sizeof buffer, 0);
  if (bytes > 0) {
    received_.append(buffer, static_cast<std::size_t>(bytes));
    return true;
  }
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  closed_ = bytes == 0 || errno == ECONNRESET;
  fault_ = closed_ ? "the connection was closed" : fmt::format("the connection broke: {}", std::strerror(errno));
  return false;
}

std::optional<Frame> Connection::next() {
  FrameHead head;
  if (received_.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, received_.data(), sizeof head);
  if (head.magic == frame_magic && head.version != protocol_version) other_version_ = head.version;
  const std::size_t most = session_ ? most_frame_bytes + Session::tag_bytes : most_greeting_bytes;
  if (head.magic != frame_magic || head.version != protocol_version || head.bytes > most)
    return refuse("it sent what is no frame of this protocol");
  if (received_.size() < sizeof head + head.bytes) return std::nullopt;
  Frame frame{static_cast<FrameKind>(head.kind), received_.substr(sizeof head, head.bytes)};
  received_.erase(0, sizeof head + head.bytes);
  if (!session_) return frame;
  auto text = session_->open(bytes_of(head), frame.payload);
  if (!text) return refuse("what came was not sealed by it for this connection, or was changed on its way");
  frame.payload = std::move(*text);
  return frame;
}

std::nullopt_t Connection::refuse(const char* fault) {
  fault_ = fault;
  received_.clear();
  return std::nullopt;
}

void Connection::send(FrameKind kind, std::string_view payload, std::string_view more) {
  if (ended_) return;
  FrameHead head;
  head.kind = static_cast<std::uint16_t>(kind);
  head.bytes = static_cast<std::uint32_t>(payload.size() + more.size() + (session_ ? Session::tag_bytes : 0));
  unsent_.append(bytes_of(head));
  if (session_)
    session_->seal(bytes_of(head), std::string(payload).append(more), unsent_);
  else
    unsent_.append(payload).append(more);
  flush();
}

void Connection::flush() noexcept {
  if (!unsent_.empty() && !is_own()) {
    ended_ = true;
    unsent_.clear();
  }
  while (!unsent_.empty()) {
    const ssize_t bytes = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes > 0) {
      unsent_.erase(0, static_cast<std::size_t>(bytes));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      ended_ = true;
      unsent_.clear();
    }
  }
}

bool Connection::finish() noexcept {
  flush();
  if (!is_own()) return true;
  if (!has_unsent() && !shut_) shut_ = shutdown(socket_.get(), SHUT_WR) == 0;
  // What is unread when a connection is closed makes the system drop what it still has to send.
  char buffer[4096];
  ssize_t bytes = 0;
  while ((bytes = recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
  }
  if (ended_ || bytes == 0 || (errno != EAGAIN && errno != EINTR)) return true;
  int unacknowledged = 0;  // the end itself counts as one byte
  return shut_ && ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged <= 1;
}

}  // namespace imbrex::runtime
