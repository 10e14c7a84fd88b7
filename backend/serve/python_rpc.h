// Functions and types of torch.distributed.rpc.internal, as PyTorch's own PythonRpcHandler calls them, for code that
// holds the GIL: that one takes and drops it at each step.
#pragma once

#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>

namespace torchwire {

struct PythonRpc {
  pybind11::object runFunction; // PythonUDF -> its result, or a RemoteException
  pybind11::object raise; // torchwire's: a list of one exception -> never returns
  pybind11::object serialize; // object -> (bytes, list of tensors)
  pybind11::object
      deserialize; // the reverse; an AttributeError is returned, for runFunction to raise
  pybind11::object handleException; // raises what a RemoteException says, as PyTorch has it
  pybind11::object raiseRemote; // the same, as torchwire has it: of the type that was raised
  pybind11::object PythonUDF;
  pybind11::object RemoteException;
  pybind11::object RRef, PyRRef; // Python's class, and libtorch's that it inherits from
  pybind11::object InContext; // torchwire's: a function, and the trace context that it is to run in
  pybind11::object reducers; // of classes, that users register: a dict

  /// Looks them up, for the life of the process. With the GIL, on import: a look-up may give the GIL away meanwhile.
  static void load();
  /// After load().
  static const PythonRpc& get();

  bool isRemoteException(const pybind11::object& object) const;

  /// Whether objects of the class are to be pickled by a reducer of the user's.
  bool hasReducer(PyObject* type) const;

  /// The object, pickled. Throws pybind11::error_already_set when it cannot be.
  torch::distributed::rpc::SerializedPyObj pickle(const pybind11::object& object) const;
  /// The same for code outside of Python: throws c10::Error with Python's text.
  torch::distributed::rpc::SerializedPyObj pickled(const pybind11::object& object) const;
};

/// Holds the GIL, and tells the agent how long it took to get it, where that is asked for.
class MeasuredGil {
 public:
  MeasuredGil();

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  const pybind11::gil_scoped_acquire gil_;
};

} // namespace torchwire
