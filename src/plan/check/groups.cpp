#include "plan/check/groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace imbrex::plan {
namespace {

std::string codec_text(const std::optional<CodecPair>& codec) {
  return codec ? " through codec " + name_of(*codec) : "";
}

}  // namespace

std::string CollectiveGroups::add(const Collective& c, const std::vector<int>& joined, Type type, int rank) {
  const auto [place, first] =
      groups_.insert({c.group, {c.kind, c.from.rows, c.from.cols, type, joined, c.backend, c.codec, {}}});
  Group& group = place->second;
  if (group.ranks != joined)
    return fmt::format("collective group {} joins ranks {} here, but {} elsewhere", c.group, fmt::join(joined, ", "),
                       fmt::join(group.ranks, ", "));
  if (group.kind != c.kind || group.rows != c.from.rows || group.cols != c.from.cols)
    return fmt::format("collective group {} is {} of {} x {} here, but {} of {} x {} elsewhere", c.group,
                       name_of(c.kind), c.from.rows, c.from.cols, name_of(group.kind), group.rows, group.cols);
  if (group.type != type)
    return fmt::format("collective group {} is of {} here, but of {} elsewhere", c.group, name_of(type),
                       name_of(group.type));
  if (group.backend != c.backend || group.codec != c.codec)
    return fmt::format("collective group {} runs by {}{} here, but by {}{} elsewhere", c.group, name_of(c.backend),
                       codec_text(c.codec), name_of(group.backend), codec_text(group.codec));
  if (!group.seen.insert({rank, {c.send_to, c.receive_from}}).second)
    return fmt::format("collective group {} appears twice on this rank", c.group);
  return "";
}

std::string CollectiveGroups::missing() const {
  for (const auto& [number, group] : groups_)
    for (const int rank : group.ranks)
      if (!group.seen.contains(rank))
        return fmt::format("rank {} does not take part in collective {}, which joins it", rank, number);
  for (const auto& [number, group] : groups_) {
    if (group.kind != CollectiveKind::send_receive) continue;
    for (const auto& [rank, peers] : group.seen)
      if (const int source = group.seen.at(peers.first).second; source != rank)
        return fmt::format("rank {} sends to rank {} in collective {}, which receives from rank {} there", rank,
                           peers.first, number, source);
  }
  return "";
}

}  // namespace imbrex::plan
