#include "cuda/suggestion.h"

#include <algorithm>
#include <cctype>

namespace torchwire::cuda {
namespace {

constexpr size_t kMaxWord = 127; // of a worker's name; nothing longer is near one

std::string inLowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return text;
}

/// How many letters have to be added, left out, changed or exchanged with their neighbor to make `a` into `b`.
size_t editDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> beforeLast;
  std::vector<size_t> last;
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    beforeLast = std::move(last);
    last = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({changed, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], beforeLast[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

} // namespace

std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& known) {
  if (word.size() > kMaxWord) {
    return std::nullopt;
  }
  const std::string lowered = inLowerCase(word);
  size_t least = word.size() / 3 + 1; // what is farther is another word
  std::optional<std::string> best;
  for (const std::string& candidate : known) {
    const size_t distance = editDistance(lowered, inLowerCase(candidate));
    if (distance < least) {
      least = distance;
      best = candidate;
    } else if (distance == least) {
      best.reset();
    }
  }
  return best;
}

} // namespace torchwire::cuda
