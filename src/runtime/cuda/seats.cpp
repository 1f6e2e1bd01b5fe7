#include "runtime/cuda/seats.hpp"

#include <algorithm>
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

void expect_same_sms(std::span<const int> sms_for_others) {
  const int first = sms_for_others.front();
  for (std::size_t rank = 1; rank < sms_for_others.size(); ++rank)
    IMBREX_EXPECTS(sms_for_others[rank] == first,
                   "sms_for_others is {} on rank 0 and {} on rank {}: it must be the same on every rank", first,
                   sms_for_others[rank], rank);
}

void expect_sms(std::span<const Seat> seats, int ranks_per_gpu, int sms_for_others) {
  if (sms_for_others == 0) return;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const Seat& seat = seats[rank];
    IMBREX_EXPECTS(seat.sms - sms_for_others >= ranks_per_gpu,
                   "sms_for_others = {}: rank {}'s GPU, {} ({}), has {} SMs, and Imbrex' kernels need {} of them, one "
                   "for each rank that has it",
                   sms_for_others, rank, seat.name, seat.uuid, seat.sms, ranks_per_gpu);
  }
}

int clusters_beside(int all, int cluster, int sms, int sms_for_others) {
  if (sms_for_others == 0) return all;
  return std::clamp((sms - sms_for_others) / cluster, 0, all);
}

int collective_blocks(int sms, int ranks_per_gpu, int sms_for_others) {
  const int there = sms - sms_for_others;
  return std::max(ranks_per_gpu == 1 ? there : there / 2 / ranks_per_gpu, 1);
}

int look_up_blocks(int sms, int ranks_per_gpu, int sms_for_others) {
  if (sms_for_others > 0) return std::max((sms - sms_for_others) / ranks_per_gpu, 1);
  return ranks_per_gpu == 1 ? 0 : std::max(3 * sms / ranks_per_gpu, 1);
}

}  // namespace imbrex::runtime
