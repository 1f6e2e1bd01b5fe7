// A communicator's votes.
#include "collectives/cuda/vote/vote.hpp"

#include <algorithm>

#include "codec/bound.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

void load_vote_kernels() {
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32}) {
    cudaFuncAttributes attributes{};
    IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, vote_kernel(type)));
  }
}

void CudaCollectives::vote(const void* in, std::int64_t count, Type type, const CodecPair& pair, QuantizedSteps steps,
                           float tolerance, cudaStream_t stream, std::uint32_t blocks) {
  validate(pair.reduce_scatter);
  validate(pair.all_gather);
  expect_operands(in, in, count, type);
  IMBREX_EXPECTS(steps != QuantizedSteps::ring, "a ring takes no tolerance");
  IMBREX_EXPECTS(blocks <= max_comm_blocks, "{} blocks: at most {}", blocks, max_comm_blocks);
  IMBREX_EXPECTS(count <= std::int64_t{1} << 33, "{} values through a codec: at most 2^33", count);
  if (count == 0) return;
  const int ranks = static_cast<int>(comm_.ranks), group = pair.reduce_scatter.group;
  VoteArgs a{};
  a.comm = comm_;
  a.in = in;
  a.count = static_cast<std::uint64_t>(count);
  a.value_blocks =
      static_cast<std::uint32_t>((count + group - 1) / group * (group / static_cast<int>(quantized_block_values)));
  a.pair = pair;
  a.two_shot = steps == QuantizedSteps::two_shot;
  a.allowed = codec::part_allowance(tolerance, a.two_shot ? ranks + 1 : ranks);
  blocks = own_blocks(blocks, std::clamp((a.value_blocks + vote_threads - 1) / vote_threads, 1u, processors_));
  a.source_stride = std::uint64_t{16} * max_comm_blocks;
  launch(vote_kernel(type), blocks, vote_threads, &a, stream);
}

}  // namespace imbrex::cuda
