#include "backend/wire/group_credentials.h"

#include <algorithm>

#include "backend/base/one_line.h"
#include "backend/base/random.h"
#include "backend/wire/frame.h"

namespace torchwire {
namespace {

constexpr size_t kMaxDescription = 1000; // bytes; of a worker
constexpr uint32_t kCredentialsMagic = 0x54575754; // "TWWT"
// No role of a handshake: this proof is of no use on a link. It goes into the proof, so that it stays.
constexpr char kRole[] = "terms";

const char* const kRemedy =
    ": give all workers the same one by `secret`, `secret_file` or TORCHWIRE_SECRET_FILE";

} // namespace

GroupCredentials GroupCredentials::draw(
    const WorkerRecord& worker, const std::vector<std::string>& secrets) {
  GroupCredentials credentials;
  credentials.groupId = randomNumber();
  credentials.drawnBy = worker.describe();
  if (secrets.empty()) {
    credentials.drawnSecret = GroupKey::drawSecret();
    return credentials;
  }
  return credentials.withKeys(keysOf(credentials.groupId, secrets));
}

std::vector<GroupKey> GroupCredentials::keysOf(
    uint64_t groupId, const std::vector<std::string>& secrets) {
  std::vector<GroupKey> keys;
  for (const std::string& secret : secrets) {
    keys.emplace_back(groupId, GroupKey::stretched(groupId, secret));
  }
  return keys;
}

GroupCredentials GroupCredentials::withKeys(const std::vector<GroupKey>& keys) const {
  GroupCredentials credentials = *this;
  credentials.ownSecrets.clear();
  for (const GroupKey& key : keys) {
    credentials.ownSecrets.push_back(key.prove(kRole, {}));
  }
  return credentials;
}

GroupCredentials::Admission GroupCredentials::admit(const std::vector<std::string>& secrets) const {
  if (secrets.empty()) {
    return drawnSecret.empty() ? Admission{Fit::missing, {}}
                               : Admission{Fit::right, {GroupKey(groupId, drawnSecret)}};
  }
  if (!drawnSecret.empty()) {
    return {Fit::needless, {}};
  }
  const std::vector<GroupKey> keys = keysOf(groupId, secrets);
  if (haveKey(keys.front())) {
    return {Fit::right, keys};
  }
  const bool others =
      std::any_of(keys.begin(), keys.end(), [this](const GroupKey& key) { return haveKey(key); });
  return {others ? Fit::otherFirst : Fit::wrong, {}};
}

bool GroupCredentials::haveKey(const GroupKey& key) const {
  return std::any_of(ownSecrets.begin(), ownSecrets.end(), [&key](const Proof& proof) {
    return key.verify(kRole, {}, proof);
  });
}

std::optional<std::string> GroupCredentials::objectionTo(
    const WorkerRecord& worker, Fit fit) const {
  const std::string began = drawnBy + ", which began the group,";
  switch (fit) {
    case Fit::right:
      break;
    case Fit::missing:
      return worker.describe() + " was started without a group secret, but " + began + " has one" +
          kRemedy;
    case Fit::needless:
      return worker.describe() + " was started with a group secret, but " + began + " has none" +
          kRemedy + ", or none at all";
    case Fit::otherFirst:
      return worker.describe() +
          " would use a group secret that the group does not accept, or no more, though it knows "
          "one that it does: its file is at another step of a change than that of " +
          drawnBy + ", which began the group";
    case Fit::wrong:
      return worker.describe() + " was started with another group secret than " + drawnBy +
          ", which began the group" + kRemedy;
  }
  return std::nullopt;
}

std::vector<char> GroupCredentials::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(kCredentialsMagic);
  out.number(kProtocolVersion);
  out.number(groupId);
  out.string(drawnBy);
  out.string(drawnSecret);
  out.number(static_cast<uint32_t>(ownSecrets.size()));
  for (const Proof& proof : ownSecrets) {
    out.raw(proof.data(), proof.size());
  }
  return bytes;
}

GroupCredentials GroupCredentials::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  if (in.number<uint32_t>() != kCredentialsMagic) {
    throw FormatError("the store's credentials of the group are not torchwire's");
  }
  requireOwnProtocol(in.number<uint32_t>());
  GroupCredentials credentials;
  credentials.groupId = in.number<uint64_t>();
  credentials.drawnBy = oneLine(in.string(), kMaxDescription); // by whoever can write the store
  credentials.drawnSecret = in.string();
  if (!credentials.drawnSecret.empty() && credentials.drawnSecret.size() < GroupKey::kMinSecret) {
    throw FormatError("the store's credentials of the group hold a secret that is too short");
  }
  for (uint32_t left = in.count(sizeof(Proof)); left > 0; --left) {
    Proof& proof = credentials.ownSecrets.emplace_back();
    std::copy_n(in.raw(proof.size()), proof.size(), proof.begin());
  }
  return credentials;
}

} // namespace torchwire
