"""Writes copies of sources of backend/node in which the bugs of bug.h can be turned on.

    python plant.py FOLDER SOURCE...

A line that a bug is planted at is replaced by one that asks whether that bug is on: where none is, the copy does the
same as the original. Fails where such a line is not there, or is there twice, since the source has changed: then PLANTS
has to change as well.
"""

import pathlib
import sys

PLANTS = {
    "node.cpp": {
        ": parts_.program.serve(from, std::move(request));": (
            ": (BUG(servesTwice) && callId % 100 == 0 && parts_.program.serve(from, ReceivedFrame(request)),"
            " parts_.program.serve(from, std::move(request)));"
        ),
        "Task complete = calls_.takePeer(peer, error, lives ? received : CallIds(), unsent);": (
            "Task complete = BUG(forgetsTheLost) ? Task()"
            " : calls_.takePeer(peer, !lives ? error : BUG(saysNotSent) ? error.notSent()"
            " : BUG(saysHasRun) ? error.onlyAnswerLost() : error, lives ? received : CallIds(), unsent);"
        ),
        "links_->reclaimed(peer.id, peer.incarnation);": (
            "if (!BUG(neverReclaims)) { links_->reclaimed(peer.id, peer.incarnation); }"
        ),
        "events.declaredDead = [this](const std::string& reason) { links_->endPart(reason); };": (
            "events.declaredDead = [this](const std::string& reason)"
            " { if (!BUG(goesOnThoughDead)) { links_->endPart(reason); } };"
        ),
    },
    "peer_deaths.cpp": {
        "if (loss.code() == ErrorCode::nobodyListens) {": (
            "if (loss.code() == ErrorCode::nobodyListens || BUG(deadTooEarly)) {"
        ),
        "if (!anyOtherAnswers) {": "if (!anyOtherAnswers && !BUG(asksNobody)) {",
        "auto ruling = worker_.membership.declareDead(death);": (
            "auto ruling = BUG(asksNoStore) ? Membership::Ruling{death, true} : worker_.membership.declareDead(death);"
        ),
        "worker_.links.endPart(describe(ruling.death));": (
            "if (!BUG(goesOnThoughDead)) { worker_.links.endPart(describe(ruling.death)); }"
        ),
        "worker_.links.endPart(describe(death));": (
            "if (!BUG(goesOnThoughDead)) { worker_.links.endPart(describe(death)); }"
        ),
        "takeOffRoster(peer);": "if (!BUG(leavesOnRoster)) { takeOffRoster(peer); }",
    },
    "retried_requests.cpp": {
        "sendLater(std::move(request));": (
            "if (BUG(sendsOnce)) { request.completion(Ended::calleeGone); } else { sendLater(std::move(request)); }"
        ),
    },
}

HEAD = """\
#include "test/simulation/bug.h"
#define BUG(name) simulation::planted(simulation::Bug::name)
#line 1 "{path}"
"""


def planted(path: pathlib.Path) -> str:
    lines = path.read_text().splitlines()
    for original, replacement in PLANTS[path.name].items():
        found = [i for i, line in enumerate(lines) if line.strip() == original]
        if len(found) != 1:
            sys.exit(f"{path}: a bug is planted at this line, which is there {len(found)} times: {original}")
        lines[found[0]] = replacement
    return HEAD.format(path=path) + "\n".join(lines) + "\n"


def main() -> None:
    folder, *sources = map(pathlib.Path, sys.argv[1:])
    for source in sources:
        (folder / source.name).write_text(planted(source))


main()
