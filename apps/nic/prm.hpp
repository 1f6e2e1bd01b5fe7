// Commands of mlx5 NICs that make queue pairs, as bits: the layout of NVIDIA's Programmer's Reference Manual, of which
// rdma-core and Linux have the same in mlx5_ifc.h. What is named here is what mlx5_device.cpp sets and reads;
// tests/shmem/mlx5/prm_test.cpp adds the manual's rows up, and compares.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "apps/common/check.hpp"
#include "apps/nic/request.hpp"

namespace imbrex::shmem::mlx5::prm {

/// Bits of a command: the first one's place, counted from the highest bit of the first byte, and how many there are. A
/// field of up to 32 bits lies in one word of 4 bytes; one of 64 in two.
struct Field {
  std::uint32_t at, bits;
};

/// A field of what itself lies at a place of something larger.
constexpr Field inside(std::uint32_t at, Field field) { return {at + field.at, field.bits}; }

/// A command, or what comes back, zero at first.
template <std::uint32_t bits>
class Block {
  static_assert(bits % 32 == 0);

 public:
  /// Throws Error(invalid_input) for a value that the field does not hold.
  void set(Field field, std::uint64_t value) {
    IMBREX_EXPECTS(field.bits >= 64 || value >> field.bits == 0, "{:#x} does not fit in a command's {} bits at {:#x}",
                   value, field.bits, field.at);
    if (field.bits == 64) {
      set({field.at, 32}, value >> 32);
      set({field.at + 32, 32}, value & 0xffffffffu);
      return;
    }
    std::uint32_t& word = words_[field.at / 32];
    const std::uint32_t shift = 32 - field.at % 32 - field.bits;
    const auto mask = static_cast<std::uint32_t>(((std::uint64_t{1} << field.bits) - 1) << shift);
    word = be32((be32(word) & ~mask) | static_cast<std::uint32_t>(value << shift));
  }

  std::uint64_t get(Field field) const {
    if (field.bits == 64) return get({field.at, 32}) << 32 | get({field.at + 32, 32});
    const std::uint32_t word = be32(words_[field.at / 32]);
    return word >> (32 - field.at % 32 - field.bits) & ((std::uint64_t{1} << field.bits) - 1);
  }

  /// Bytes as they are, such as an address of a port. `at` is a multiple of 8.
  void copy(std::uint32_t at, std::span<const std::uint8_t> bytes) {
    std::memcpy(reinterpret_cast<std::byte*>(words_.data()) + at / 8, bytes.data(), bytes.size());
  }

  void* data() { return words_.data(); }
  const void* data() const { return words_.data(); }
  static constexpr std::size_t size() { return bits / 8; }

 private:
  std::array<std::uint32_t, bits / 32> words_{};
};

/// What all commands begin with, and all that comes back.
inline constexpr Field opcode{0x00, 16}, status{0x00, 8}, syndrome{0x20, 32};
enum : std::uint32_t {
  create_cq = 0x400,
  create_qp = 0x500,
  reset_to_init = 0x502,
  init_to_ready_to_receive = 0x503,
  ready_to_receive_to_send = 0x504
};
/// What comes back has the new object's number there.
inline constexpr Field made_number{0x48, 24};
using Answer = Block<0x80>;

// ---------------------------------------------------------------------------------------------- completion queues

/// The context, which lies in CREATE_CQ.
namespace cqc {
inline constexpr std::uint32_t bits = 0x200;
inline constexpr Field dbr_umem_valid{0x06, 1}, cqe_sz{0x08, 3}, cc{0x0b, 1}, oi{0x0e, 1}, dbr_umem_id{0x20, 32},
    log_cq_size{0x63, 5}, uar_page{0x68, 24}, c_eqn{0xb8, 8}, log_page_size{0xc3, 5}, dbr_addr{0x1c0, 64};
}  // namespace cqc

namespace create_cq_in {
inline constexpr std::uint32_t bits = 0x880, context = 0x80;
inline constexpr Field cq_umem_offset{0x280, 64}, cq_umem_id{0x2c0, 32}, cq_umem_valid{0x2e0, 1};
}  // namespace create_cq_in
using CreateCq = Block<create_cq_in::bits>;

// --------------------------------------------------------------------------------------------------- queue pairs

/// The path to a peer's port, which lies in a queue pair's context.
namespace ads {
inline constexpr std::uint32_t bits = 0x160, rgid = 0x80, rmac = 0x130;
inline constexpr Field pkey_index{0x10, 16}, grh{0x28, 1}, rlid{0x30, 16}, ack_timeout{0x40, 5},
    src_addr_index{0x48, 8}, hop_limit{0x58, 8}, udp_sport{0x110, 16}, vhca_port_num{0x128, 8};
}  // namespace ads

/// The context, which lies in CREATE_QP and in the commands that change a queue pair's state.
namespace qpc {
inline constexpr std::uint32_t bits = 0x740, path = 0xc0;
inline constexpr Field st{0x08, 8}, pm_state{0x13, 2}, pd{0x28, 24}, mtu{0x40, 3}, log_msg_max{0x43, 5},
    log_rq_size{0x49, 4}, log_sq_size{0x51, 4}, uar_page{0x68, 24}, log_page_size{0xa3, 5}, remote_qpn{0xa8, 24},
    log_ack_req_freq{0x380, 4}, log_sra_max{0x388, 3}, retry_count{0x38d, 3}, rnr_retry{0x390, 3},
    next_send_psn{0x3c8, 24}, cqn_snd{0x3e8, 24}, log_rra_max{0x488, 3}, atomic_mode{0x48c, 4}, rre{0x490, 1},
    rwe{0x491, 1}, rae{0x492, 1}, min_rnr_nak{0x4a3, 5}, next_rcv_psn{0x4a8, 24}, cqn_rcv{0x4e8, 24},
    dbr_addr{0x500, 64}, rq_type{0x565, 3}, dbr_umem_valid{0x683, 1}, dbr_umem_id{0x720, 32};
}  // namespace qpc

namespace create_qp_in {
inline constexpr std::uint32_t bits = 0x880, context = 0xc0;
inline constexpr Field wq_umem_offset{0x800, 64}, wq_umem_id{0x840, 32}, wq_umem_valid{0x860, 1};
}  // namespace create_qp_in
using CreateQp = Block<create_qp_in::bits>;

/// RST2INIT, INIT2RTR and RTR2RTS look alike.
namespace modify_qp_in {
inline constexpr std::uint32_t bits = 0x880, context = 0xc0;
inline constexpr Field qpn{0x48, 24}, opt_param_mask{0x80, 32};
}  // namespace modify_qp_in
using ModifyQp = Block<modify_qp_in::bits>;

/// Values of fields.
inline constexpr std::uint32_t reliable_connection = 0, migrated = 3, no_receive_queue = 3, atomics_of_8_bytes = 3;

}  // namespace imbrex::shmem::mlx5::prm
