#include "apps/nic/mlx5_libraries.hpp"

#include <dlfcn.h>

namespace imbrex::shmem::mlx5 {

LoadedLibrary::LoadedLibrary(const std::string& name)
    : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* text = dlerror();
  throw Error(ErrorCode::runtime_failure,
              fmt::format("{} cannot be loaded ({})", name, text != nullptr ? text : "no reason given"));
}

void* LoadedLibrary::address(const char* symbol) const {
  void* found = dlsym(handle_, symbol);
  if (found == nullptr)
    throw Error(ErrorCode::runtime_failure, fmt::format("{} has no {}: a newer version is needed", name_, symbol));
  return found;
}

#if IMBREX_NIC_HAS_MLX5

Verbs::Verbs(const std::string& name) {
  const LoadedLibrary library(name);
  library.find(get_device_list, "ibv_get_device_list");
  library.find(free_device_list, "ibv_free_device_list");
  library.find(get_device_name, "ibv_get_device_name");
  library.find(close_device, "ibv_close_device");
  library.find(query_device, "ibv_query_device");
  library.find(query_port, "ibv_query_port");
  library.find(query_gid, "_ibv_query_gid_ex");
  library.find(alloc_pd, "ibv_alloc_pd");
  library.find(dealloc_pd, "ibv_dealloc_pd");
  library.find(reg_mr_iova, "ibv_reg_mr_iova");
  library.find(reg_dmabuf_mr, "ibv_reg_dmabuf_mr");
  library.find(dereg_mr, "ibv_dereg_mr");
  library.find(create_ah, "ibv_create_ah");
  library.find(destroy_ah, "ibv_destroy_ah");
}

Mlx5Calls::Mlx5Calls(const std::string& name) {
  const LoadedLibrary library(name);
  library.find(is_supported, "mlx5dv_is_supported");
  library.find(open_device, "mlx5dv_open_device");
  library.find(init_obj, "mlx5dv_init_obj");
  library.find(umem_reg, "mlx5dv_devx_umem_reg");
  library.find(umem_reg_ex, "mlx5dv_devx_umem_reg_ex");
  library.find(umem_dereg, "mlx5dv_devx_umem_dereg");
  library.find(query_eqn, "mlx5dv_devx_query_eqn");
  library.find(alloc_uar, "mlx5dv_devx_alloc_uar");
  library.find(free_uar, "mlx5dv_devx_free_uar");
  library.find(obj_create, "mlx5dv_devx_obj_create");
  library.find(obj_modify, "mlx5dv_devx_obj_modify");
  library.find(obj_destroy, "mlx5dv_devx_obj_destroy");
}

#endif

}  // namespace imbrex::shmem::mlx5
