// Which plan to run: candidates for a problem, and the one that costs least.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"
#include "plan/given_knobs.hpp"
#include "plan/strategies/candidate.hpp"

namespace imbrex::choose {

/// A library's product, then a library's collective: the baseline.
plan::Candidate library_sequence(const Problem& problem);

/// Candidates worth comparing for `problem` on `machine`; with `strategy`, only its. Without one, Imbrex' own
/// collectives are among them if the machine has curves of theirs. With all `knobs` given, one of each strategy that
/// takes them; with some, of each strategy the candidates that have them anyway, or else all with these knobs set. With
/// a `codec`, which given knobs have, too, none are fused unless `strategy` insists; making such a plan refuses it.
/// Where ranks do not reach each other's memory (IMBREX_PEER_ACCESS), those that do are left out unless asked for.
/// Never empty, but where knobs of several hosts (`nodes`) meet strategy `fused`, which does not take them. Throws
/// Error(invalid_input) for knobs that break a rule of a strategy.
std::vector<plan::Candidate> candidates(const Problem& problem, const Machine& machine,
                                        std::optional<Strategy> strategy, const plan::GivenKnobs& knobs = {},
                                        const std::optional<CodecPair>& codec = {});

/// The candidate with the given knobs instead of its own. Groups that it chose for others are chosen again.
plan::Candidate with_given(const Problem& problem, plan::Candidate candidate, const plan::GivenKnobs& knobs,
                           const Machine& machine);

/// Imbrex' own collectives on GPUs take no more ranks.
inline constexpr int most_own_ranks = 8;

/// Whether Imbrex' own collectives run after a library's product: there are kernels for so many ranks and the type.
bool may_suit_own_collectives(const Problem& problem);

/// Whether they do, and take less time than the library's, by the machine's curves.
bool own_collective_is_faster(const Problem& problem, const Machine& machine);

/// Knobs::split_k, up to 4, for a product of so many tiles over `depth` columns of A: whole waves of the workers, each
/// as long as its share of K and what every tile takes besides. 1 where more gain little.
int parts_of_k(std::int64_t tiles, std::int64_t workers, std::int64_t depth);

/// The machine's tile shape that computes the problem's product in the least time.
Extent best_tile(const Problem& problem, const Machine& machine);

/// The plan of least cost; of equals the first candidate's. `cost` predicts seconds.
Plan choose(const Problem& problem, const std::vector<plan::Candidate>& candidates,
            const std::function<double(const Plan&)>& cost);

/// The plan of least cost for `problem` on `machine`, of the candidates that these leave. What is chosen without the
/// knobs stays if it has them; `begins` is called where, because it has not, another search begins. Throws
/// Error(invalid_input) where nothing takes the knobs, and where ranks would reach memory that they do not reach there.
Plan choose(const Problem& problem, const Machine& machine, std::optional<Strategy> strategy,
            const plan::GivenKnobs& knobs, const std::optional<CodecPair>& codec,
            const std::function<double(const Plan&)>& cost, const std::function<void()>& begins = {});

/// What plans take on the machine, by simulation.
std::function<double(const Plan&)> simulated_seconds(const Machine& machine);

}  // namespace imbrex::choose
