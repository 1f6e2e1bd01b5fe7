#include "imbrex/machine.hpp"

namespace imbrex {

Machine nominal_host_machine() {
  constexpr const char* nominal = "nominal; fixed, so that every rank and every run chooses the same plan";
  const auto constant = [&](double value) { return Constant{value, Provenance::unverified, nominal}; };
  Machine machine;
  machine.name = "nominal-host";
  machine.about = "one core a rank, memory shared by all ranks";
  machine.devices = 64;
  machine.sms = constant(1);
  machine.memory_bandwidth = machine.sm_memory_bandwidth = constant(2e10);
  machine.l2_bytes = constant(8 << 20);
  for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3}) machine.sm_rate[type] = constant(5e10);
  machine.tiles = {{128, 128, constant(1), constant(0), constant(0), {}}};
  machine.sustained_ratio = constant(1);
  machine.sustained_onset = constant(1);
  machine.launch_gap = machine.copy_flag = machine.copy_latency = machine.fence = machine.collective_sms = constant(0);
  machine.copy_fixed = constant(1e-6);
  machine.copy_bandwidth = machine.store_sm_bandwidth = machine.store_bandwidth = constant(1e10);
  machine.egress_bandwidth = machine.ingress_bandwidth = constant(1e10);
  machine.link_latency = machine.flag_latency_local = machine.poll = constant(1e-7);
  machine.flag_latency = constant(2e-7);
  machine.all_gather = machine.reduce_scatter = machine.all_reduce =
      machine.all_to_all = {{{4096, 5e-6}, {1 << 24, 1.7e-3}}, Provenance::unverified, nominal};
  // Any codec and element type, about: a core packs and unpacks, whatever the codes' width.
  machine.coding_bandwidth = constant(1e9);
  return machine;
}

}  // namespace imbrex
