#include "imbrex/options.hpp"

#include <fmt/format.h>

#include "imbrex/error.hpp"

namespace imbrex {

std::string_view name_of(Device device) {
  switch (device) {
    case Device::automatic: return "auto";
    case Device::cpu: return "cpu";
    case Device::cuda: return "cuda";
  }
  return "auto";
}

Device parse_device(std::string_view name) {
  for (const Device device : {Device::automatic, Device::cpu, Device::cuda})
    if (name_of(device) == name) return device;
  throw Error(ErrorCode::invalid_input, fmt::format("device '{}': it must be auto, cpu or cuda", name));
}

}  // namespace imbrex
