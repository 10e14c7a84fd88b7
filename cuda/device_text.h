// How devices and device maps look in messages.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "cuda/device_record.h"

namespace torchwire::cuda {

/// "cuda", "xpu", ...
std::string typeName(c10::DeviceType type);

/// One line of a table: two columns, and what is wrong with it (empty: nothing).
struct TableRow {
  std::string left;
  std::string right;
  std::string note;
};

/// Lines with aligned columns, `between` the first two, and the notes marked by "<--".
std::string table(const std::vector<TableRow>& rows, const std::string& between);

/// The entries, one per row, under the names of both workers. `notes` has one for each entry, or is empty.
std::string mapTable(
    const std::string& from, const std::string& to, const DeviceEntries& entries,
    const std::vector<std::string>& notes);

/// "worker1 has 2 cuda devices, cuda:0 to cuda:1", or that it has none.
std::string countInWords(const DeviceRecord& worker, c10::DeviceType type);

/// As in a program's text: `0` for cuda:0, `"cpu"`, `"xpu:1"`.
std::string inPython(c10::Device device);
/// `{0: 1, "cpu": 0}`.
std::string inPython(const DeviceEntries& entries);
/// `[0, 1]`.
std::string inPython(const std::vector<c10::Device>& devices);

/// "a, b, c", or the first of them and "and 90 more" where they are many.
std::string listed(const std::vector<std::string>& names);

/// A device of this worker that maps may use and that is of the type of `wanted`: `wanted` itself if it is not among
/// `taken`, else the first that is not; or nothing.
std::optional<c10::Device> freeDevice(
    const DeviceRecord& worker, c10::Device wanted, const std::vector<c10::Device>& taken);

} // namespace torchwire::cuda
