#include "cuda/device_text.h"

#include <algorithm>

namespace torchwire::cuda {
namespace {

constexpr size_t kMaxListed = 16;

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width - text.size(), ' ');
}

std::string withoutTrailingSpace(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) {
    all += (all.empty() ? "" : ", ") + part;
  }
  return all;
}

} // namespace

std::string typeName(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

std::string table(const std::vector<TableRow>& rows, const std::string& between) {
  size_t left = 0;
  size_t right = 0;
  for (const TableRow& row : rows) {
    left = std::max(left, row.left.size());
    right = std::max(right, row.right.size());
  }
  std::string lines;
  for (const TableRow& row : rows) {
    const std::string columns =
        "    " + padded(row.left, left) + between + padded(row.right, right);
    const std::string mark = row.note.empty() ? "" : "   <-- " + row.note;
    lines += withoutTrailingSpace(columns + mark) + "\n";
  }
  return lines;
}

std::string mapTable(
    const std::string& from, const std::string& to, const DeviceEntries& entries,
    const std::vector<std::string>& notes) {
  std::vector<TableRow> rows = {{from, to, ""}};
  for (size_t i = 0; i < entries.size(); ++i) {
    rows.push_back(
        {entries[i].first.str(), entries[i].second.str(), notes.empty() ? "" : notes[i]});
  }
  return table(rows, " -> ");
}

std::string countInWords(const DeviceRecord& worker, c10::DeviceType type) {
  const auto found = worker.counts.find(type);
  const int count = found == worker.counts.end() ? 0 : found->second;
  const std::string name = typeName(type);
  if (count == 0) {
    return worker.name + " has no " + name + " device at all";
  }
  if (count == 1) {
    return worker.name + " has 1 " + name + " device, " + name + ":0";
  }
  return worker.name + " has " + std::to_string(count) + " " + name + " devices, " + name +
      ":0 to " + name + ":" + std::to_string(count - 1);
}

std::string inPython(c10::Device device) {
  return device.is_cuda() && device.has_index() ? std::to_string(device.index())
                                                : '"' + device.str() + '"';
}

std::string inPython(const DeviceEntries& entries) {
  std::vector<std::string> parts;
  for (const auto& [from, to] : entries) {
    parts.push_back(inPython(from) + ": " + inPython(to));
  }
  return "{" + joined(parts) + "}";
}

std::string inPython(const std::vector<c10::Device>& devices) {
  std::vector<std::string> parts;
  for (const c10::Device& device : devices) {
    parts.push_back(inPython(device));
  }
  return "[" + joined(parts) + "]";
}

std::string listed(const std::vector<std::string>& names) {
  if (names.size() <= kMaxListed) {
    return joined(names);
  }
  const std::vector<std::string> first(names.begin(), names.begin() + kMaxListed);
  return joined(first) + " and " + std::to_string(names.size() - kMaxListed) + " more";
}

std::optional<c10::Device> freeDevice(
    const DeviceRecord& worker, c10::Device wanted, const std::vector<c10::Device>& taken) {
  const auto isFree = [&](c10::Device device) {
    return device.type() == wanted.type() &&
        std::find(taken.begin(), taken.end(), device) == taken.end();
  };
  const std::vector<c10::Device> usable = worker.usableDevices();
  if (isFree(wanted) && std::find(usable.begin(), usable.end(), wanted) != usable.end()) {
    return wanted;
  }
  const auto first = std::find_if(usable.begin(), usable.end(), isFree);
  return first == usable.end() ? std::nullopt : std::optional(*first);
}

} // namespace torchwire::cuda
