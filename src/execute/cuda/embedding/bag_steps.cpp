#include "execute/cuda/embedding/bag_steps.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "embedding/same_table.hpp"
#include "execute/cuda/embedding/blank_tables.hpp"
#include "plan/bags.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

BagSteps::BagSteps(const Plan& plan, int rank, std::int64_t pitch) : tables_(blank_tables(plan.problem, rank, false)) {
  const embedding::LookUpShape shape{plan.problem.m, plan.problem.type, pitch};
  look_up_ = std::make_unique<embedding::CudaLookUp>(
      embedding::Tables{tables_.data(), base::narrow<std::int32_t>(std::ssize(tables_), "tables"),
                        plan.problem.tables.rows},
      shape);
}

void BagSteps::launch(const Block& block, void* to, const Addresses& operands, CudaStream stream) {
  IMBREX_EXPECTS(operands.given != nullptr, "no tables are given");
  const auto& given = *static_cast<const plan::RankBags*>(operands.given);
  IMBREX_EXPECTS(std::cmp_equal(given.tables.count, tables_.size()), "{} tables are given; there must be {}",
                 given.tables.count, tables_.size());
  std::vector<embedding::Table> own(given.tables.tables, given.tables.tables + given.tables.count);
  for (std::size_t i = 0; i < own.size(); ++i) own[i].column = tables_[i].column;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  // A graph's replay may have bound others since.
  captured_ = captured_ || status != cudaStreamCaptureStatusNone;
  if (captured_ || !std::equal(bound_.begin(), bound_.end(), own.begin(), own.end(), embedding::same_table)) {
    look_up_->bind({own.data(), given.tables.count, given.tables.type}, stream);
    bound_ = std::move(own);
  }
  look_up_->launch_rows(given.bags, block.args[0], block.args[1], to, stream);
}

std::int64_t BagSteps::take_misfits(Misfits misfits, CudaStream stream) { return look_up_->findings(stream, misfits); }

}  // namespace imbrex::cuda
