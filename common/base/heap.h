#pragma once

namespace recon {

// Settings of the heap for processes that move messages of about 1 MiB; call it first in main().
void TuneHeap();

}  // namespace recon
