// Which GPU a rank uses.
#pragma once

#include "imbrex/gpu.hpp"
#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// GPUs that this process may use; 0 where there is no driver. Initialises CUDA: a process that forks its ranks asks
/// survey_gpus instead.
int device_count() noexcept;

/// Makes a GPU the calling thread's and returns its number: the one that the world's options name, else the rank's
/// where this process sees one for every rank, the only one where it sees one, as launchers arrange it. With
/// `ranks_per_gpu`, or the world's option of that name, so many ranks share each GPU. Collective. Throws
/// Error(runtime_failure) if neither holds, more ranks than that have the same GPU, or one cannot reach another's
/// memory, and Error(invalid_input) where the world's sms_for_others leave some rank none of its GPU's SMs. The GPU of
/// another process may be out of this one's sight; then mapping its memory tells.
int select_device(World& world, int ranks_per_gpu = 1);

/// Whether ranks of one of this process's worlds share the GPU, or leave SMs of it to kernels of others: no kernel may
/// then take SMs before it runs. Any thread may call it.
bool is_shared(int device);

/// SMs that kernels of this process run on: those of the GPU, or of the part that MPS gives the process's context. The
/// device is selected. Any thread may call it.
int sms_of(int device);

/// What the driver says of a GPU, asked now. Throws Error(runtime_failure).
Gpu ask_gpu(int device);

/// The GPU's properties, asked once in this process. Any thread may call it.
const Gpu& gpu_of(int device);

}  // namespace imbrex::runtime
