#include "apps/nic/mlx5_device.hpp"

#if IMBREX_NIC_HAS_MLX5

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/ranges.h>

#include "apps/common/check.hpp"

namespace imbrex::shmem::mlx5 {
namespace {

constexpr std::uint64_t nic_page = 4096;
// Doorbells of their own that are not cached. A newer libmlx5's: older ones answer EOPNOTSUPP.
constexpr std::uint32_t uar_uncached_own = 1u << 31, uar_uncached_shared = 1, uar_blue_flame = 0;
constexpr std::uint32_t log_largest_message = 30, retries = 7, shortest_receiver_pause = 12, hops = 255;
constexpr std::uint32_t first_udp_source = 0xc000;  // RoCE's sources have the two highest bits

std::uint32_t log2_of(std::uint32_t value) {
  return value < 2 ? 0 : static_cast<std::uint32_t>(std::bit_width(value)) - 1;
}

[[noreturn]] void refuse_device(const std::string& why) { throw Error(ErrorCode::runtime_failure, why); }

// 4.096 us * 2^n.
std::uint32_t timeout_code(double seconds) {
  const double code = std::ceil(std::log2(std::max(seconds, 1e-9) / 4.096e-6));
  return static_cast<std::uint32_t>(std::clamp(code, 1.0, 31.0));
}

// A file of the GPU's memory, for one call.
struct DmaBuffer {
  DmaBuffer(const NicGpu& gpu, const std::byte* begin, std::uint64_t bytes) : file(gpu.dma_buffer(begin, bytes)) {}
  ~DmaBuffer() { close(file); }
  DmaBuffer(const DmaBuffer&) = delete;
  DmaBuffer& operator=(const DmaBuffer&) = delete;
  int file;
};

}  // namespace

void Mlx5Device::expect_zero(int result, std::string_view call) const {
  if (result != 0) throw call_error(call, name_, result > 0 ? result : errno);
}

Mlx5Device::Mlx5Device(const Mlx5Options& options)
    : options_(options), verbs_(options.verbs_library), mlx5_(options.mlx5_library) {
  open();
  query_port();
  domain_ = lent(verbs_.alloc_pd(context_.get()), verbs_.dealloc_pd, "ibv_alloc_pd", name_);
  mlx5dv_pd domain{};
  mlx5dv_obj object{};
  object.pd.in = domain_.get();
  object.pd.out = &domain;
  expect_zero(mlx5_.init_obj(&object, MLX5DV_OBJ_PD), "mlx5dv_init_obj(PD)");
  domain_number_ = domain.pdn;
  expect_zero(mlx5_.query_eqn(context_.get(), 0, &event_queue_), "mlx5dv_devx_query_eqn");
}

void Mlx5Device::open() {
  int count = 0;
  const auto list = lent(verbs_.get_device_list(&count), verbs_.free_device_list, "ibv_get_device_list", name_);
  std::vector<std::string> names;
  ibv_device* found = nullptr;
  for (ibv_device** at = list.get(); *at != nullptr; ++at) {
    const std::string name = verbs_.get_device_name(*at);
    const bool is_mlx5 = mlx5_.is_supported(*at);
    names.push_back(is_mlx5 ? name : name + " (not mlx5)");
    if (found == nullptr && is_mlx5 && (options_.device.empty() || options_.device == name)) found = *at;
  }
  if (found == nullptr)
    refuse_device(fmt::format("{} is not among this host's devices: {}",
                              options_.device.empty() ? "a device of mlx5" : printable(options_.device),
                              names.empty() ? "there are none" : fmt::format("{}", fmt::join(names, ", "))));
  name_ = verbs_.get_device_name(found);
  mlx5dv_context_attr attributes{};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  context_ = lent(mlx5_.open_device(found, &attributes), verbs_.close_device, "mlx5dv_open_device(DEVX)", name_);
}

void Mlx5Device::query_port() {
  ibv_device_attr device{};
  expect_zero(verbs_.query_device(context_.get(), &device), "ibv_query_device");
  if (device.atomic_cap == IBV_ATOMIC_NONE) refuse_device(name_ + " does no atomic operations");
  card_.responses = static_cast<std::uint32_t>(std::max(device.max_qp_rd_atom, 1));
  requests_ = static_cast<std::uint32_t>(std::max(device.max_qp_init_rd_atom, 1));
  ibv_port_attr port{};
  expect_zero(verbs_.query_port(context_.get(), options_.port, &port), "ibv_query_port");
  if (port.state != IBV_PORT_ACTIVE)
    refuse_device(fmt::format("port {} of {} is not active (its state is {})", options_.port, name_,
                              static_cast<int>(port.state)));
  card_.lid = port.lid;
  card_.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;
  card_.mtu = static_cast<std::uint8_t>(port.active_mtu);
  choose_gid(port);
}

void Mlx5Device::choose_gid(const ibv_port_attr& port) {
  const bool any = options_.gid_index < 0 && card_.ethernet != 0;
  const int first = any ? 0 : std::max(options_.gid_index, 0), end = any ? port.gid_tbl_len : first + 1;
  bool found = false;
  for (int i = first; i < end; ++i) {
    ibv_gid_entry entry{};
    const int result =
        verbs_.query_gid(context_.get(), options_.port, static_cast<std::uint32_t>(i), &entry, 0, sizeof entry);
    if (any && result == ENODATA) continue;  // a place without an address
    expect_zero(result, "ibv_query_gid_ex");
    if (any && entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    // IPv4's: 10 zeros and two bytes of ones come first.
    const bool is_ipv4 = std::all_of(entry.gid.raw, entry.gid.raw + 10, [](std::uint8_t b) { return b == 0; }) &&
                         entry.gid.raw[10] == 0xff && entry.gid.raw[11] == 0xff;
    if (found && !is_ipv4) continue;
    std::copy_n(entry.gid.raw, card_.gid.size(), card_.gid.begin());
    gid_index_ = static_cast<std::uint32_t>(i);
    found = true;
    if (is_ipv4) break;
  }
  if (!found) refuse_device(fmt::format("port {} of {} has no address of RoCE v2", options_.port, name_));
}

void Mlx5Device::register_memory(std::byte* begin, std::uint64_t bytes, const NicGpu* gpu) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t within = reinterpret_cast<std::uintptr_t>(begin) % page;
  // NOTE: without IBV_ACCESS_RELAXED_ORDERING, which lets a signal overtake its data.
  const int access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  ibv_mr* region = verbs_.reg_mr_iova(domain_.get(), begin, bytes, within, access);
  const int first_errno = errno;
  std::string call = fmt::format("ibv_reg_mr_iova of {} bytes", bytes);
  if (region == nullptr && gpu != nullptr) {
    const std::uint64_t pages = (within + bytes + page - 1) / page * page;
    const DmaBuffer buffer(*gpu, begin - within, pages);
    region = verbs_.reg_dmabuf_mr(domain_.get(), within, bytes, within, buffer.file, access);
    if (region == nullptr)
      call = fmt::format("ibv_reg_dmabuf_mr (after {}, errno {}: is nvidia_peermem loaded?)", call, first_errno);
  } else {
    errno = first_errno;
  }
  memory_ = lent(region, verbs_.dereg_mr, call, name_);
  card_.key = memory_->rkey;
  card_.base = within;
}

void Mlx5Device::map_queues(std::byte* begin, std::uint64_t bytes, const NicGpu* gpu) {
  mlx5dv_devx_umem* memory = mlx5_.umem_reg(context_.get(), begin, bytes, IBV_ACCESS_LOCAL_WRITE);
  std::string_view call = "mlx5dv_devx_umem_reg";
  if (memory == nullptr && gpu != nullptr) {
    const DmaBuffer buffer(*gpu, begin, bytes);
    mlx5dv_devx_umem_in in{};
    in.size = bytes;
    in.access = IBV_ACCESS_LOCAL_WRITE;
    in.pgsz_bitmap = ~(nic_page - 1);
    in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
    in.dmabuf_fd = buffer.file;
    memory = mlx5_.umem_reg_ex(context_.get(), &in);
    call = "mlx5dv_devx_umem_reg_ex (a DMA buffer of the GPU)";
  }
  queues_ = lent(memory, mlx5_.umem_dereg, call, name_);
}

// One a queue: writes to a register that two threads share might be combined.
Lent<mlx5dv_devx_uar> Mlx5Device::allocate_uar(bool for_gpu) {
  mlx5dv_devx_uar* uar = mlx5_.alloc_uar(context_.get(), uar_uncached_own);
  // A CPU's writes to a blue-flame register may stay in its buffers, a GPU's do not.
  if (uar == nullptr && errno == EOPNOTSUPP)
    uar = mlx5_.alloc_uar(context_.get(), for_gpu ? uar_blue_flame : uar_uncached_shared);
  return lent(uar, mlx5_.free_uar, "mlx5dv_devx_alloc_uar", name_);
}

template <typename Command>
Lent<mlx5dv_devx_obj> Mlx5Device::create(const Command& command, prm::Answer& answer, std::string_view call) {
  mlx5dv_devx_obj* object =
      mlx5_.obj_create(context_.get(), command.data(), command.size(), answer.data(), answer.size());
  if (object == nullptr)
    throw call_error(
        call, name_, errno,
        fmt::format("; the NIC's status {:#x}, syndrome {:#x}", answer.get(prm::status), answer.get(prm::syndrome)));
  return Lent<mlx5dv_devx_obj>(object, [destroy = mlx5_.obj_destroy](mlx5dv_devx_obj* it) { destroy(it); });
}

Mlx5Queue Mlx5Device::create_queue(const QueuePlace& place, bool for_gpu) {
  using prm::inside;
  Mlx5Queue queue;
  queue.uar = allocate_uar(for_gpu);

  prm::CreateCq cq;
  namespace cq_in = prm::create_cq_in;
  const auto in_cq = [](prm::Field field) { return inside(cq_in::context, field); };
  cq.set(prm::opcode, prm::create_cq);
  cq.set(cq_in::cq_umem_valid, 1);
  cq.set(cq_in::cq_umem_id, queues_->umem_id);
  cq.set(cq_in::cq_umem_offset, place.completions);
  cq.set(in_cq(prm::cqc::cc), 1);  // collapsed, and may overrun: the NIC is not told what was read
  cq.set(in_cq(prm::cqc::oi), 1);
  cq.set(in_cq(prm::cqc::log_cq_size), log2_of(place.slots));
  cq.set(in_cq(prm::cqc::uar_page), queue.uar->page_id);
  cq.set(in_cq(prm::cqc::c_eqn), event_queue_);
  cq.set(in_cq(prm::cqc::dbr_umem_valid), 1);
  cq.set(in_cq(prm::cqc::dbr_umem_id), queues_->umem_id);
  cq.set(in_cq(prm::cqc::dbr_addr), place.completions_records);
  prm::Answer answer;
  queue.completions = create(cq, answer, "mlx5dv_devx_obj_create(CREATE_CQ)");
  const auto completions = answer.get(prm::made_number);

  prm::CreateQp qp;
  namespace qp_in = prm::create_qp_in;
  const auto in_qp = [](prm::Field field) { return inside(qp_in::context, field); };
  qp.set(prm::opcode, prm::create_qp);
  qp.set(qp_in::wq_umem_valid, 1);
  qp.set(qp_in::wq_umem_id, queues_->umem_id);
  qp.set(qp_in::wq_umem_offset, place.ring);
  qp.set(in_qp(prm::qpc::st), prm::reliable_connection);
  qp.set(in_qp(prm::qpc::pm_state), prm::migrated);
  qp.set(in_qp(prm::qpc::pd), domain_number_);
  qp.set(in_qp(prm::qpc::uar_page), queue.uar->page_id);
  qp.set(in_qp(prm::qpc::cqn_snd), completions);
  qp.set(in_qp(prm::qpc::cqn_rcv), completions);  // never used: nothing is received
  qp.set(in_qp(prm::qpc::log_sq_size), log2_of(place.slots));
  qp.set(in_qp(prm::qpc::rq_type), prm::no_receive_queue);
  qp.set(in_qp(prm::qpc::dbr_umem_valid), 1);
  qp.set(in_qp(prm::qpc::dbr_umem_id), queues_->umem_id);
  qp.set(in_qp(prm::qpc::dbr_addr), place.pair_record);
  answer = {};
  queue.pair = create(qp, answer, "mlx5dv_devx_obj_create(CREATE_QP)");
  queue.number = static_cast<std::uint32_t>(answer.get(prm::made_number));
  return queue;
}

PortPath Mlx5Device::path_to(const PortCard& peer) {
  PortPath path;
  if (peer.ethernet != card_.ethernet)
    refuse_device(fmt::format("{}'s port is of {}, a peer's of {}", name_, card_.ethernet ? "Ethernet" : "InfiniBand",
                              peer.ethernet ? "Ethernet" : "InfiniBand"));
  if (card_.ethernet == 0) {
    // The first 8 bytes name the subnet.
    if (!std::equal(card_.gid.begin(), card_.gid.begin() + 8, peer.gid.begin()) || peer.lid == 0)
      refuse_device(fmt::format("a peer's port is not in {}'s subnet: queues do not cross routers", name_));
    return path;
  }
  // The kernel knows the peer's hardware address.
  ibv_ah_attr attributes{};
  attributes.is_global = 1;
  attributes.port_num = options_.port;
  attributes.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
  attributes.grh.hop_limit = hops;
  std::copy(peer.gid.begin(), peer.gid.end(), attributes.grh.dgid.raw);
  const auto handle = lent(verbs_.create_ah(domain_.get(), &attributes), verbs_.destroy_ah, "ibv_create_ah", name_);
  mlx5dv_ah described{};
  mlx5dv_obj object{};
  object.ah.in = handle.get();
  object.ah.out = &described;
  expect_zero(mlx5_.init_obj(&object, MLX5DV_OBJ_AH), "mlx5dv_init_obj(AH)");
  std::copy_n(described.av->rmac, path.rmac.size(), path.rmac.begin());
  std::copy_n(described.av->rgid, path.rgid.size(), path.rgid.begin());
  return path;
}

void Mlx5Device::modify(Mlx5Queue& queue, const prm::ModifyQp& command, std::string_view call) {
  prm::Answer answer;
  const int result = mlx5_.obj_modify(queue.pair.get(), command.data(), command.size(), answer.data(), answer.size());
  if (result != 0)
    throw call_error(
        call, name_, result > 0 ? result : errno,
        fmt::format("; the NIC's status {:#x}, syndrome {:#x}", answer.get(prm::status), answer.get(prm::syndrome)));
}

void Mlx5Device::connect(Mlx5Queue& queue, std::uint32_t peers_number, const PortCard& peer, const PortPath& path) {
  using prm::inside;
  constexpr std::uint32_t path_at = prm::modify_qp_in::context + prm::qpc::path;
  const auto in_qp = [](prm::Field field) { return inside(prm::modify_qp_in::context, field); };
  const auto in_path = [](prm::Field field) { return inside(path_at, field); };
  const auto begin = [&](std::uint32_t operation) {
    prm::ModifyQp command;
    command.set(prm::opcode, operation);
    command.set(prm::modify_qp_in::qpn, queue.number);
    return command;
  };

  prm::ModifyQp init = begin(prm::reset_to_init);
  init.set(in_qp(prm::qpc::pm_state), prm::migrated);
  init.set(in_qp(prm::qpc::rre), 1);
  init.set(in_qp(prm::qpc::rwe), 1);
  init.set(in_qp(prm::qpc::rae), 1);
  init.set(in_qp(prm::qpc::atomic_mode), prm::atomics_of_8_bytes);
  init.set(in_path(prm::ads::vhca_port_num), options_.port);
  modify(queue, init, "mlx5dv_devx_obj_modify(RST2INIT_QP)");

  prm::ModifyQp receive = begin(prm::init_to_ready_to_receive);
  receive.set(in_qp(prm::qpc::mtu), std::min(card_.mtu, peer.mtu));
  receive.set(in_qp(prm::qpc::log_msg_max), log_largest_message);
  receive.set(in_qp(prm::qpc::remote_qpn), peers_number);
  receive.set(in_qp(prm::qpc::min_rnr_nak), shortest_receiver_pause);
  receive.set(in_qp(prm::qpc::log_rra_max), std::min(log2_of(card_.responses), 7u));
  receive.set(in_path(prm::ads::vhca_port_num), options_.port);
  if (card_.ethernet != 0) {
    receive.copy(path_at + prm::ads::rmac, path.rmac);
    receive.copy(path_at + prm::ads::rgid, path.rgid);
    receive.set(in_path(prm::ads::src_addr_index), gid_index_);
    receive.set(in_path(prm::ads::hop_limit), hops);
    // Switches spread queues by it.
    receive.set(in_path(prm::ads::udp_sport), first_udp_source | (queue.number & 0x3fffu));
  } else {
    receive.set(in_path(prm::ads::rlid), peer.lid);
  }
  modify(queue, receive, "mlx5dv_devx_obj_modify(INIT2RTR_QP)");

  prm::ModifyQp send = begin(prm::ready_to_receive_to_send);
  // No more reads and atomic operations under way than the peer works on.
  send.set(in_qp(prm::qpc::log_sra_max), std::min({log2_of(requests_), log2_of(peer.responses), 7u}));
  send.set(in_qp(prm::qpc::retry_count), retries);
  send.set(in_qp(prm::qpc::rnr_retry), retries);
  send.set(in_path(prm::ads::ack_timeout), timeout_code(options_.ack_timeout));
  modify(queue, send, "mlx5dv_devx_obj_modify(RTR2RTS_QP)");
}

}  // namespace imbrex::shmem::mlx5

#endif
