// Lookups on one rank's GPU: launches of the kernel, as bag_rounds says them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "embedding/cuda/cuda_look_up.hpp"
#include "execute/cuda/embedding/bag_rounds.hpp"
#include "problem/embedding.hpp"

namespace imbrex::cuda {

class BagLaunches final : public BlockLaunches {
 public:
  /// As WorkOnGpu::make.
  BagLaunches(const LaunchPlace& place, const std::vector<BlockLaunch>& launches);

  void launch(std::size_t i, const Addresses& operands, CudaStream stream, bool captured) override;
  std::int64_t take_misfits(Misfits misfits, CudaStream stream) override;

 private:
  // What launches of the same columns share.
  struct LookUp {
    std::vector<BagColumns> columns;
    embedding::LookUpShape shape;
    std::unique_ptr<embedding::CudaLookUp> kernel{};
  };
  struct Launch {
    std::size_t look_up = 0;
    embedding::LookUpRounds rounds;
    std::vector<BagStrip> strips;
  };
  Launch launch_of(const BagRounds& rounds, const LaunchPlace& place);
  std::size_t look_up_of(const BagRounds& rounds, std::int64_t batch);
  std::vector<embedding::Table> tables_of(const LookUp& look_up, const embedding::Table* given) const;
  void bind(const embedding::Tables& tables, CudaStream stream, bool captured);

  TableRows rows_;
  problem::OwnShards own_;
  std::vector<LookUp> look_ups_;
  std::vector<std::vector<Launch>> launches_;
  std::vector<embedding::Table> bound_;  // tables of the last call
  bool captured_ = false;
};

}  // namespace imbrex::cuda
