// Choosing among kernels, without any: by what a list says of them.
#include "execute/cuda/products/kernel_choice.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>

#include "execute/cuda/libraries/library_translate.hpp"
#include "imbrex/error.hpp"
#include "support/kernel_list.hpp"

namespace imbrex {
namespace {

using cuda::KernelVariant;
using cuda::Sharing;

cuda::TileShape shape(std::int64_t m, std::int64_t n, int cluster, Sharing sharing = Sharing::b) {
  return {m, n, cluster, true, 16, 16, sharing};
}

// Kernels of a Hopper GPU with 132 SMs, unless a test says otherwise.
struct Choice {
  std::deque<KernelVariant> variants;
  std::map<std::string_view, int> workers;
  std::set<std::string_view> asked;  // for their workers
  int generation = 9;
  CudaOptions options;
  KernelVariant plain{"plain", Type::bf16, {1 << 20, 1 << 20, 1, false}, false, true};

  Choice& add(std::string_view name, const cuda::TileShape& tile, int at_once, bool anywhere = false,
              Type type = Type::bf16, Layout b_layout = Layout::row_major) {
    variants.push_back({name, type, tile, true, anywhere, b_layout});
    workers[name] = at_once;
    return *this;
  }

  // The kernel of one rank's plan, or why there is none.
  std::string of(const Problem& problem, Knobs knobs) {
    asked.clear();
    workers.try_emplace(plain.name, 132);
    cuda::Kernels kernels{{}, &plain, generation, [&](const KernelVariant& k) {
                            asked.insert(k.name);
                            return workers.at(k.name);
                          }};
    for (const KernelVariant& k : variants) kernels.tensor_core.push_back(&k);
    const auto tasks = plan::make_rank_tasks(problem, Strategy::fused, knobs, 0);
    const cuda::Surveyed surveyed = cuda::survey(*tasks, 0);
    try {
      return std::string(
          cuda::choose_kernel(tasks->frame(), surveyed.tables, surveyed.tables.tiles(), kernels, options).name);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return error.what();
    }
  }
};

constexpr Problem product{Operator::gemm_reduce_scatter, 2048, 2048, 512, 1, Type::bf16};  // 256 tiles of 128 x 128
const Knobs by_store{.transport = Transport::store};

Choice two_clusters(int single, int pairs) {
  return Choice().add("single", shape(128, 128, 1), single).add("pairs", shape(128, 128, 2), pairs);
}

TEST(KernelChoice, TakesTheFewestWaves) {
  EXPECT_EQ(two_clusters(132, 60).of(product, by_store), "single");  // 2 and 3 waves
  EXPECT_EQ(two_clusters(120, 66).of(product, by_store), "pairs");   // 3 and 2
  EXPECT_EQ(two_clusters(132, 66).of(product, by_store), "pairs");   // which share B
  EXPECT_EQ(two_clusters(0, 1).of(product, by_store), "pairs");      // 0: does not run here
}

TEST(KernelChoice, OfEqualsTakesTheFirst) {
  const cuda::TileShape tile = shape(128, 128, 1);
  EXPECT_EQ(Choice().add("x", tile, 132).add("y", tile, 132).of(product, by_store), "x");
  EXPECT_EQ(Choice().add("y", tile, 132).add("x", tile, 132).of(product, by_store), "y");
}

TEST(KernelChoice, TakesWhatFitsTypeAndTiles) {
  Choice choice = two_clusters(132, 66);
  choice.add("small", shape(64, 128, 1), 132)
      .add("fp16", shape(128, 128, 1), 132, false, Type::fp16)
      .add("wide", shape(128, 256, 2), 66);
  EXPECT_EQ(choice.of(product, by_store), "pairs");
  EXPECT_EQ(choice.asked, (std::set<std::string_view>{"single", "pairs", "wide"}));
  Knobs knobs = by_store;
  knobs.tile_n = 256;
  EXPECT_EQ(choice.of(product, knobs), "wide");
  knobs.tile_n = 512;
  EXPECT_EQ(choice.of(product, knobs), "plain");
  Problem other = product;
  other.type = Type::fp16;
  knobs = by_store;
  knobs.partial = Type::fp16;
  EXPECT_EQ(choice.of(other, knobs), "fp16");
}

TEST(KernelChoice, GrantsTheKnobsClusterWhereItCan) {
  Choice choice = two_clusters(132, 66);
  choice.add("sharing K", shape(128, 128, 2, Sharing::k), 66);
  Knobs knobs = by_store;
  knobs.cluster = 1;
  EXPECT_EQ(choice.of(product, knobs), "single");
  EXPECT_EQ(choice.asked, (std::set<std::string_view>{"single"}));
  knobs.cluster = 2;
  EXPECT_EQ(choice.of(product, knobs), "pairs");
  knobs.cluster = 0;
  knobs.cluster_k = 2;
  EXPECT_EQ(choice.of(product, knobs), "sharing K");
  choice.workers["sharing K"] = 0;
  EXPECT_EQ(choice.of(product, knobs), "single");  // its tiles are no pairs
  choice.workers["single"] = 0;
  EXPECT_EQ(choice.of(product, knobs), "pairs");
  choice.workers["single"] = 132;
  choice.workers["pairs"] = 0;
  knobs = by_store;
  knobs.cluster = 2;
  EXPECT_EQ(choice.of(product, knobs), "single");
}

TEST(KernelChoice, TakesAKernelThatIsNamed) {
  Choice choice = two_clusters(132, 66);
  choice.add("sharing K", shape(128, 128, 2, Sharing::k), 66).add("anywhere", shape(128, 128, 1), 264, true);
  choice.options.kernel = "ingle";
  EXPECT_EQ(choice.of(product, by_store), "single");
  choice.options.kernel = "sharing";
  EXPECT_EQ(choice.of(product, by_store), "sharing K");
  choice.options.kernel = "plain";
  EXPECT_EQ(choice.of(product, by_store), "plain");
  choice.options.kernel = "anywhere";
  EXPECT_EQ(choice.of(product, by_store), "anywhere");
  choice.options.kernel = "none";
  EXPECT_EQ(choice.of(product, by_store), "no kernel named like 'none' runs bf16 tiles of 128 x 128 on this GPU");
}

TEST(KernelChoice, TakesOneForTheLayoutOfB) {
  Choice choice = two_clusters(132, 66);
  Problem by_columns = product;
  by_columns.b_layout = Layout::column_major;
  EXPECT_EQ(choice.of(by_columns, by_store), "plain");
  choice.add("single nxk", shape(128, 128, 1), 132, false, Type::bf16, Layout::column_major)
      .add("pairs nxk", shape(128, 128, 2), 66, false, Type::bf16, Layout::column_major)
      .add("fp8", shape(128, 128, 1), 132, false, Type::e4m3, Layout::column_major);
  EXPECT_EQ(choice.of(by_columns, by_store), "pairs nxk");
  EXPECT_EQ(choice.of(product, by_store), "pairs");
  choice.options.kernel = "single";  // the name of both
  EXPECT_EQ(choice.of(by_columns, by_store), "single nxk");
  EXPECT_EQ(choice.of(product, by_store), "single");
  choice.options.kernel = "single nxk";
  EXPECT_EQ(choice.of(product, by_store), "no kernel named like 'single nxk' runs bf16 tiles of 128 x 128 on this GPU");
  choice.options.kernel = "fp8";
  EXPECT_EQ(choice.of(by_columns, by_store),
            "no kernel named like 'fp8' runs bf16 tiles of 128 x 128 with B nxk on this GPU");
  choice.options.kernel = "";
  Problem fp8 = product;
  fp8.type = Type::e4m3;
  EXPECT_EQ(choice.of(fp8, by_store), "fp8");
}

// The driver compiles it for Hopper before it can tell.
TEST(KernelChoice, AsksNothingOfOtherGpusKernelsOnHopper) {
  Choice choice;
  choice.add("anywhere", shape(128, 128, 1), 264, true);
  EXPECT_EQ(choice.of(product, by_store), "plain");
  choice.options.kernel = "where";  // its name does not begin so
  EXPECT_EQ(choice.of(product, by_store), "no kernel named like 'where' runs bf16 tiles of 128 x 128 on this GPU");
  EXPECT_EQ(choice.asked, std::set<std::string_view>{});
  choice.options.kernel = "";
  choice.generation = 8;
  Knobs pairs = by_store;
  pairs.cluster = 2;
  EXPECT_EQ(choice.of(product, by_store), "anywhere");
  EXPECT_EQ(choice.of(product, pairs), "anywhere");
}

TEST(KernelChoice, TakesThePlainOneWhereLoadsCannotTakeTheOperands) {
  Choice choice = two_clusters(132, 66);
  Problem odd = product;
  odd.k = 508;
  EXPECT_EQ(choice.of(odd, by_store), "plain");
  EXPECT_EQ(choice.asked, (std::set<std::string_view>{"plain"}));
  choice.options.kernel = "single";
  EXPECT_EQ(choice.of(odd, by_store),
            "no kernel named like 'single' runs bf16 tiles of 128 x 128 on this GPU: tensor-memory loads cannot take "
            "rows of A of 508 elements, not a multiple of 8");
  choice.options.kernel = "";
  choice.workers["plain"] = 0;
  EXPECT_EQ(choice.of(odd, by_store).find("no kernel named like ''"), 0u);
}

TEST(KernelChoice, SharesAGpuAmongRanks) {
  const KernelVariant single{"", Type::bf16, shape(128, 128, 1), true, false},
      pairs{"", Type::bf16, shape(128, 128, 2), true, false};
  EXPECT_EQ(cuda::workers_of_rank(single, 132, 1), 132);
  EXPECT_EQ(cuda::workers_of_rank(single, 132, 4), 29);  // 16 SMs are left to others
  EXPECT_EQ(cuda::workers_of_rank(pairs, 66, 4), 14);
  EXPECT_EQ(cuda::workers_of_rank(single, 8, 4), 1);
  EXPECT_EQ(cuda::workers_of_rank(single, 0, 4), 0);
  EXPECT_EQ(cuda::workers_of_rank(single, 132, 1, 20), 112);
  EXPECT_EQ(cuda::workers_of_rank(pairs, 66, 1, 20), 56);
  EXPECT_EQ(cuda::workers_of_rank(pairs, 66, 1, 21), 55);
  EXPECT_EQ(cuda::workers_of_rank(single, 132, 1, 200), 1);
  EXPECT_EQ(cuda::workers_of_rank(single, 0, 1, 20), 0);
  Choice choice = two_clusters(132, 66);
  const Problem gather{Operator::all_gather_gemm, 1024, 1024, 512, 4, Type::bf16};
  const Knobs by_push{.transport = Transport::push};
  EXPECT_EQ(choice.of(gather, by_push), "pairs");
  choice.options.ranks_per_gpu = 4;
  EXPECT_EQ(choice.of(gather, by_store), "pairs");
  EXPECT_EQ(choice.of(gather, by_push),
            "4 ranks to a GPU: operands that copy engines bring need a GPU for each rank; transport store does not");
  // All ranks together run no more at once than the GPU has.
  for (const int ranks : {1, 2, 4, 8, 33, 132})
    for (const int all : {132, 33, 8})
      EXPECT_LE(ranks * cuda::workers_of_rank(single, all, ranks), std::max(all, ranks)) << ranks << " of " << all;
  choice.options.ranks_per_gpu = 67;
  EXPECT_EQ(choice.of(gather, by_store),
            "67 ranks to a GPU: each needs a worker of its own, and this GPU runs 66 of kernel 'pairs' at once");
}

TEST(KernelList, ReadsWhatItWrites) {
  const test::KernelList list = test::read_kernel_list(KERNEL_LIST);
  const std::string text = test::to_text(list);
  EXPECT_EQ(test::to_text(test::parse_kernel_list(text, "list")), text);
  for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    EXPECT_EQ(test::kernels_for(list, type).plain->type, type);
}

TEST(KernelList, KnowsWhatLibrariesRun) {
  const test::KernelList list = test::read_kernel_list(KERNEL_LIST);
  const Problem problem{Operator::gemm_reduce_scatter, 1024, 1024, 512, 2, Type::bf16};
  const auto kernel = [&](Strategy strategy) {
    return test::kernel_of(*plan::make_rank_tasks(problem, strategy, by_store, 0), list);
  };
  EXPECT_EQ(kernel(Strategy::sequential), cuda::library_name);
  EXPECT_EQ(kernel(Strategy::fused), "cooperative 128x128 cluster 2");
}

TEST(KernelList, RefusesWhatIsNone) {
  const std::string good = test::to_text(test::read_kernel_list(KERNEL_LIST));
  const auto refusal = [&](const std::string& what, const std::string& by) {
    std::string text = good;
    const std::size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    text.replace(at, what.size(), by);
    try {
      test::parse_kernel_list(text, "list");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("# ", ""), "list:1: the first line must say, behind '# ', which GPU this is");
  EXPECT_EQ(refusal("generation", "age"), "list:2: the second line must be 'generation' and a number");
  EXPECT_EQ(refusal("generation 9", "generation nine"),
            "list:2: generation = nine: it must be an integer that is not negative");
  EXPECT_EQ(refusal("planes", "planets").substr(0, 32), "list:3: the third line must be '");
  EXPECT_EQ(refusal("bf16 128", "bf61 128").substr(0, 8), "list:4: ");
  EXPECT_EQ(refusal("bf16 128", "bf16 -128"), "list:4: tile_m = -128: it must be an integer that is not negative");
  EXPECT_EQ(refusal("2 b registers", "2 b shelves"), "list:4: slots = shelves: it must be rows or registers");
  EXPECT_EQ(refusal("hopper kxn", "hopper kxk"), "list:4: b = kxk: it must be kxn or nxk");
  EXPECT_EQ(refusal("66 pingpong 128x128 cluster 2", ""), "list:4: there is no workers");
}

}  // namespace
}  // namespace imbrex
