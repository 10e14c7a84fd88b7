#include "backend/wire/group_credentials.h"

#include <algorithm>

#include "backend/base/random.h"
#include "backend/wire/frame.h"

namespace torchwire {
namespace {

constexpr uint32_t kCredentialsMagic = 0x54575754; // "TWWT"
// No role of a handshake: this proof is of no use on a link. It goes into the proof, so that it stays.
constexpr char kRole[] = "terms";

const char* const kRemedy =
    ": give all workers the same one by `secret`, `secret_file` or TORCHWIRE_SECRET_FILE";

} // namespace

GroupCredentials GroupCredentials::draw(const WorkerRecord& worker, const std::string& secret) {
  GroupCredentials credentials;
  credentials.groupId = randomNumber();
  credentials.drawnBy = worker.describe();
  if (secret.empty()) {
    credentials.drawnSecret = GroupKey::drawSecret();
  } else {
    credentials.ownSecret = GroupKey(credentials.groupId, secret).prove(kRole, {});
  }
  return credentials;
}

GroupCredentials::Fit GroupCredentials::fitOf(const std::string& secret) const {
  if (secret.empty()) {
    return drawnSecret.empty() ? Fit::missing : Fit::right;
  }
  if (!drawnSecret.empty()) {
    return Fit::needless;
  }
  return GroupKey(groupId, secret).verify(kRole, {}, ownSecret) ? Fit::right : Fit::wrong;
}

std::optional<std::string> GroupCredentials::objectionTo(
    const WorkerRecord& worker, const std::string& secret) const {
  const std::string began = drawnBy + ", which began the group,";
  switch (fitOf(secret)) {
    case Fit::right:
      break;
    case Fit::missing:
      return worker.describe() + " was started without a group secret, but " + began + " has one" +
          kRemedy;
    case Fit::needless:
      return worker.describe() + " was started with a group secret, but " + began + " has none" +
          kRemedy + ", or none at all";
    case Fit::wrong:
      return worker.describe() + " was started with another group secret than " + drawnBy +
          ", which began the group" + kRemedy;
  }
  return std::nullopt;
}

GroupKey GroupCredentials::key(const std::string& secret) const {
  return GroupKey(groupId, drawnSecret.empty() ? secret : drawnSecret);
}

std::vector<char> GroupCredentials::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(kCredentialsMagic);
  out.number(kProtocolVersion);
  out.number(groupId);
  out.string(drawnBy);
  out.string(drawnSecret);
  out.raw(ownSecret.data(), ownSecret.size());
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
  credentials.drawnBy = in.string();
  credentials.drawnSecret = in.string();
  if (!credentials.drawnSecret.empty() && credentials.drawnSecret.size() < GroupKey::kMinSecret) {
    throw FormatError("the store's credentials of the group hold a secret that is too short");
  }
  const char* proof = in.raw(credentials.ownSecret.size());
  std::copy_n(proof, credentials.ownSecret.size(), credentials.ownSecret.begin());
  return credentials;
}

} // namespace torchwire
