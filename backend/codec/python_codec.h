// Values of Python's simple types to bytes and tensors, and back, without pickle.
//
// A value is a tag and what follows it: docs/protocol.md has the bytes. What has another type than those below, and a
// value in which one container, tensor or long string appears twice, is left to pickle, which keeps identities, writes
// each object once and asks the types themselves.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/base/bytes.h"

namespace torchwire {

/// Writes values. For one message, with the GIL. Throws pybind11::error_already_set for what a module's own look-up raises.
class PythonWriter {
 public:
  /// Writes an object of a type that is not known here. False: it cannot.
  using WriteOther = std::function<bool(PyObject* object, ByteWriter& out)>;

  /// Appends to both; what a value's tensors are is said by their positions in `tensors`.
  PythonWriter(
      std::vector<char>& out, std::vector<at::Tensor>& tensors, WriteOther writeOther = nullptr)
      : out_(out), tensors_(tensors), writeOther_(std::move(writeOther)) {}

  /// None, bool, int (of 64 bits), float, str, bytes, torch.Tensor, what `writeOther` writes, and tuples, lists and dicts of
  /// these; no subclasses. False: it is something else, and what has been written is of no use.
  bool value(PyObject* object) {
    return value(object, 0);
  }

  /// A function or class that can be found by its module and name, as pickle would send it.
  /// False: it is something else, or is not found there.
  bool global(PyObject* object);

 private:
  bool value(PyObject* object, int depth);
  bool integer(PyObject* object);
  bool text(PyObject* object);
  bool tensor(PyObject* object);
  bool sequence(PyObject* object, int depth);
  bool dict(PyObject* object, int depth);
  bool other(PyObject* object);
  bool isFirst(PyObject* object);

  ByteWriter out_;
  std::vector<at::Tensor>& tensors_;
  const WriteOther writeOther_;
  // Objects that must not be written twice.
  std::vector<PyObject*> few_;
  std::unordered_set<PyObject*> many_; // once they are no longer few
};

/// Reads what a PythonWriter has written. For one message, with the GIL. Throws FormatError for other bytes, and
/// pybind11::error_already_set.
class PythonReader {
 public:
  /// Reads what a WriteOther has written.
  using ReadOther = std::function<pybind11::object(ByteReader& in)>;

  PythonReader(
      ByteReader& in, const std::vector<at::Tensor>& tensors, ReadOther readOther = nullptr)
      : in_(in), tensors_(tensors), readOther_(std::move(readOther)), itemsLeft_(in.remaining()) {}

  pybind11::object value() {
    return value(0);
  }

  /// The object of that name now, or an empty one where there is none: then `missing` has the pickle that says the same.
  pybind11::object global(std::vector<char>& missing);

 private:
  pybind11::object value(int depth);
  pybind11::object tensor();
  pybind11::object sequence(bool isTuple, int depth);
  pybind11::object dict(int depth);
  std::string_view view();
  uint32_t count(size_t itemSize);

  ByteReader& in_;
  const std::vector<at::Tensor>& tensors_;
  const ReadOther readOther_;
  size_t itemsLeft_;
};

} // namespace torchwire
