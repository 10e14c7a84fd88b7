#include "backend/group_terms.h"

#include <algorithm>

#include "backend/frame.h"
#include "backend/random.h"

namespace torchwire {
namespace {

constexpr uint32_t kTermsMagic = 0x54575754; // "TWWT"
constexpr char kRole[] = "terms"; // no role of a handshake: this proof is of no use on a link

const char* const kRemedy =
    ": give all workers the same one by `secret`, `secret_file` or TORCHWIRE_SECRET_FILE";

} // namespace

GroupTerms GroupTerms::draw(const WorkerRecord& worker, const std::string& secret) {
  GroupTerms terms;
  terms.groupId = randomNumber();
  terms.drawnBy = worker.describe();
  if (secret.empty()) {
    terms.drawnSecret = GroupKey::drawSecret();
  } else {
    terms.ownSecret = GroupKey(terms.groupId, secret).prove(kRole, {});
  }
  return terms;
}

std::optional<std::string> GroupTerms::objectionTo(
    const WorkerRecord& worker, const std::string& secret) const {
  const std::string began = drawnBy + ", which began the group,";
  if (secret.empty()) {
    return drawnSecret.empty() ? std::optional(
                                     worker.describe() + " was started without a group secret, but " +
                                     began + " has one" + kRemedy)
                               : std::nullopt;
  }
  if (!drawnSecret.empty()) {
    return worker.describe() + " was started with a group secret, but " + began + " has none" + kRemedy +
        ", or none at all";
  }
  if (!GroupKey(groupId, secret).verify(kRole, {}, ownSecret)) {
    return worker.describe() + " was started with another group secret than " + drawnBy +
        ", which began the group" + kRemedy;
  }
  return std::nullopt;
}

GroupKey GroupTerms::key(const std::string& secret) const {
  return GroupKey(groupId, drawnSecret.empty() ? secret : drawnSecret);
}

std::vector<char> GroupTerms::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(kTermsMagic);
  out.number(kProtocolVersion);
  out.number(groupId);
  out.string(drawnBy);
  out.string(drawnSecret);
  out.raw(ownSecret.data(), ownSecret.size());
  return bytes;
}

GroupTerms GroupTerms::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  if (in.number<uint32_t>() != kTermsMagic) {
    throw FormatError("the store's terms of the group are not torchwire's");
  }
  requireOwnProtocol(in.number<uint32_t>());
  GroupTerms terms;
  terms.groupId = in.number<uint64_t>();
  terms.drawnBy = in.string();
  terms.drawnSecret = in.string();
  if (!terms.drawnSecret.empty() && terms.drawnSecret.size() < GroupKey::kShortestSecret) {
    throw FormatError("the store's terms of the group hold a secret that is too short");
  }
  const char* proof = in.raw(terms.ownSecret.size());
  std::copy_n(proof, terms.ownSecret.size(), terms.ownSecret.begin());
  return terms;
}

} // namespace torchwire
