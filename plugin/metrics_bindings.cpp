#include "plugin/metrics_bindings.h"

#include <pybind11/stl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "backend/agent/agent.h"
#include "backend/base/log.h"
#include "backend/serve/current_call.h"
#include "plugin/python_text.h"

namespace py = pybind11;

namespace torchwire {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;
using std::chrono::milliseconds;

double inSeconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// As time.monotonic() counts, which has the same clock.
double inSeconds(std::chrono::steady_clock::time_point when) {
  return inSeconds(when.time_since_epoch());
}

const char* nameOf(ServedCalls::State state) {
  switch (state) {
    case ServedCalls::State::queued:
      return "queued";
    case ServedCalls::State::running:
      return "running";
    case ServedCalls::State::returned:
      break;
  }
  return "returned";
}

/// Why calls fail, as labels have it. Null: with what is told to nobody.
const char* nameOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::overloaded:
      return "overloaded";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::workerDied:
    case ErrorCode::declaredDead:
    case ErrorCode::partOver:
      return "worker_died";
    case ErrorCode::peerLeft:
      return "worker_left";
    case ErrorCode::shutDown:
      return "shut_down";
    case ErrorCode::injected:
      return "injected";
    case ErrorCode::none:
      return nullptr;
    default:
      return "unreachable";
  }
}

py::dict toDict(const LatencyHistogram& histogram) {
  const LatencyHistogram::Snapshot snapshot = histogram.snapshot();
  py::dict dict;
  dict["count"] = snapshot.count();
  dict["sum"] = inSeconds(snapshot.sum);
  dict["p50"] = inSeconds(snapshot.quantile(0.5));
  dict["p99"] = inSeconds(snapshot.quantile(0.99));
  dict["counts"] = snapshot.counts;
  return dict;
}

py::dict toDict(const FunctionMetrics& function) {
  std::map<std::string, uint64_t> failures;
  for (size_t code = 0; code < kErrorCodes; ++code) {
    const char* const name = nameOf(static_cast<ErrorCode>(code));
    if (name != nullptr && function.failures(static_cast<ErrorCode>(code)) != 0) {
      failures[name] += function.failures(static_cast<ErrorCode>(code));
    }
  }
  py::dict dict;
  dict["id"] = function.id;
  dict["kind"] = function.kind;
  dict["function"] = textOf(function.function);
  dict["failures"] = failures;
  dict["latency"] = toDict(function.latency);
  dict["wire"] = toDict(function.wire);
  dict["queue"] = toDict(function.queue);
  dict["run"] = toDict(function.run);
  dict["errors"] = function.errors();
  return dict;
}

/// Keeps the GIL: locks are held for moments.
py::list functionsOf(Agent& agent) {
  py::list list;
  for (const FunctionMetrics* function : agent.parts().metrics->functions.all()) {
    list.append(toDict(*function));
  }
  return list;
}

/// Keeps the GIL, too.
std::map<std::string, double> countsOfAgent(const Agent& agent) {
  const AgentReport::Counts counts = agent.report().counts();
  return {
      {"calls_in_flight", static_cast<double>(counts.callsInFlight)},
      {"requests_active", static_cast<double>(counts.requestsActive)},
      {"requests_async", static_cast<double>(counts.requestsAsync)},
      {"requests_cancelled", static_cast<double>(counts.requestsCancelled)},
      {"threads", static_cast<double>(counts.threads)},
      {"threads_idle", static_cast<double>(counts.threadsIdle)},
      {"gil_waits", static_cast<double>(counts.gilWaits)},
      {"gil_wait_seconds", inSeconds(counts.gilWait)},
      {"strangers_rejected", static_cast<double>(counts.strangersRejected)},
      {"backward_passes", static_cast<double>(counts.backwardPasses)},
      {"bytes_in_flight", static_cast<double>(counts.bytesInFlight)},
      {"requests_waiting", static_cast<double>(counts.requestsWaiting)},
      {"buffer_bytes_lent", static_cast<double>(counts.bufferBytesLent)},
      {"buffer_bytes_kept", static_cast<double>(counts.bufferBytesKept)}};
}

py::dict labelled(const FunctionMetrics& function) {
  py::dict dict;
  dict["kind"] = function.kind;
  dict["function"] = textOf(function.function);
  return dict;
}

/// Keeps the GIL.
py::list pendingCalls(const Agent& agent) {
  py::list list;
  for (const CallTable::Pending& call : agent.report().pendingCalls()) {
    py::dict dict = labelled(*call.function);
    dict["id"] = call.key.id;
    dict["to"] = call.key.to;
    dict["seconds"] = inSeconds(call.age);
    dict["timeout"] = inSeconds(call.timeout);
    list.append(std::move(dict));
  }
  return list;
}

/// Keeps the GIL.
py::list servedCalls(const Agent& agent) {
  py::list list;
  for (const ServedCalls::Status& call : agent.report().servedCalls()) {
    py::dict dict = labelled(*call.request.function);
    dict["id"] = call.request.callId;
    dict["caller"] = call.request.caller;
    dict["state"] = nameOf(call.state);
    dict["state_seconds"] = inSeconds(call.inState);
    dict["seconds"] = inSeconds(call.age);
    dict["thread"] = call.thread;
    list.append(std::move(dict));
  }
  return list;
}

const char* nameOf(TraceLog::Kind kind) {
  switch (kind) {
    case TraceLog::Kind::caller:
      return "caller";
    case TraceLog::Kind::callee:
      return "callee";
    case TraceLog::Kind::reading:
      break;
  }
  return "reading";
}

py::tuple toTuple(const TraceLog::Event& event) {
  const char* const error = nameOf(event.error);
  return py::make_tuple(
      nameOf(event.kind), event.peer, event.callId, event.function, inSeconds(event.begun),
      inSeconds(event.middle), inSeconds(event.ended), inSeconds(event.served),
      error == nullptr ? "" : error, event.thread);
}

const char* nameOf(TraceLog::Note::Kind kind) {
  using Kind = TraceLog::Note::Kind;
  switch (kind) {
    case Kind::pass:
      return "pass";
    case Kind::graphTask:
      return "graph_task";
    case Kind::gradients:
      return "gradients";
    case Kind::rref:
      return "rref";
    case Kind::incident:
      break;
  }
  return "incident";
}

py::tuple toTuple(const TraceLog::Note& note) {
  return py::make_tuple(
      nameOf(note.kind), note.peer, note.callId, inSeconds(note.begun), inSeconds(note.ended),
      note.subject, note.detail);
}

/// Releases the GIL to stop, and takes it to build Python objects.
py::tuple stopTrace(Agent& agent) {
  TraceLog::Taken taken;
  {
    const py::gil_scoped_release release;
    taken = agent.parts().metrics->trace.stop();
  }
  py::list events;
  for (const TraceLog::Event& event : taken.events) {
    events.append(toTuple(event));
  }
  py::list notes;
  for (const TraceLog::Note& note : taken.notes) {
    notes.append(toTuple(note));
  }
  return py::make_tuple(std::move(events), std::move(notes), taken.lost);
}

// The handler of a signal may do next to nothing: it writes a byte for a thread that reads.
std::atomic<int> signalled{-1};

void writeByte(int /* signal */) {
  const int before = errno;
  [[maybe_unused]] const auto written = write(signalled.load(), "", 1);
  errno = before;
}

/// Keeps the GIL.
void writeOnSignal(int signal, int descriptor) {
  signalled = descriptor;
  struct sigaction action{};
  action.sa_handler = writeByte;
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, &action, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "sigaction");
  }
}

} // namespace

void bindMetrics(py::module_& module, AgentClass& agent) {
  module.def(
      "write_on_signal", &writeOnSignal, py::arg("signal"), py::arg("descriptor"),
      "From now on the signal writes a byte to the descriptor, on whichever thread it comes.");
  module.def( // keeps the GIL: the lock that it takes is never held for long
      "write_error", &writeError, py::arg("text"),
      "Has a thread write the text to standard error, and does not wait for it. Drops it, and counts it, where too much "
      "waits already.");
  module.def( // keeps the GIL: it takes no lock
      "count_error", py::overload_cast<>(&ServingScope::countError),
      "The function that this thread serves has raised. Nothing where it serves none.");
  agent
      .def(
          "function_metrics", &functionsOf,
          "A dict for each function that has been called by this worker, or of it: kind, function, "
          "failures, errors, and four histograms of seconds; see torchwire.metrics(). Raises "
          "nothing.")
      .def(
          "counts", &countsOfAgent,
          "Counters and gauges of the worker by name, in the units that the names end in (seconds, "
          "bytes; others are counted); see torchwire.metrics(). Raises nothing.")
      .def_property_readonly_static(
          "histogram_bounds",
          [](const py::object& /* type */) {
            std::vector<double> bounds;
            for (size_t i = 0; i + 1 < LatencyHistogram::kBuckets; ++i) {
              bounds.push_back(inSeconds(LatencyHistogram::boundOf(i)));
            }
            return bounds;
          },
          "Below how many seconds what is in each bucket of a histogram is, but for the last one.")
      .def(
          "pending_calls", &pendingCalls,
          "A dict for each call of this worker that is under way: kind, function, id, to (a rank), "
          "and in seconds its age and its timeout. Raises nothing.")
      .def(
          "served_calls", &servedCalls,
          "A dict for each request of a peer that has not been answered: kind, function, id, "
          "caller "
          "(a rank), state, thread, and in seconds its age and how long it has been in that state. "
          "Raises nothing.")
      .def(
          "whereabouts",
          [](const Agent& self, WorkerId to, const std::vector<uint64_t>& calls, double patience) {
            return self.report().whereabouts().find(
                to, calls, milliseconds(static_cast<int64_t>(patience * 1000)));
          },
          py::arg("to"), py::arg("calls"), py::arg("patience"), ReleaseGil(),
          "Where each of those calls is, in a sentence, as the worker with rank `to` says, to "
          "which "
          "they are, or why it does not say. calls: ids, as pending_calls() has them. patience: "
          "seconds to wait for it. Raises nothing.")
      .def(
          "ask_observer",
          [](const Agent& self, WorkerId to, const std::string& question, double patience) {
            std::string answer;
            {
              const py::gil_scoped_release release;
              answer = self.report().askObserver(
                  to, question, milliseconds(static_cast<int64_t>(patience * 1000)));
            }
            return py::bytes(answer);
          },
          py::arg("to"), py::arg("question"), py::arg("patience"),
          "What the worker with rank `to` says to a question, both in JSON; see "
          "torchwire.observe.answers. patience: seconds to wait for it. Raises RuntimeError where "
          "it does not answer by then, or there is no such worker.")
      .def(
          "start_trace",
          [](Agent& self, size_t capacity) { self.parts().metrics->trace.start(capacity); },
          py::arg("capacity"), ReleaseGil(),
          "Notes the spans of calls from now on, `capacity` events at most, and drops what an "
          "earlier trace has noted; see torchwire.trace(). Raises nothing.")
      .def(
          "stop_trace", &stopTrace,
          "Ends that. Returns what has been noted of calls, and of all else, with times in "
          "seconds, "
          "and how many more notes there were than the capacity. Raises nothing.");
}

std::string pythonsStackOf(uint64_t thread) {
  const py::gil_scoped_acquire gil;
  try {
    return py::module_::import("torchwire.observe.stacks")
        .attr("stack_of")(thread)
        .cast<std::string>();
  } catch (const py::error_already_set& e) { // Python is about to end
    log(LogLevel::info, std::string("a stack cannot be read: ") + e.what());
    return {};
  }
}

std::string pythonsAnswer(const std::string& question) {
  const py::gil_scoped_acquire gil;
  try {
    return py::module_::import("torchwire.observe.answers")
        .attr("answer")(question)
        .cast<std::string>();
  } catch (const py::error_already_set& e) {
    throw std::runtime_error(e.what());
  }
}

} // namespace torchwire
