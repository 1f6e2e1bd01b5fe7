// An mlx5 device that is open, and the objects that are made on it. For mlx5_nic.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "apps/nic/mlx5_libraries.hpp"
#include "apps/nic/mlx5_nic.hpp"
#include "apps/nic/prm.hpp"

#if IMBREX_NIC_HAS_MLX5

namespace imbrex::shmem::mlx5 {

/// What a PE tells its peers of its port. By value between hosts.
struct PortCard {
  std::array<std::uint8_t, 16> gid{};
  std::uint16_t lid = 0;
  std::uint8_t ethernet = 0;
  std::uint8_t mtu = 0;         ///< as ibv_mtu counts them
  std::uint32_t responses = 0;  ///< reads and atomic operations of a peer that it works on at once
  std::uint32_t key = 0;        ///< of its memory
  std::uint32_t queues = 0;
  std::uint64_t base = 0;  ///< address of its memory's first byte
};

/// The way to a peer's port over Ethernet.
struct PortPath {
  std::array<std::uint8_t, 6> rmac{};
  std::array<std::uint8_t, 16> rgid{};
};

/// Places in the memory that map_queues was given.
struct QueuePlace {
  std::uint64_t ring, completions;                 ///< at multiples of 4096
  std::uint64_t pair_record, completions_records;  ///< of 8 bytes, at multiples of 64
  std::uint32_t slots;
};

/// A queue pair with its completion queue and its doorbell, which go in this order.
struct Mlx5Queue {
  Lent<mlx5dv_devx_uar> uar;
  Lent<mlx5dv_devx_obj> completions, pair;
  std::uint32_t number = 0;
};

class Mlx5Device {
 public:
  /// Throws Error(runtime_failure), as all here, with the call, its errno and the device.
  explicit Mlx5Device(const Mlx5Options& options);

  const std::string& name() const { return name_; }
  const PortCard& card() const { return card_; }
  std::uint32_t local_key() const { return memory_->lkey; }

  /// Memory that requests reach, as one region. Its address is what `begin` has within a page, since the kernel needs
  /// that of both to agree. `gpu`: whose memory it is, or none.
  void register_memory(std::byte* begin, std::uint64_t bytes, const NicGpu* gpu);
  /// Memory for rings, records and completions.
  void map_queues(std::byte* begin, std::uint64_t bytes, const NicGpu* gpu);

  Mlx5Queue create_queue(const QueuePlace& place, bool for_gpu);
  PortPath path_to(const PortCard& peer);
  /// From its reset state to where it sends.
  void connect(Mlx5Queue& queue, std::uint32_t peers_number, const PortCard& peer, const PortPath& path);

 private:
  void open();
  void query_port();
  void choose_gid(const ibv_port_attr& port);
  void expect_zero(int result, std::string_view call) const;
  Lent<mlx5dv_devx_uar> allocate_uar(bool for_gpu);
  template <typename Command>
  Lent<mlx5dv_devx_obj> create(const Command& command, prm::Answer& answer, std::string_view call);
  void modify(Mlx5Queue& queue, const prm::ModifyQp& command, std::string_view call);

  Mlx5Options options_;
  Verbs verbs_;
  Mlx5Calls mlx5_;
  std::string name_ = "this host";  // until the device is known
  Lent<ibv_context> context_;
  Lent<ibv_pd> domain_;
  Lent<ibv_mr> memory_;
  Lent<mlx5dv_devx_umem> queues_;
  std::uint32_t domain_number_ = 0, event_queue_ = 0, requests_ = 0;
  std::uint32_t gid_index_ = 0;
  PortCard card_;
};

}  // namespace imbrex::shmem::mlx5

#endif
