#include "backend/tensorpipe/domain.h"

#include <vector>

namespace torchwire {
namespace {

enum class Part { boot, network, pid, user, userId, groupId, capabilities };

/// How a descriptor is made up. What is not here is not explained further.
struct Layout {
  std::string name;
  std::string prefix;
  char separator;
  std::vector<Part> parts;
};

const Layout* layoutOf(const std::string& name) {
  static const std::vector<Layout> layouts = {
      {"wire_shm", "", ' ', {Part::boot, Part::network, Part::user, Part::userId}},
      // TensorPipe writes a namespace as a device and an inode.
      {"cma",
       "cma:",
       '_',
       {Part::boot, Part::pid, Part::pid, Part::user, Part::user, Part::userId, Part::groupId,
        Part::capabilities}},
  };
  for (const Layout& layout : layouts) {
    if (layout.name == name) {
      return &layout;
    }
  }
  return nullptr;
}

/// Empty where it does not begin as it should.
std::vector<std::string> partsOf(const std::string& descriptor, const Layout& layout) {
  std::vector<std::string> parts;
  if (!descriptor.starts_with(layout.prefix)) {
    return parts;
  }
  size_t begin = layout.prefix.size();
  while (begin <= descriptor.size()) {
    const size_t end = std::min(descriptor.find(layout.separator, begin), descriptor.size());
    parts.push_back(descriptor.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Objection differenceIn(Part part, const std::string& own, const std::string& peers) {
  const std::string both = "the two workers ";
  const std::string differ = " (" + own + " here, " + peers + " there)";
  switch (part) {
    case Part::boot:
      return {both + "are on different hosts: their boot ids differ" + differ, ""};
    case Part::network:
      return {
          both + "are in different network namespaces" + differ,
          "on one host let them share one; containers: --network=host, or one pod"};
    case Part::pid:
      return {
          both + "are in different PID namespaces" + differ,
          "on one host let them share one; containers: --pid=host, or shareProcessNamespace"};
    case Part::user:
      return {
          both + "are in different user namespaces" + differ,
          "on one host let them share one; containers: --userns=host"};
    case Part::userId:
      return {both + "run as different users" + differ, "start both as the same user"};
    case Part::groupId:
      return {both + "run as different groups" + differ, "start both as the same group"};
    case Part::capabilities:
      break;
  }
  return {both + "have different capabilities" + differ, "start both with the same capabilities"};
}

} // namespace

Objection differenceOf(const std::string& name, const std::string& own, const std::string& peers) {
  if (const Layout* layout = layoutOf(name)) {
    const auto ours = partsOf(own, *layout);
    const auto theirs = partsOf(peers, *layout);
    for (size_t i = 0; i < layout->parts.size() && i < ours.size() && i < theirs.size(); ++i) {
      if (ours[i] != theirs[i]) {
        return differenceIn(layout->parts[i], ours[i], theirs[i]);
      }
    }
  }
  return {
      "it does not reach from one worker to the other (" + own + " here, " + peers + " there)", ""};
}

} // namespace torchwire
