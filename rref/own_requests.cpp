#include "rref/own_requests.h"

#include <utility>

#include "backend/base/bytes.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "backend/wire/failure.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

constexpr size_t kIdSize = sizeof(int32_t) + sizeof(int64_t);

void write(ByteWriter& out, const GlobalId& id) {
  out.number(id.createdOn);
  out.number(id.localId);
}

GlobalId readId(ByteReader& in) {
  GlobalId id;
  id.createdOn = in.number<int32_t>();
  id.localId = in.number<int64_t>();
  return id;
}

MessagePtr listOf(const std::vector<GlobalId>& forks, rpc::MessageType type) {
  std::vector<char> body;
  body.reserve(sizeof(uint32_t) + forks.size() * kIdSize);
  ByteWriter out(body);
  out.number(static_cast<uint32_t>(forks.size()));
  for (const GlobalId& fork : forks) {
    write(out, fork);
  }
  return messageOf(std::move(body), type);
}

} // namespace

MessagePtr toMessage(const CreationSite& site) {
  std::vector<char> body;
  ByteWriter out(body);
  write(out, site.rref);
  out.string(site.site);
  return messageOf(std::move(body), own_messages::kCreationSite);
}

MessagePtr toMessage(const LostCreation& creation) {
  std::vector<char> body;
  ByteWriter out(body);
  write(out, creation.rref);
  write(out, creation.fork);
  out.flag(creation.isOfPython);
  const std::vector<char> why = encodeFailure(creation.why);
  out.raw(why.data(), why.size());
  return messageOf(std::move(body), own_messages::kCreationFailed);
}

MessagePtr holdersRequest(const std::vector<GlobalId>& forks) {
  return listOf(forks, own_messages::kHoldersRequest);
}

MessagePtr holdersReply(const std::vector<GlobalId>& forks) {
  return listOf(forks, own_messages::kHoldersReply);
}

CreationSite creationSiteIn(const rpc::Message& message) {
  ByteReader in(message.payload());
  CreationSite site;
  site.rref = readId(in);
  site.site = in.string();
  return site;
}

LostCreation lostCreationIn(const rpc::Message& message) {
  ByteReader in(message.payload());
  LostCreation creation;
  creation.rref = readId(in);
  creation.fork = readId(in);
  creation.isOfPython = in.flag();
  const size_t length = in.remaining();
  const char* const why = in.raw(length);
  creation.why = decodeFailure({why, why + length});
  return creation;
}

std::vector<GlobalId> forksIn(const rpc::Message& message) {
  ByteReader in(message.payload());
  std::vector<GlobalId> forks(in.count(kIdSize));
  for (GlobalId& fork : forks) {
    fork = readId(in);
  }
  return forks;
}

} // namespace torchwire
