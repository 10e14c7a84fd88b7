// HMAC-SHA-256 by libsodium, of what comes in parts.
#pragma once

#include <array>
#include <initializer_list>
#include <span>

namespace torchwire {

using Proof = std::array<unsigned char, 32>;

/// The text with its end, as a separator from what follows.
std::span<const unsigned char> labelBytes(const char* text);

/// Takes the same time wherever they differ.
bool proofsAreEqual(const Proof& a, const Proof& b);

Proof hmac(
    std::span<const unsigned char> key,
    std::initializer_list<std::span<const unsigned char>> parts);

} // namespace torchwire
