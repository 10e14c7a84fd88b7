#include "backend/codec/python_codec.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace torchwire {
namespace {

namespace py = pybind11;

enum class Tag : uint8_t {
  none,
  falseValue,
  trueValue,
  integer,
  floating,
  text,
  bytes,
  tensor,
  tuple,
  list,
  dict,
  other,
};

constexpr int kMaxDepth = 16;
// Strings from here on are not written twice.
constexpr Py_ssize_t kLong = 64;
// So many objects are looked for one by one.
constexpr size_t kFew = 32;
constexpr size_t kMaxLength = std::numeric_limits<uint32_t>::max();

/// The attribute, or null where there is none. Throws what else the look-up raises.
py::object attribute(PyObject* object, PyObject* name) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
  if (!value && PyErr_ExceptionMatches(PyExc_AttributeError) == 0) {
    throw py::error_already_set();
  }
  PyErr_Clear();
  return value;
}

py::object attribute(PyObject* object, const char* name) {
  return attribute(object, py::str(name).ptr());
}

/// The module if it has been imported, or null: also while its import is under way, for which pickle waits.
py::object importedModule(PyObject* name) {
  const auto module =
      py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(PyImport_GetModuleDict(), name));
  static PyObject* const specName = PyUnicode_InternFromString("__spec__");
  static PyObject* const initializingName = PyUnicode_InternFromString("_initializing");
  const py::object spec = module ? attribute(module.ptr(), specName) : py::object();
  const py::object initializing = spec ? attribute(spec.ptr(), initializingName) : py::object();
  return initializing && PyObject_IsTrue(initializing.ptr()) != 0 ? py::object() : module;
}

/// What `module.qualname` is now, or null. Throws what else than an AttributeError the look-up raises.
py::object find(PyObject* module, PyObject* qualname) {
  py::object found = importedModule(module);
  const Py_ssize_t length = PyUnicode_GET_LENGTH(qualname);
  Py_ssize_t start = 0;
  while (found && start <= length) {
    Py_ssize_t dot = PyUnicode_FindChar(qualname, '.', start, length, 1);
    dot = dot < 0 ? length : dot;
    const auto name = start == 0 && dot == length
        ? py::reinterpret_borrow<py::object>(qualname)
        : py::reinterpret_steal<py::object>(PyUnicode_Substring(qualname, start, dot));
    if (!name) {
      throw py::error_already_set();
    }
    found = attribute(found.ptr(), name.ptr());
    start = dot + 1;
  }
  return found;
}

py::object orThrow(PyObject* made) {
  if (made == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(made);
}

// BINUNICODE: its length has four bytes.
void appendText(std::vector<char>& pickle, std::string_view text) {
  pickle.push_back('X');
  ByteWriter(pickle).string(text);
}

} // namespace

// ---- writing ------------------------------------------------------------------------------------

bool PythonWriter::value(PyObject* object, int depth) {
  if (object == Py_None) {
    out_.number(Tag::none);
    return true;
  }
  if (PyBool_Check(object)) {
    out_.number(object == Py_True ? Tag::trueValue : Tag::falseValue);
    return true;
  }
  if (PyLong_CheckExact(object)) {
    return integer(object);
  }
  if (PyFloat_CheckExact(object)) {
    out_.number(Tag::floating);
    out_.number(PyFloat_AS_DOUBLE(object));
    return true;
  }
  if (PyUnicode_CheckExact(object)) {
    out_.number(Tag::text);
    return text(object) && (PyUnicode_GET_LENGTH(object) < kLong || isFirst(object));
  }
  if (PyBytes_CheckExact(object)) {
    const auto length = static_cast<size_t>(PyBytes_GET_SIZE(object));
    if (length > kMaxLength || (length >= kLong && !isFirst(object))) {
      return false;
    }
    out_.number(Tag::bytes);
    out_.string({PyBytes_AS_STRING(object), length});
    return true;
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) == THPVariableClass) {
    return tensor(object);
  }
  if (depth == kMaxDepth) {
    return false;
  }
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    return sequence(object, depth);
  }
  return PyDict_CheckExact(object) ? dict(object, depth) : other(object);
}

bool PythonWriter::integer(PyObject* object) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  out_.number(Tag::integer);
  out_.number(static_cast<int64_t>(number));
  return overflow == 0;
}

bool PythonWriter::text(PyObject* object) {
  Py_ssize_t length = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(object, &length);
  if (utf8 == nullptr) { // a lone surrogate
    PyErr_Clear();
    return false;
  }
  const bool fits = static_cast<size_t>(length) <= kMaxLength;
  out_.string({utf8, fits ? static_cast<size_t>(length) : 0});
  return fits;
}

bool PythonWriter::tensor(PyObject* object) {
  out_.number(Tag::tensor);
  out_.number(static_cast<uint32_t>(tensors_.size()));
  tensors_.push_back(THPVariable_Unpack(object));
  return isFirst(object);
}

bool PythonWriter::sequence(PyObject* object, int depth) {
  const bool isTuple = PyTuple_CheckExact(object);
  PyObject** const items = PySequence_Fast_ITEMS(object);
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(object));
  out_.number(isTuple ? Tag::tuple : Tag::list);
  out_.number(static_cast<uint32_t>(count));
  const bool isShared = isTuple && count == 0; // Python has one empty tuple
  return count <= kMaxLength && (isShared || isFirst(object)) &&
      std::all_of(items, items + count, [&](PyObject* item) { return value(item, depth + 1); });
}

bool PythonWriter::dict(PyObject* object, int depth) {
  out_.number(Tag::dict);
  out_.number(static_cast<uint32_t>(PyDict_GET_SIZE(object)));
  if (!isFirst(object)) {
    return false;
  }
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(object, &position, &key, &item) != 0) {
    if (!value(key, depth + 1) || !value(item, depth + 1)) {
      return false;
    }
  }
  return true;
}

bool PythonWriter::other(PyObject* object) {
  out_.number(Tag::other);
  return writeOther_ && isFirst(object) && writeOther_(object, out_);
}

bool PythonWriter::isFirst(PyObject* object) {
  if (few_.size() < kFew) {
    if (std::find(few_.begin(), few_.end(), object) != few_.end()) {
      return false;
    }
    few_.push_back(object);
    return true;
  }
  if (many_.empty()) {
    many_.insert(few_.begin(), few_.end());
  }
  return many_.insert(object).second;
}

bool PythonWriter::global(PyObject* object) {
  if (!PyFunction_Check(object) && Py_TYPE(object) != &PyType_Type) {
    return false;
  }
  const py::object module = attribute(object, "__module__");
  const py::object qualname = attribute(object, "__qualname__");
  return module && PyUnicode_CheckExact(module.ptr()) && qualname &&
      PyUnicode_CheckExact(qualname.ptr()) && find(module.ptr(), qualname.ptr()).ptr() == object &&
      text(module.ptr()) && text(qualname.ptr());
}

// ---- reading ------------------------------------------------------------------------------------

std::string_view PythonReader::view() {
  const auto length = in_.number<uint32_t>();
  return {in_.raw(length), length};
}

py::object PythonReader::global(std::vector<char>& missing) {
  const std::string_view module = view();
  const std::string_view qualname = view();
  const auto text = [](std::string_view utf8) {
    return orThrow(
        PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), nullptr));
  };
  py::object found = find(text(module).ptr(), text(qualname).ptr());
  if (!found) {
    missing.assign({'\x80', 4}); // PROTO 4; the two names; STACK_GLOBAL; STOP
    appendText(missing, module);
    appendText(missing, qualname);
    missing.insert(missing.end(), {'\x93', '.'});
  }
  return found;
}

py::object PythonReader::value(int depth) {
  const auto tag = in_.number<Tag>();
  switch (tag) {
    case Tag::none:
      return py::none();
    case Tag::falseValue:
      return py::bool_(false);
    case Tag::trueValue:
      return py::bool_(true);
    case Tag::integer:
      return orThrow(PyLong_FromLongLong(in_.number<int64_t>()));
    case Tag::floating:
      return orThrow(PyFloat_FromDouble(in_.number<double>()));
    case Tag::text: {
      const std::string_view utf8 = view();
      return orThrow(
          PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), nullptr));
    }
    case Tag::bytes: {
      const std::string_view bytes = view();
      return orThrow(
          PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
    }
    case Tag::tensor:
      return tensor();
    case Tag::tuple:
    case Tag::list:
      return sequence(tag == Tag::tuple, depth);
    case Tag::dict:
      return dict(depth);
    case Tag::other:
      if (readOther_) {
        return readOther_(in_);
      }
  }
  throw FormatError("a Python value of unknown tag " + std::to_string(static_cast<int>(tag)));
}

py::object PythonReader::tensor() {
  const auto position = in_.number<uint32_t>();
  if (position >= tensors_.size()) {
    throw FormatError(
        "a Python value names tensor " + std::to_string(position) + ", which did not come");
  }
  return orThrow(THPVariable_Wrap(tensors_[position]));
}

/// A count of items in a container. All containers together have at most as many items as the message has bytes.
uint32_t PythonReader::count(size_t itemSize) {
  const uint32_t n = in_.count(itemSize);
  if (n > itemsLeft_) {
    throw FormatError("Python values claim more items than came");
  }
  itemsLeft_ -= n;
  return n;
}

py::object PythonReader::sequence(bool isTuple, int depth) {
  const auto count = static_cast<Py_ssize_t>(this->count(1));
  if (depth == kMaxDepth) {
    throw FormatError("Python values lie in each other too deeply");
  }
  auto made = orThrow(isTuple ? PyTuple_New(count) : PyList_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const item = value(depth + 1).release().ptr();
    if (isTuple) {
      PyTuple_SET_ITEM(made.ptr(), i, item);
    } else {
      PyList_SET_ITEM(made.ptr(), i, item);
    }
  }
  return made;
}

py::object PythonReader::dict(int depth) {
  const uint32_t count = this->count(2);
  if (depth == kMaxDepth) {
    throw FormatError("Python values lie in each other too deeply");
  }
  auto made = orThrow(PyDict_New());
  for (uint32_t i = 0; i < count; ++i) {
    const py::object key = value(depth + 1);
    const py::object item = value(depth + 1);
    if (PyDict_SetItem(made.ptr(), key.ptr(), item.ptr()) != 0) {
      throw py::error_already_set();
    }
  }
  return made;
}

} // namespace torchwire
