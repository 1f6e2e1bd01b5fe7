// libibverbs and libmlx5, found when a program asks for a NIC: nothing is linked with them, and a program starts where
// they are not installed. For mlx5_device.cpp and mlx5_nic.cpp alone.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "imbrex/error.hpp"

#if __has_include(<infiniband/mlx5dv.h>)
#define IMBREX_NIC_HAS_MLX5 1
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#else
#define IMBREX_NIC_HAS_MLX5 0
#endif

namespace imbrex::shmem::mlx5 {

/// A library of the machine. It stays loaded: those of verbs keep threads and lists of their own.
class LoadedLibrary {
 public:
  /// Throws Error(runtime_failure) naming it where it cannot be loaded.
  explicit LoadedLibrary(const std::string& name);

  /// Throws Error(runtime_failure) naming both where it has no such function.
  template <typename Function>
  void find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;

  std::string name_;
  void* handle_;
};

/// "ibv_alloc_pd on mlx5_0 failed: errno 12 (Cannot allocate memory)".
inline Error call_error(std::string_view call, std::string_view device, int number, std::string_view more = {}) {
  return Error(ErrorCode::runtime_failure, fmt::format("{} on {} failed: errno {} ({}){}", call, device, number,
                                                       std::generic_category().message(number), more));
}

#if IMBREX_NIC_HAS_MLX5

/// Functions by their names without prefix. NOTE: verbs.h has macros and inline functions of some names, which end in
/// calls that a linker would have to find.
struct Verbs {
  explicit Verbs(const std::string& name);

  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  int (*query_port)(ibv_context*, std::uint8_t, ibv_port_attr*);
  decltype(&::_ibv_query_gid_ex) query_gid;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  ibv_mr* (*reg_mr_iova)(ibv_pd*, void*, std::size_t, std::uint64_t, int);
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_ah) create_ah;
  decltype(&::ibv_destroy_ah) destroy_ah;
};

struct Mlx5Calls {
  explicit Mlx5Calls(const std::string& name);

  decltype(&::mlx5dv_is_supported) is_supported;
  decltype(&::mlx5dv_open_device) open_device;
  decltype(&::mlx5dv_init_obj) init_obj;
  decltype(&::mlx5dv_devx_umem_reg) umem_reg;
  decltype(&::mlx5dv_devx_umem_reg_ex) umem_reg_ex;
  decltype(&::mlx5dv_devx_umem_dereg) umem_dereg;
  decltype(&::mlx5dv_devx_query_eqn) query_eqn;
  decltype(&::mlx5dv_devx_alloc_uar) alloc_uar;
  decltype(&::mlx5dv_devx_free_uar) free_uar;
  decltype(&::mlx5dv_devx_obj_create) obj_create;
  decltype(&::mlx5dv_devx_obj_modify) obj_modify;
  decltype(&::mlx5dv_devx_obj_destroy) obj_destroy;
};

/// What a library gave, and gets back.
template <typename T>
using Lent = std::unique_ptr<T, std::function<void(T*)>>;

/// Throws as call_error says unless there is an object.
template <typename T, typename Free>
Lent<T> lent(T* object, Free free, std::string_view call, std::string_view device) {
  if (object == nullptr) throw call_error(call, device, errno);
  return Lent<T>(object, [free](T* it) { free(it); });
}

#endif

}  // namespace imbrex::shmem::mlx5
