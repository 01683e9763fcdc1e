#pragma once

#include <string>

namespace recon {

// Settings of the heap, of gRPC's locks and of scheduling for processes that move messages of about a MiB;
// call it first in main().
void TuneProcess();
// The part of it that is variables of libraries, which look for them when they start: while there are no
// other threads. What is set already stays.
void TuneEnvironment();

// The directory that holds the running program, without a '/' at its end; empty if the system does not say.
std::string ProgramDirectory();

// What process numbers are of: equal for processes that see each other under the same numbers. Empty if the
// system does not say.
std::string ProcessNamespace();

}  // namespace recon
