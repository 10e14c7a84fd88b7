// Where C++ takes the GIL: watched, so that it is seen where it may not be taken.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace torchwire {

/// Puts a check before each call by which libtorch's libraries and this extension take the GIL, ask whether they have to,
/// or run a Python destructor: who is not free (thread_role.h) or holds a lock (lock_rank.h) aborts, also where the
/// thread holds the GIL already. Calls of Python itself and of other extensions are not watched.
///
/// Does nothing unless the checks of threads are on, and does it once. Returns, for each library by its file's name,
/// the functions that are watched there. Only x86-64 Linux; elsewhere says in the log that the GIL is not watched.
/// Call it with the GIL.
const std::map<std::string, std::vector<std::string>>& watchGil();

} // namespace torchwire
