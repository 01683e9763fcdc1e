#pragma once

namespace recon {

// Settings of the heap, of gRPC's locks and of scheduling for processes that move messages of about a MiB;
// call it first in main().
void TuneProcess();

}  // namespace recon
