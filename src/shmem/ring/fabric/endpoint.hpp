// A reliable endpoint of libfabric: memory that peers read and write, messages, and what of it is complete.
#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/libraries/fabric.hpp"

namespace imbrex::shmem::ring {

/// An object of libfabric's, closed at the end.
template <typename T>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T* object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) fi_close(&object_->fid);
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T** put() { return &object_; }

 private:
  T* object_ = nullptr;
};

/// What stands for something under way, at one place until it is complete. The provider uses it meanwhile.
struct Work {
  fi_context2 context{};
};

struct Completion {
  Work* work = nullptr;
  std::string error;  ///< empty: it went well
};

/// Memory that the endpoint reads and writes.
struct Region {
  Owned<fid_mr> registration;
  void* descriptor = nullptr;
  std::uint64_t key = 0;   ///< by which peers reach it
  std::uint64_t base = 0;  ///< what peers add offsets to
};

/// One thread uses it. Functions that begin something return false where there is no room: poll, and try again. They
/// throw Error(runtime_failure) with libfabric's reason.
class FabricEndpoint {
 public:
  /// `address`: this host's, in digits, to which it is bound where the provider works on such addresses. Throws
  /// Error(invalid_input) where there is no such provider here.
  FabricEndpoint(const std::string& provider, const std::string& address);

  /// How peers address it.
  std::string name() const;
  /// Peers, in their order, are known by these names.
  void know(const std::vector<std::string>& names);

  /// `for_peers`: they reach it by an unguessable key, where the provider lets callers choose keys.
  Region register_memory(void* data, std::size_t bytes, bool for_peers);

  bool send(std::size_t peer, const void* data, std::size_t bytes, const Region& region, Work& work);
  bool receive(void* data, std::size_t bytes, const Region& region, Work& work);
  /// Complete once the peer's memory has it, where delivers(); else once the network has.
  bool write(std::size_t peer, const void* from, std::size_t bytes, const Region& region, std::uint64_t to,
             std::uint64_t key, Work& work);
  bool read(std::size_t peer, void* to, std::size_t bytes, const Region& region, std::uint64_t from, std::uint64_t key,
            Work& work);

  /// Goes on with all that is under way. Fills `done`, and returns how many.
  std::size_t poll(std::span<Completion> done);

  bool delivers() const { return delivers_; }
  std::size_t most_bytes() const { return info_->ep_attr->max_msg_size; }  ///< of one write, read or message
  std::size_t most_receives() const { return info_->rx_attr->size; }
  std::string provider() const { return info_->fabric_attr->prov_name; }

 private:
  struct FreeInfo {
    void operator()(fi_info* info) const { library().free_info(info); }
  };
  using Info = std::unique_ptr<fi_info, FreeInfo>;

  static const runtime::Fabric& library() { return runtime::fabric(); }
  static void expect(int result, const char* call);
  static bool begun(ssize_t result, const char* call);
  Info find(const std::string& provider, const std::string& address, bool delivers) const;

  bool delivers_ = true;
  Info info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_av> addresses_;
  Owned<fid_cq> queue_;
  Owned<fid_ep> endpoint_;  // the last one: it is closed before what it stands on
  std::vector<fi_addr_t> peers_;
};

}  // namespace imbrex::shmem::ring
