#include "backend/serve/python_thread.h"

#include <Python.h>

namespace torchwire {
namespace {

bool isPythonThere() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

class PythonThreadState {
 public:
  PythonThreadState() {
    if (isPythonThere() && PyGILState_GetThisThreadState() == nullptr) {
      state_ = PyThreadState_New(PyInterpreterState_Main());
    }
  }
  ~PythonThreadState() {
    if (state_ != nullptr && isPythonThere()) { // else Python has ended it
      PyEval_RestoreThread(state_);
      PyThreadState_Clear(state_);
      PyThreadState_DeleteCurrent();
    }
  }
  PythonThreadState(const PythonThreadState&) = delete;
  PythonThreadState& operator=(const PythonThreadState&) = delete;

  // Only this thread writes the member, so it may look without the GIL; but not when Python has ended, and the state with
  // it.
  void dropContext() const {
    if (state_ != nullptr && isPythonThere() && state_->context != nullptr) {
      PyEval_RestoreThread(state_);
      ++state_->context_ver; // what context variables have cached goes by it
      Py_CLEAR(state_->context);
      PyEval_SaveThread();
    }
  }

 private:
  PyThreadState* state_ = nullptr;
};

/// Also where the task throws.
class ContextScope {
 public:
  explicit ContextScope(const PythonThreadState& state) : state_(state) {}
  ~ContextScope() {
    state_.dropContext();
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const PythonThreadState& state_;
};

} // namespace

void runOnPythonThread(Task& task) {
  thread_local const PythonThreadState state;
  const ContextScope scope(state);
  task();
}

} // namespace torchwire
