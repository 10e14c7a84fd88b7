// The errors of calls, for Python.
#pragma once

namespace torchwire {

/// From now on Python sees CallError and RemoteError as torchwire's exceptions, whichever module's bindings they come
/// through. With the GIL, on import.
void translateErrors();

} // namespace torchwire
