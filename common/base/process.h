#pragma once

namespace recon {

// Settings of the heap and of gRPC's locks for processes that move messages of a MiB or two; call it first in
// main().
void TuneProcess();

}  // namespace recon
