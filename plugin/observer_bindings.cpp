#include "plugin/observer_bindings.h"

#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "backend/transport/authentication.h"
#include "backend/wire/deaths.h"
#include "backend/wire/group_credentials.h"
#include "backend/wire/observation.h"
#include "backend/wire/roster.h"

namespace py = pybind11;

namespace torchwire {
namespace {

const std::map<std::string, ObserverQuestion> kQuestions = {
    {"dump", ObserverQuestion::dump}, {"status", ObserverQuestion::status}};

std::vector<char> charsOf(const py::bytes& bytes) {
  const std::string_view view = bytes;
  return {view.begin(), view.end()};
}

ForeignBytes foreign(std::string_view view) {
  return {reinterpret_cast<const unsigned char*>(view.data()), view.size()};
}

py::bytes toPython(const HandshakeBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

GroupKey keyFor(const GroupCredentials& credentials, const std::string& secret) {
  using Fit = GroupCredentials::Fit;
  const std::string group = "the group that " + credentials.drawnBy + " began";
  switch (credentials.fitOf(secret)) {
    case Fit::right:
      break;
    case Fit::missing:
      throw std::runtime_error(
          group +
          " has a secret of its own: name the file that holds it by --secret-file or "
          "TORCHWIRE_SECRET_FILE");
    case Fit::needless:
      throw std::runtime_error(
          group +
          " has no secret of its own: leave out --secret-file, and unset "
          "TORCHWIRE_SECRET_FILE");
    case Fit::wrong:
      throw std::runtime_error(
          group +
          " has another secret: name the file that its workers have by --secret-file or "
          "TORCHWIRE_SECRET_FILE");
  }
  return credentials.key(secret);
}

/// What the group's credentials and the secret open. A value.
struct GroupAccess {
  GroupAccess(const py::bytes& credentials, const std::string& secret)
      : key(keyFor(GroupCredentials::decode(charsOf(credentials)), secret)) {}
  GroupKey key;
};

/// The dialing side of one handshake with a worker, on the lane of a question.
class ObserverHandshake {
 public:
  ObserverHandshake(const GroupAccess& access, const std::string& question)
      : key_(access.key),
        initiator_(key_, Medium::tcp, static_cast<uint8_t>(kQuestions.at(question))) {}
  ObserverHandshake(const ObserverHandshake&) = delete;
  ObserverHandshake& operator=(const ObserverHandshake&) = delete;

  py::bytes greet() {
    return toPython(initiator_.greet());
  }
  py::bytes answerChallenge(const py::bytes& challenge) {
    const HandshakeInitiator::Step step = initiator_.answerChallenge(foreign(challenge));
    if (step.refusal == describe(Answer::noSuchLane)) {
      throw std::runtime_error(
          "it answers no observers: it shuts down, or runs an earlier torchwire");
    }
    if (!step.refusal.empty()) {
      throw std::runtime_error(step.refusal);
    }
    return toPython(step.send);
  }
  void judge(const py::bytes& authResult) const {
    if (const auto objection = initiator_.judge(foreign(authResult))) {
      throw std::runtime_error(*objection);
    }
  }

 private:
  const GroupKey key_;
  HandshakeInitiator initiator_;
};

py::list readRoster(const py::bytes& bytes) {
  py::list workers;
  for (const WorkerRecord& worker : Roster::decode(charsOf(bytes)).workers) {
    py::dict dict;
    dict["name"] = worker.name;
    dict["id"] = worker.id;
    dict["incarnation"] = worker.incarnation;
    dict["address"] = worker.address;
    workers.append(std::move(dict));
  }
  return workers;
}

std::vector<std::tuple<WorkerId, uint64_t, std::string>> readDeaths(const py::bytes& bytes) {
  std::vector<std::tuple<WorkerId, uint64_t, std::string>> deaths;
  for (const Death& death : Deaths::decode(charsOf(bytes)).all) {
    deaths.emplace_back(death.id, death.incarnation, death.reason);
  }
  return deaths;
}

} // namespace

void bindObserver(py::module_& module) {
  py::class_<GroupAccess>(module, "GroupAccess", "What a group's credentials and secret open.")
      .def(
          py::init<const py::bytes&, const std::string&>(), py::arg("credentials"),
          py::arg("secret"));
  py::class_<ObserverHandshake>(
      module, "ObserverHandshake", "The dialing side of a handshake, as in authentication.h.")
      .def(
          py::init<const GroupAccess&, const std::string&>(), py::arg("access"),
          py::arg("question"))
      .def("greet", &ObserverHandshake::greet)
      .def("answer_challenge", &ObserverHandshake::answerChallenge, py::arg("challenge"))
      .def("judge", &ObserverHandshake::judge, py::arg("auth_result"));
  module.attr("CHALLENGE_SIZE") = kChallengeSize;
  module.attr("AUTH_RESULT_SIZE") = kAuthResultSize;
  module.def("read_roster", &readRoster, py::arg("roster"), "The workers on a group's list.");
  module.def(
      "read_deaths", &readDeaths, py::arg("deaths"), "(rank, incarnation, reason) of the dead.");
}

} // namespace torchwire
