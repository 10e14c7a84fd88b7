#include "backend/agent/observer_answers.h"

#include <exception>
#include <utility>

namespace torchwire {

AskForObserver answersForObservers(
    std::shared_ptr<ThreadPool> threads, std::function<std::string(const std::string&)> answer) {
  return [threads = std::move(threads), answer = std::move(answer)](
             ObserverQuestion question, ObserverReply reply) {
    const bool isDump = question == ObserverQuestion::dump;
    return threads->run([answer, isDump, reply = std::move(reply)] {
      try {
        reply({false, answer(isDump ? R"({"ask": "dump"})" : R"({"ask": "status"})")});
      } catch (const std::exception& e) {
        reply({true, e.what()});
      }
    });
  };
}

} // namespace torchwire
