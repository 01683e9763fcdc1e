#pragma once

namespace recon {

// Has gRPC read a message in one piece: the socket wakes it when most of the message is there, and one block
// of memory takes it. By itself it wakes for whatever has come, and reads into blocks of 64 KiB. Of versions
// other than 1.51, and where GRPC_EXPERIMENTS is set, nothing is changed.
//
// Call it in main(), before gRPC is used and threads begin.
void TuneGrpc();

}  // namespace recon
