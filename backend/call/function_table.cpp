#include "backend/call/function_table.h"

namespace torchwire {

std::string FunctionMetrics::describe() const {
  return function.empty() ? "a call (" + kind + ")" : function;
}

FunctionMetrics& FunctionTable::find(RequestLabel label) {
  MutexLock lock(mutex_);
  const auto found = byLabel_.find(label);
  if (found != byLabel_.end()) {
    return *found->second;
  }
  if (functions_.size() < capacity_ || label.function.empty()) { // of those there are few
    return add(label);
  }
  label.function = kOthers;
  const auto others = byLabel_.find(label);
  return others != byLabel_.end() ? *others->second : add(label);
}

FunctionMetrics& FunctionTable::add(RequestLabel label) {
  FunctionMetrics& added = functions_.emplace_back(label, static_cast<uint32_t>(functions_.size()));
  byLabel_.emplace(RequestLabel{added.kind, added.function}, &added);
  return added;
}

std::vector<const FunctionMetrics*> FunctionTable::all() const {
  MutexLock lock(mutex_);
  std::vector<const FunctionMetrics*> all;
  all.reserve(functions_.size());
  for (const FunctionMetrics& function : functions_) {
    all.push_back(&function);
  }
  return all;
}

} // namespace torchwire
