#include "autograd/backward_trace.h"

#include <string>
#include <utility>

#include "backend/serve/current_call.h"

namespace torchwire {
namespace {

using Kind = TraceLog::Note::Kind;

std::string nameOf(const PassId& pass) {
  return std::to_string(pass.context) + "." + std::to_string(pass.root) + "." +
      std::to_string(pass.number);
}

} // namespace

PassTable::Ended BackwardTrace::started(const PassId& pass, Clock::time_point begun) const {
  return noting(Kind::pass, pass, begun);
}

PassTable::Ended BackwardTrace::joined(const PassId& pass) const {
  return noting(Kind::graphTask, pass, now());
}

PassTable::Ended BackwardTrace::noting(
    Kind kind, const PassId& pass, Clock::time_point begun) const {
  if (begun == Clock::time_point()) {
    return nullptr;
  }
  return [metrics = metrics_, kind, pass, begun](const Error& error) {
    if (!metrics->trace.isOn()) {
      return;
    }
    TraceLog::Note note;
    note.kind = kind;
    note.begun = begun;
    note.ended = Clock::now();
    note.subject = nameOf(pass);
    note.detail = error ? error.message() : "";
    metrics->trace.add(std::move(note));
  };
}

void BackwardTrace::received(const PassId& pass) const {
  if (!metrics_->trace.isOn()) {
    return;
  }
  TraceLog::Note note = ServingScope::current().note(Kind::gradients);
  note.subject = nameOf(pass);
  metrics_->trace.add(std::move(note));
}

} // namespace torchwire
