#include "plugin/observer_bindings.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "backend/transport/authentication.h"
#include "backend/transport/socket_address.h"
#include "backend/wire/deaths.h"
#include "backend/wire/group_credentials.h"
#include "backend/wire/observation.h"
#include "backend/wire/roster.h"
#include "backend/wire/store_entry.h"

namespace py = pybind11;

namespace torchwire {
namespace {

const std::map<std::string, ObserverQuestion> kQuestions = {
    {"dump", ObserverQuestion::dump}, {"status", ObserverQuestion::status}};

const std::map<std::string, Sealing> kSealings = {
    {"off", Sealing::off}, {"if wanted", Sealing::ifWanted}, {"wanted", Sealing::wanted}};

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

/// The one first that all workers accept.
std::vector<GroupKey> keysFor(
    const GroupCredentials& credentials, const std::vector<std::string>& secrets) {
  using Fit = GroupCredentials::Fit;
  const std::string group = "the group that " + credentials.drawnBy + " began";
  GroupCredentials::Admission admission = credentials.admit(secrets);
  for (size_t i = 1; admission.fit == Fit::otherFirst && i < secrets.size(); ++i) {
    std::vector<std::string> turned = secrets;
    std::rotate(turned.begin(), turned.begin() + static_cast<ptrdiff_t>(i), turned.end());
    admission = credentials.admit(turned);
  }
  switch (admission.fit) {
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
    case Fit::otherFirst:
    case Fit::wrong:
      throw std::runtime_error(
          group +
          " has another secret: name the file that its workers have by --secret-file or "
          "TORCHWIRE_SECRET_FILE");
  }
  return std::move(admission.keys);
}

/// What the group's credentials and the secret open. A value.
struct GroupAccess {
  GroupAccess(const py::bytes& credentials, const std::vector<std::string>& secrets)
      : keys(keysFor(GroupCredentials::decode(charsOf(credentials)), secrets)) {}
  /// What a member has written under the name, without the proof. Throws std::runtime_error where nobody has.
  std::vector<char> read(const std::string& name, const py::bytes& bytes) const {
    const std::vector<char> chars = charsOf(bytes);
    for (const GroupKey& key : keys) {
      const StoreEntry entry = StoreEntry::read(&key, name, {chars.begin(), chars.end()});
      if (entry.proven) {
        return {entry.value.begin(), entry.value.end()};
      }
    }
    throw std::runtime_error(
        "the rendezvous store's entry '" + name +
        "' was not written by a worker of the group: somebody without its secret has changed it");
  }
  std::vector<GroupKey> keys;
};

/// Opens what comes in on a sealed connection.
class AnswerOpener {
 public:
  explicit AnswerOpener(const RecordKey& key) : opener_(key) {}

  /// How many bytes follow this header.
  static size_t restOf(const py::bytes& header) {
    size_t content = 0;
    if (!RecordOpener::readHeader(foreign(header), content)) {
      throw std::runtime_error(kDamaged);
    }
    return content + kRecordOverhead - kRecordHeader;
  }
  py::bytes open(const py::bytes& record) {
    const ForeignBytes bytes = foreign(record);
    std::string content(bytes.size() - std::min(bytes.size(), kRecordOverhead), '\0');
    if (!opener_.open(bytes, content.data())) {
      throw std::runtime_error(kDamaged);
    }
    return content;
  }

 private:
  static constexpr const char* kDamaged = "what it answers was changed on the way";
  RecordOpener opener_;
};

/// The dialing side of one handshake with a worker, on the lane of a question.
class ObserverHandshake {
 public:
  ObserverHandshake(
      const GroupAccess& access, const std::string& address, const std::string& question,
      const std::string& sealing)
      : initiator_(
            access.keys.front(), Medium::tcp, static_cast<uint8_t>(kQuestions.at(question)),
            {.address = SocketAddress::tcp(address).describe(), .sealing = kSealings.at(sealing)}) {
  }
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
  /// Returns what opens the answer; null: it comes as it is.
  std::unique_ptr<AnswerOpener> judge(const py::bytes& authResult) const {
    if (const auto objection = initiator_.judge(foreign(authResult))) {
      throw std::runtime_error(*objection);
    }
    const auto sealedBy = initiator_.sealedBy();
    return sealedBy ? std::make_unique<AnswerOpener>(sealedBy->incoming) : nullptr;
  }

 private:
  HandshakeInitiator initiator_;
};

py::list readRoster(const GroupAccess& access, const std::string& name, const py::bytes& bytes) {
  py::list workers;
  for (const WorkerRecord& worker : Roster::decode(access.read(name, bytes)).workers) {
    py::dict dict;
    dict["name"] = worker.name;
    dict["id"] = worker.id;
    dict["incarnation"] = worker.incarnation;
    dict["address"] = worker.address;
    dict["encrypts"] = (worker.linkOptions & link_options::kUnencrypted) == 0;
    workers.append(std::move(dict));
  }
  return workers;
}

std::vector<std::tuple<WorkerId, uint64_t, std::string>> readDeaths(
    const GroupAccess& access, const std::string& name, const py::bytes& bytes) {
  std::vector<std::tuple<WorkerId, uint64_t, std::string>> deaths;
  for (const Death& death : Deaths::decode(access.read(name, bytes)).all) {
    deaths.emplace_back(death.id, death.incarnation, death.reason);
  }
  return deaths;
}

} // namespace

void bindObserver(py::module_& module) {
  py::class_<GroupAccess>(module, "GroupAccess", "What a group's credentials and secret open.")
      .def(
          py::init<const py::bytes&, const std::vector<std::string>&>(), py::arg("credentials"),
          py::arg("secrets"))
      .def_property_readonly(
          "group_id", [](const GroupAccess& access) { return access.keys.front().groupId(); })
      .def(
          "read_roster", &readRoster, py::arg("name"), py::arg("roster"),
          "The workers on the group's list, as the store has it under the name.")
      .def(
          "read_deaths", &readDeaths, py::arg("name"), py::arg("deaths"),
          "(rank, incarnation, reason) of the dead.");
  py::class_<AnswerOpener>(module, "AnswerOpener", "Opens the records of a sealed connection.")
      .def_static("rest_of", &AnswerOpener::restOf, py::arg("header"))
      .def("open", &AnswerOpener::open, py::arg("record"));
  module.attr("RECORD_HEADER_SIZE") = kRecordHeader;
  py::class_<ObserverHandshake>(
      module, "ObserverHandshake", "The dialing side of a handshake, as in authentication.h.")
      .def(
          py::init<
              const GroupAccess&, const std::string&, const std::string&, const std::string&>(),
          py::arg("access"), py::arg("address"), py::arg("question"), py::arg("sealing"))
      .def("greet", &ObserverHandshake::greet)
      .def("answer_challenge", &ObserverHandshake::answerChallenge, py::arg("challenge"))
      .def("judge", &ObserverHandshake::judge, py::arg("auth_result"));
  module.attr("CHALLENGE_SIZE") = kChallengeSize;
  module.attr("AUTH_RESULT_SIZE") = kAuthResultSize;
}

} // namespace torchwire
