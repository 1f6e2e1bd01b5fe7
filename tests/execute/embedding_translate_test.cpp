// What the CUDA executor launches for plans of embedding_all_to_all, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "execute/cuda/embedding/look_up_plan.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/work_on_gpu.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

Problem tables_on(int ranks, std::int64_t part_rows) {
  Problem p{embedding_all_to_all, ranks * part_rows, 0, 0, ranks, Type::fp16};
  std::int64_t col = 0;
  for (int i = 0; i < 2 * ranks; ++i) {
    p.tables.shards.push_back({i % ranks, 100, 8, col, 3});
    col += 8;
  }
  return p;
}

std::string refusal_on_gpus(const Plan& plan) { return cuda::refusal_of_plan(plan); }

TEST(EmbeddingTranslate, FusedPlansAreTheKernels) {
  for (const int ranks : {1, 2, 5})
    for (const std::int64_t tile_m : {1, 3, 10, 64}) {
      Knobs knobs;
      knobs.tile_m = tile_m;
      Plan plan = make_plan(tables_on(ranks, 10), Strategy::fused, knobs);
      ASSERT_NE(cuda::only_work(plan), nullptr);
      EXPECT_EQ(refusal_on_gpus(plan), "");
      const cuda::LookUpPlan slices = cuda::look_up_plan(plan);
      EXPECT_EQ(slices.slice_rows, std::min<std::int64_t>(tile_m, 10));
      EXPECT_EQ(slices.slices, (10 + slices.slice_rows - 1) / slices.slice_rows);
      if (ranks == 1) continue;
      auto& tasks = plan.ranks[1].queues[0].tasks;
      std::swap(tasks[1], tasks.back());
      EXPECT_NE(refusal_on_gpus(plan).find("whose tasks are those of strategy fused"), std::string::npos)
          << refusal_on_gpus(plan);
    }
  Knobs knobs;
  knobs.tile_m = 1;
  const std::string many = refusal_on_gpus(make_plan(tables_on(2, 65), Strategy::fused, knobs));
  EXPECT_NE(many.find("knob tile_m = 1: 65 blocks of each rank's 65 rows"), std::string::npos) << many;
}

TEST(EmbeddingTranslate, LibraryPlansLookUpExchangeAndCopy) {
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
    for (const int ranks : {1, 2, 4}) {
      Knobs knobs;
      knobs.chunks = 3;
      const Plan plan = make_plan(tables_on(ranks, 9), strategy, knobs);
      EXPECT_EQ(cuda::only_work(plan), nullptr);
      EXPECT_EQ(refusal_on_gpus(plan), "");
      const int chunks = strategy == Strategy::sequential ? 1 : 3;
      for (int rank = 0; rank < ranks; ++rank) {
        const cuda::LibraryProgram program = cuda::library_program(plan, rank);
        std::map<std::size_t, int> kinds;  // by place in the variant
        for (const cuda::LibraryStep& step : program.steps) ++kinds[step.work.index()];
        EXPECT_EQ(kinds[4], chunks * ranks);                        // blocks
        EXPECT_EQ(kinds[3], ranks > 1 ? chunks : 0);                // exchanges
        EXPECT_EQ(kinds[1], chunks * ranks * (ranks > 1 ? 2 : 1));  // copies of each run of columns
        EXPECT_EQ(program.forked.size(), chunks > 1 ? 2u : 1u);     // streams
      }
    }
}

TEST(EmbeddingTranslate, OtherBlocksAreRefused) {
  const auto refused = [](const std::string& text, auto&& change) {
    Plan plan = make_plan(tables_on(2, 4), Strategy::sequential, {});
    change(std::get<Block>(plan.ranks[0].queues[0].tasks[0].work));
    EXPECT_NE(refusal_on_gpus(plan).find(text), std::string::npos) << refusal_on_gpus(plan);
  };
  refused("in blocks without shares", [](Block& b) { b.shares = 2; });
  refused("in blocks without shares", [](Block& b) { b.args[3] = 1; });
  refused("into a workspace of the rank", [](Block& b) { b.stores[0].to.rows = 2; });
}

}  // namespace
}  // namespace imbrex
