// What the steps of a plan with library collectives launch on one rank's GPU, one by one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "execute/cuda/libraries/library_gemm.hpp"
#include "execute/cuda/libraries/library_memory.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/libraries/shared_libraries.hpp"
#include "execute/cuda/work_on_gpu.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

class LibrarySteps {
 public:
  /// Collective; the device is selected, all arguments outlive it. Makes the products, their memory, and the
  /// communicators. Throws Error(invalid_input) if cuBLASLt knows no way for a product.
  /// `workspaces`: where they lie, by buffer; empty: they are taken here. `most_sms`: that a collective of NCCL's may
  /// take; 0: as many as it likes.
  LibrarySteps(SharedLibraries& libraries, const Plan& plan, const LibraryProgram& program,
               std::vector<std::byte*> workspaces = {}, int most_sms = 0);
  /// Not collective: the libraries lack nothing for the plan, one of those that have `room` in turn.
  LibrarySteps(SharedLibraries& libraries, const Plan& plan, const LibraryProgram& program, SharedRoom& room);

  /// Queues step `i` of the program, once.
  void launch(std::size_t i, const Addresses& operands, cudaStream_t stream) const;

  /// As Execution::codec_report; what was launched is complete.
  CodecReport codec_report() const;

  /// As Execution::take_misfits, of what is over or on `stream`.
  std::int64_t take_misfits(Misfits misfits, cudaStream_t stream) const;

  /// Keeps the memory from being freed, which would wait for the device.
  void leak();

 private:
  const Buffer& buffer(const Region& r) const { return plan_.buffers[static_cast<std::size_t>(r.buffer)]; }
  std::byte* at(const Region& r, const Addresses& operands) const { return memory_.at(r, operands); }
  void make_communicators(int most_sms);
  void find_communicators(int most_sms);
  void make_gemms(SharedRoom* room);
  void make_reports();
  void make_blocks();
  void copy(const Transfer& transfer, const Addresses& operands, cudaStream_t stream) const;
  /// Behind what wrote `to`: where its rows lie apart, too.
  void set_apart(const Region& to, const Addresses& operands, cudaStream_t stream) const;
  void sum(const Reduction& reduction, const Addresses& operands, cudaStream_t stream) const;
  /// 0 where a product's scales are used where they lie.
  std::size_t moved_scale_bytes(const Product& p) const;
  void multiply(const Product& p, const LibraryGemm& gemm, void* scratch, const Addresses& operands,
                cudaStream_t stream) const;
  void collective(const Collective& c, runtime::Communicator* communicator, const Addresses& operands,
                  cudaStream_t stream) const;

  SharedLibraries& libraries_;
  CudaCollectives* own_ = nullptr;  // run those of backend imbrex
  const Plan& plan_;
  const LibraryProgram& program_;
  LibraryMemory memory_;
  std::vector<std::unique_ptr<LibraryGemm>> gemms_;              // by step
  std::vector<runtime::Communicator*> communicators_;            // by step; null: none of NCCL's
  RankTable blocks_;                                             // the program's blocks, without signals
  std::vector<std::size_t> launch_of_;                           // by step: a block's, among those of its kind
  std::map<WorkKind, std::unique_ptr<BlockLaunches>> launches_;  // of blocks
  std::vector<KeptReport*> reports_;                             // by step; null: no codec. In kept_
  RawMemory kept_;
  std::vector<std::shared_ptr<void>> scratch_;  // of products, by stream
};

}  // namespace imbrex::cuda
