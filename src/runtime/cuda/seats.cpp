#include "runtime/cuda/seats.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "base/ceil_div.hpp"
#include "base/check.hpp"

namespace imbrex::runtime {
namespace {

// "0, 1 and 2"
std::string list_of(const std::vector<std::size_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

std::string refusal(std::span<const Seat> seats, const std::vector<std::size_t>& ranks, int ranks_per_gpu) {
  const Seat &first = seats[ranks[0]], &second = seats[ranks[1]];
  const std::string who = fmt::format("ranks {} have the same GPU, {} ({})", list_of(ranks), first.name, first.uuid);
  if (ranks_per_gpu == 1)
    return fmt::format("{}, and need one each; their processes see {} and {}", who, first.visible, second.visible);
  return fmt::format("{}, which ranks_per_gpu = {} gives to {}; their processes see {}", who, ranks_per_gpu,
                     ranks_per_gpu, first.visible);
}

}  // namespace

int own_gpu(int rank, int ranks, int ranks_per_gpu, int visible, bool threads, std::optional<int> given) {
  IMBREX_EXPECTS(ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be 1, or more where ranks share GPUs", ranks_per_gpu);
  if (given) {
    if (*given < 0 || *given >= visible)
      throw Error(ErrorCode::runtime_failure,
                  fmt::format("gpu = {}: rank {}'s process sees {}, numbered from 0", *given, rank, visible));
    return *given;
  }
  const int wanted = base::ceil_div(ranks, ranks_per_gpu);
  if (visible >= wanted) return rank / ranks_per_gpu;
  // NOTE: of one GPU for threads, the ranks' seats tell who is too many.
  if (visible != 1 || (threads && ranks_per_gpu > 1))
    throw Error(ErrorCode::runtime_failure, fmt::format("{} ranks, {} to a GPU, need {} GPUs, and this process sees {}",
                                                        ranks, ranks_per_gpu, wanted, visible));
  return 0;
}

void expect_seats(std::span<const Seat> seats, int ranks_per_gpu) {
  for (std::size_t first = 0; first < seats.size(); ++first) {
    std::vector<std::size_t> same;
    for (std::size_t rank = 0; rank < seats.size() && same.size() <= static_cast<std::size_t>(ranks_per_gpu); ++rank)
      if (std::string_view(seats[rank].uuid) == seats[first].uuid) same.push_back(rank);
    if (same.size() > static_cast<std::size_t>(ranks_per_gpu))
      throw Error(ErrorCode::runtime_failure, refusal(seats, same, ranks_per_gpu));
  }
}

}  // namespace imbrex::runtime
