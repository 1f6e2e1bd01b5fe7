// What `imbrex tune --card` measured of this machine's GPUs: a machine file in the user's cache folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "imbrex/machine.hpp"

namespace imbrex::machine {

/// The version of NVIDIA's kernel module on this machine, "580.65.06"; "none" without one.
std::string driver_version();

/// Where the constants of GPUs of that name lie, as this driver and this version of Imbrex run them:
/// FOLDER/nvidia-h200_580.65.06_0.1.0.json. FOLDER is IMBREX_CACHE, or imbrex in XDG_CACHE_HOME, or .cache/imbrex in
/// HOME; empty where none of these is set. `driver`: its version, as NVIDIA's kernel module says it; empty: this
/// machine's.
std::string card_file(std::string_view gpu, std::string_view driver = {},
                      const base::Environment& environment = base::environment());

/// The machine in that file; none where there is no file. Throws Error(invalid_input), naming the file, where it is no
/// valid machine, or of other GPUs.
std::optional<Machine> measured_card(std::string_view gpu, const base::Environment& environment = base::environment());

/// Removes that file where measured_card throws for it, so that the GPUs can be measured anew. Returns why it was
/// removed; empty where it was not.
std::string remove_broken_card(std::string_view gpu, const base::Environment& environment = base::environment());

}  // namespace imbrex::machine
