#pragma once

namespace recon {

// Settings of the heap, of gRPC's locks and of scheduling for processes that move messages of a MiB or two;
// call it first in main().
void TuneProcess();

}  // namespace recon
