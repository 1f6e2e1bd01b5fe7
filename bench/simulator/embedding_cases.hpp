// Embedding exchanges whose times the simulator predicts, beside what follows from the machine's constants alone.
#pragma once

#include <string>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/tables.hpp"

namespace imbrex::bench {

/// MLPerf's DLRMv2: 26 tables of 128 columns, 204 million rows, 214 rows for each row of the batch.
std::vector<EmbeddingTable> dlrm_tables();

/// So many alike.
std::vector<EmbeddingTable> equal_tables(int count, std::int32_t dim, double pooling);

/// Rows and output are of `type`; tables are dealt out by `place_tables`; heavy ones are cut so that rows of 128 bytes
/// remain, as shorter ones take longer than their bytes. What a result costs beside a gathered row is tried: so that
/// the rank that takes longest, for its lookup or its wire, takes least. Hosts of the machine have about as many
/// columns.
Problem embedding_problem(const std::vector<EmbeddingTable>& tables, std::int64_t batch, int ranks, Type type,
                          const Machine& machine);

/// So many alike on each rank, whose columns stand side by side in the output; rows and output are fp32.
Problem even_problem(int tables_a_rank, std::int32_t dim, double pooling, std::int64_t batch, int ranks);

/// What the constants say of a problem; times in seconds, of the rank that takes longest.
struct Parts {
  double lookup = 0;    ///< rows and indices from memory
  double stored = 0;    ///< all looked-up bags to memory
  double wire = 0;      ///< what goes to peers, as stores from SMs
  double exchange = 0;  ///< the library's all-to-all, as wide as the widest rank's bags
  double regroup = 0;   ///< a copy of the output
  double launches = 0;  ///< gaps before each of these kernels and copies

  double serial() const { return lookup + stored + exchange + regroup + launches; }
  double longest() const { return lookup > wire ? lookup : wire; }
  double bound() const { return serial() / longest(); }  ///< no overlap gains more
};
Parts parts_of(const Problem& problem, const Machine& machine);

/// What the simulator says, seconds. Blocks of `fused` are as many as keep all SMs busy; slices: of `decomposed`, and
/// of `fused` on several hosts.
double seconds_of(const Problem& problem, Strategy strategy, const Machine& machine, int nodes = 1, int slices = 4);

/// Two hosts of four H200s, a network card of 400 Gb/s each.
Machine two_hosts_of_four();

/// Two hosts of one MI210, as AMD's paper has them.
Machine two_hosts_of_one();

/// What a library's all-to-all takes.
enum class Exchange : std::uint8_t {
  nccl_of_two,   ///< NCCL's between two H200s: what the machine file has
  nccl_of_four,  ///< NCCL's between four, measured by itself
  at_370,        ///< at 370 GB/s, which was not measured: NCCL's best rate of any collective on NVLink 4
};
inline constexpr Exchange exchanges[] = {Exchange::nccl_of_two, Exchange::nccl_of_four, Exchange::at_370};
std::string_view name_of(Exchange exchange);

/// The machine with that all-to-all.
Machine with_exchange(Machine machine, Exchange exchange);

}  // namespace imbrex::bench
