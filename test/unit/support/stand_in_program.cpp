#include "test/unit/support/stand_in_program.h"

#include <functional>

namespace torchwire {
namespace {

using Place = std::pair<WorkerId, size_t>;

// The functions after one, on whatever worker.
std::vector<Place> after(const StandInProgram& program, const Place& place) {
  const StandInFunction& function = program.part(place.first).functions[place.second];
  std::vector<Place> places;
  for (const size_t next : function.next) {
    places.emplace_back(place.first, next);
  }
  if (function.remote) {
    const auto& sends = program.part(function.remote->worker).sends;
    places.emplace_back(function.remote->worker, sends.at(function.remote->send));
  }
  return places;
}

// What the roots reach, each function before those after it.
std::vector<Place> inOrder(const StandInProgram& program) {
  std::vector<Place> reversed;
  std::set<Place> seen;
  const std::function<void(const Place&)> visit = [&](const Place& place) {
    if (!seen.insert(place).second) {
      return;
    }
    for (const Place& next : after(program, place)) {
      visit(next);
    }
    reversed.push_back(place);
  };
  for (const size_t root : program.part(0).roots) {
    visit({0, root});
  }
  return {reversed.rbegin(), reversed.rend()};
}

} // namespace

size_t StandInProgram::send(WorkerId from, size_t index, WorkerId to) {
  const int64_t message = nextMessage_++;
  StandInFunction sender;
  sender.next = {index};
  part(from).sends[message] = part(from).add(sender);
  StandInFunction receiver;
  receiver.remote = RemoteSend{from, message};
  return part(to).add(receiver);
}

StandInProgram StandInProgram::random(unsigned seed, WorkerId workers) {
  std::mt19937 random(seed);
  const auto below = [&](size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
  };
  StandInProgram program(workers);
  std::vector<std::vector<size_t>> tensors(static_cast<size_t>(workers));
  for (WorkerId worker = 0; worker < workers; ++worker) {
    for (int i = 0; i < 2; ++i) {
      StandInFunction leaf;
      leaf.leaf = true;
      tensors[static_cast<size_t>(worker)].push_back(program.part(worker).add(leaf));
    }
  }
  const size_t steps = 5 + below(40);
  for (size_t step = 0; step < steps; ++step) {
    const auto worker = static_cast<WorkerId>(below(static_cast<size_t>(workers)));
    auto& here = tensors[static_cast<size_t>(worker)];
    if (below(2) == 0) {
      const auto to = static_cast<WorkerId>(below(static_cast<size_t>(workers))); // perhaps itself
      const size_t received = program.send(worker, here[below(here.size())], to);
      tensors[static_cast<size_t>(to)].push_back(received);
    } else {
      StandInFunction function;
      function.factor = static_cast<int64_t>(1 + below(5));
      for (size_t inputs = 1 + below(3); inputs > 0; --inputs) {
        function.next.push_back(here[below(here.size())]);
      }
      here.push_back(program.part(worker).add(function));
    }
  }
  for (size_t roots = 1 + below(3); roots > 0; --roots) {
    program.part(0).roots.push_back(
        tensors[0][tensors[0].size() - 1 - below(std::min<size_t>(3, tensors[0].size()))]);
  }
  return program;
}

StandInProgram::Gradients StandInProgram::gradients() const {
  std::map<Place, int64_t> sums;
  for (const size_t root : part(0).roots) {
    ++sums[{0, root}];
  }
  Gradients leaves;
  for (const Place& place : inOrder(*this)) {
    const StandInFunction& function = part(place.first).functions[place.second];
    if (function.leaf) {
      leaves[place] = sums[place];
    }
    for (const Place& next : after(*this, place)) {
      sums[next] += sums[place] * function.factor;
    }
  }
  return leaves;
}

bool StandInProgram::usesAll() const {
  const auto places = inOrder(*this);
  const std::set<Place> reached(places.begin(), places.end());
  std::set<WorkerId> woken;
  for (const Place& place : places) {
    woken.insert(place.first);
  }
  for (const WorkerId worker : woken) {
    for (const auto& [message, function] : part(worker).sends) {
      if (reached.count({worker, function}) == 0) {
        return false;
      }
    }
  }
  return true;
}

} // namespace torchwire
