// Python values that other workers send without pickle.

#include <Python.h>
#include <pybind11/embed.h>

#include <ATen/ops/empty.h>

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "backend/codec/python_codec.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

namespace py = pybind11;

void read(ByteReader& in, const std::vector<at::Tensor>& tensors) {
  py::object value;
  try {
    value = PythonReader(in, tensors).value();
  } catch (const FormatError&) { // not a value
    return;
  } catch (py::error_already_set&) { // text that is none, a key that cannot be one
    return;
  }
  std::vector<char> bytes;
  std::vector<at::Tensor> sent;
  if (!PythonWriter(bytes, sent).value(value.ptr())) { // one tensor in two places
    return;
  }
  ByteReader again(bytes);
  PythonReader(again, sent).value();
  require(again.remaining() == 0, "a value that was written is read to its end");
}

void readName(ByteReader& in) {
  std::vector<char> missing;
  try {
    const py::object found = PythonReader(in, {}).global(missing);
    require(static_cast<bool>(found) == missing.empty(), "a name is found, or a pickle says it");
  } catch (const FormatError&) { // not a name
  } catch (py::error_already_set&) { // text that is none, or what a look-up raises
  }
}

void run(Script script) {
  static const std::vector<at::Tensor> tensors = {at::empty({2}), at::empty({0})};
  const bool isName = script.ConsumeBool();
  const std::vector<char> bytes = script.ConsumeRemainingBytes<char>();
  ByteReader in(bytes);
  if (isName) {
    readName(in);
  } else {
    read(in, tensors);
  }
  PyErr_Clear();
}

} // namespace
} // namespace torchwire

/// Python and torch keep what they have, and the search through all that takes minutes.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  py::initialize_interpreter(); // and never finalized: torch's threads keep that from coming to an end
  const auto folder = std::filesystem::path(TORCH_ROOT).parent_path();
  py::module_::import("sys").attr("path").attr("insert")(0, folder.string());
  py::module_::import("torch");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
