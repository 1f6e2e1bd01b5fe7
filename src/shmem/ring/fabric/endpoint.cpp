#include "shmem/ring/fabric/endpoint.hpp"

#include <rdma/fi_cm.h>
#include <rdma/fi_rma.h>
#include <sys/random.h>

#include <array>
#include <cstring>

#include "base/check.hpp"
#include "runtime/hosts/tcp.hpp"

namespace imbrex::shmem::ring {
namespace {

constexpr std::uint32_t version = FI_VERSION(1, 14);

char* copy_of(const std::string& text) { return strdup(text.c_str()); }  // fi_freeinfo frees it

bool works_on_ip(const fi_info& info) {
  return info.addr_format == FI_SOCKADDR || info.addr_format == FI_SOCKADDR_IN || info.addr_format == FI_SOCKADDR_IN6;
}

}  // namespace

void FabricEndpoint::expect(int result, const char* call) {
  if (result < 0)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("libfabric: {} failed: {}", call, library().error_text(-result)));
}

bool FabricEndpoint::begun(ssize_t result, const char* call) {
  if (result == -FI_EAGAIN) return false;
  expect(static_cast<int>(result), call);
  return true;
}

FabricEndpoint::Info FabricEndpoint::find(const std::string& provider, const std::string& address,
                                          bool delivers) const {
  const Info hints(library().copy_info(nullptr));
  if (!hints) throw std::bad_alloc();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->fabric_attr->prov_name = copy_of(provider);
  if (delivers) hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  fi_info* found = nullptr;
  const bool numeric = !address.empty();
  const int result = library().get_info(version, numeric ? address.c_str() : nullptr, nullptr,
                                        numeric ? FI_SOURCE | FI_NUMERICHOST : 0, hints.get(), &found);
  if (result != 0) return nullptr;
  // The library's own order is that of preference.
  return Info(found);
}

FabricEndpoint::FabricEndpoint(const std::string& provider, const std::string& address) {
  for (const bool delivers : {true, false}) {
    if (info_) break;
    delivers_ = delivers;
    info_ = find(provider, address, delivers);
    // One that knows no such addresses chooses its own.
    if (!info_ && (info_ = find(provider, {}, delivers)) && works_on_ip(*info_)) info_.reset();
  }
  IMBREX_EXPECTS(info_,
                 "libfabric has no provider '{}' with reliable messages and remote memory{} here: `fi_info` lists what "
                 "it has, IMBREX_FABRIC_PROVIDER chooses",
                 provider, address.empty() ? "" : " at " + address);
  info_->tx_attr->op_flags = 0;  // asked for where it is needed
  expect(library().open(info_->fabric_attr, fabric_.put(), nullptr), "fi_fabric");
  expect(fi_domain(fabric_.get(), info_.get(), domain_.put(), nullptr), "fi_domain");
  fi_av_attr addresses{};
  addresses.type = FI_AV_TABLE;
  expect(fi_av_open(domain_.get(), &addresses, addresses_.put(), nullptr), "fi_av_open");
  fi_cq_attr completions{};
  completions.format = FI_CQ_FORMAT_CONTEXT;
  completions.size = info_->tx_attr->size + info_->rx_attr->size;
  expect(fi_cq_open(domain_.get(), &completions, queue_.put(), nullptr), "fi_cq_open");
  expect(fi_endpoint(domain_.get(), info_.get(), endpoint_.put(), nullptr), "fi_endpoint");
  expect(fi_ep_bind(endpoint_.get(), &addresses_->fid, 0), "fi_ep_bind");
  expect(fi_ep_bind(endpoint_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  expect(fi_enable(endpoint_.get()), "fi_enable");
}

std::string FabricEndpoint::name() const {
  std::array<char, 256> text;
  std::size_t bytes = text.size();
  expect(fi_getname(&endpoint_->fid, text.data(), &bytes), "fi_getname");
  return {text.data(), bytes};
}

void FabricEndpoint::know(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    fi_addr_t peer = FI_ADDR_UNSPEC;
    const int inserted = fi_av_insert(addresses_.get(), name.data(), 1, &peer, 0, nullptr);
    expect(inserted == 1 ? 0 : inserted < 0 ? inserted : -FI_EINVAL, "fi_av_insert");
    peers_.push_back(peer);
  }
}

Region FabricEndpoint::register_memory(void* data, std::size_t bytes, bool for_peers) {
  Region region;
  const int mode = info_->domain_attr->mr_mode;
  if (!for_peers && (mode & FI_MR_LOCAL) == 0) return region;
  std::uint64_t wanted = 0;
  if ((mode & FI_MR_PROV_KEY) == 0) {
    if (getrandom(&wanted, sizeof wanted, 0) != sizeof wanted) expect(-FI_EAGAIN, "getrandom");
    const std::size_t key_bytes = info_->domain_attr->mr_key_size;
    if (key_bytes < sizeof wanted) wanted &= (std::uint64_t{1} << 8 * key_bytes) - 1;
    wanted &= ~std::uint64_t{0} >> 1;  // all ones mean that there is none
  }
  const std::uint64_t access =
      FI_SEND | FI_RECV | FI_READ | FI_WRITE | (for_peers ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
  expect(fi_mr_reg(domain_.get(), data, bytes, access, 0, wanted, 0, region.registration.put(), nullptr), "fi_mr_reg");
  if ((mode & FI_MR_ENDPOINT) != 0) {
    expect(fi_mr_bind(region.registration.get(), &endpoint_->fid, 0), "fi_mr_bind");
    expect(fi_mr_enable(region.registration.get()), "fi_mr_enable");
  }
  region.descriptor = fi_mr_desc(region.registration.get());
  region.key = fi_mr_key(region.registration.get());
  region.base = (mode & FI_MR_VIRT_ADDR) != 0 ? reinterpret_cast<std::uintptr_t>(data) : 0;
  return region;
}

bool FabricEndpoint::send(std::size_t peer, const void* data, std::size_t bytes, const Region& region, Work& work) {
  return begun(fi_send(endpoint_.get(), data, bytes, region.descriptor, peers_[peer], &work), "fi_send");
}

bool FabricEndpoint::receive(void* data, std::size_t bytes, const Region& region, Work& work) {
  return begun(fi_recv(endpoint_.get(), data, bytes, region.descriptor, FI_ADDR_UNSPEC, &work), "fi_recv");
}

bool FabricEndpoint::write(std::size_t peer, const void* from, std::size_t bytes, const Region& region,
                           std::uint64_t to, std::uint64_t key, Work& work) {
  iovec piece{const_cast<void*>(from), bytes};
  fi_rma_iov place{to, bytes, key};
  void* descriptor = region.descriptor;
  const fi_msg_rma message{&piece, &descriptor, 1, peers_[peer], &place, 1, &work, 0};
  return begun(fi_writemsg(endpoint_.get(), &message, delivers_ ? FI_DELIVERY_COMPLETE : 0), "fi_writemsg");
}

bool FabricEndpoint::read(std::size_t peer, void* to, std::size_t bytes, const Region& region, std::uint64_t from,
                          std::uint64_t key, Work& work) {
  return begun(fi_read(endpoint_.get(), to, bytes, region.descriptor, peers_[peer], from, key, &work), "fi_read");
}

std::size_t FabricEndpoint::poll(std::span<Completion> done) {
  std::array<fi_cq_entry, 32> entries;
  const ssize_t count = fi_cq_read(queue_.get(), entries.data(), std::min(entries.size(), done.size()));
  if (count == -FI_EAGAIN) return 0;
  if (count == -FI_EAVAIL) {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(queue_.get(), &entry, 0) != 1) return 0;
    const char* detail = fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, nullptr, 0);
    done[0] = {static_cast<Work*>(entry.op_context),
               fmt::format("{}{}{}", library().error_text(entry.err), detail != nullptr ? ": " : "",
                           detail != nullptr ? detail : "")};
    return 1;
  }
  expect(static_cast<int>(count), "fi_cq_read");
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    done[i] = {static_cast<Work*>(entries[i].op_context), {}};
  return static_cast<std::size_t>(count);
}

}  // namespace imbrex::shmem::ring
